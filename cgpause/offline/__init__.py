"""Policies on simulated and recorded nodes; no cgroup is touched."""
