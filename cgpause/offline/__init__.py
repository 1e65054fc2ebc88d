"""Policies on simulated nodes; no cgroup is touched."""
