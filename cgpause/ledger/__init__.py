"""Pause, resume and restore one cgroup, with a record of every original value."""
