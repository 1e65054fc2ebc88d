"""Reports what the daemon does: events, history, Prometheus metrics and traces."""
