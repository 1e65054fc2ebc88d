"""cgpause pauses Kubernetes pods through cgroup v2 before the OOM killer restarts them."""

__version__ = "0.1.0"
