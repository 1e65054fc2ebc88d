"""Reports what the daemon does: events, history and Prometheus metrics."""
