"""Reports what the daemon does and has learned: events, history, Prometheus metrics, the learned workloads."""
