"""What a policy would do to a workload: nodes, pods, kernel and kubelet in virtual time, under the real policies."""
