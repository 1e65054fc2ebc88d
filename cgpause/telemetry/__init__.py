"""Acts of the daemon: events, history, Prometheus metrics and traces."""
