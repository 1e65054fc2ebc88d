"""What the daemon did: events, history, Prometheus metrics and traces."""
