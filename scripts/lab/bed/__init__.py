"""The test bed: kubelet, kubepods, services and the daemon as processes on a real cgroup v2."""
