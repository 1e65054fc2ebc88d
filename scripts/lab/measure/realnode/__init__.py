"""A real node for `scripts/bench realnode`: kubelet, containerd, runc and systemd in a VM, with cgpause installed.

`image` builds what the guest needs on the host, `node` is the guest's side of the cluster-less node, `cases` measures.
"""
