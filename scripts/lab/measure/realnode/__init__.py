"""A real node for `scripts/bench realnode`: kubelet, containerd, runc and systemd in a VM, with cgpause installed.

`image` builds kubelet and the pods' image on the host, `node` runs kubelet and pods in the guest without a cluster, and
`cases` measures.
"""
