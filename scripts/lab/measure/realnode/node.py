"""The node in the guest: starts kubelet and cgpause, adds and removes pods, and reads their state.

Without an API server kubelet runs pods from manifest files. If a manifest has a UID in the API's form, kubelet names
cgroups and logs by it as for any other pod, and cgpause does not take the pod for a static one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from cgpause.ledger.record import XATTR
from lab.bed.frame import wait_until
from lab.bed.kubepods import read_keyed
from lab.measure.realnode.image import IMAGE
from lab.vm.host import REPO, run_tool

KUBEPODS = Path("/sys/fs/cgroup/kubepods.slice")
MANIFESTS = Path("/etc/kubernetes/manifests")
OUT = Path("/run/realnode")
"""Folder in which a pod that SIGTERM ended leaves a file."""
BUNDLE = Path("/opt/cgpause/with/bundle.tar")
WHEELS = Path("/opt/cgpause/wheels")
STATE = Path("/var/lib/cgpause")

_GUEST = Path(__file__).parent / "guest"
_FILES = {
    "containerd.toml": "/etc/containerd/config.toml",
    "runc.sh": "/usr/local/bin/runc-of-pods",
    "kubelet.yaml": "/var/lib/kubelet/config.yaml",
    "kubelet.service": "/etc/systemd/system/kubelet.service",
    "network.conflist": "/etc/cni/net.d/10-node.conflist",
}


@dataclass(frozen=True, slots=True)
class Pod:
    """One Burstable pod with one container, which runs `worker.py` with the arguments `command`."""

    name: str
    command: Sequence[str]
    limit_bytes: int | None = None
    cpu_limit: str | None = None
    port: int | None = None
    """Port of an HTTP liveness probe; None without a probe."""
    grace_s: int = 5
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def cgroup(self) -> Path:
        """The pod's cgroup, which kubelet makes."""
        tier = KUBEPODS / "kubepods-burstable.slice"
        return tier / f"kubepods-burstable-pod{self.uid.replace('-', '_')}.slice"

    @property
    def cpu_max(self) -> str:
        """The content of the cgroup's cpu.max."""
        return (self.cgroup / "cpu.max").read_text().strip()

    def is_marked(self) -> bool:
        """Return True if the cgroup has cgpause's record of a pause."""
        return XATTR in os.listxattr(self.cgroup)

    def manifest(self) -> dict[str, Any]:
        """Return the pod as kubelet reads it."""
        limits = {"memory": self.limit_bytes, "cpu": self.cpu_limit}
        container: dict[str, Any] = {
            "name": "main",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": ["/usr/bin/python3", "-I", "-S", "/lab/worker.py", *self.command],
            "env": [{"name": "POD", "value": self.name}],
            "resources": {
                "requests": {"cpu": "10m", "memory": "16Mi"},
                "limits": {name: str(limit) for name, limit in limits.items() if limit is not None},
            },
            "volumeMounts": [
                {"name": "usr", "mountPath": "/usr", "readOnly": True},
                {"name": "lab", "mountPath": "/lab", "readOnly": True},
                {"name": "out", "mountPath": "/out"},
            ],
        }
        if self.port is not None:
            # All other fields at Kubernetes' defaults: every 10 s, 1 s to answer, 3 failures.
            container["livenessProbe"] = {"httpGet": {"port": self.port, "path": "/"}, "initialDelaySeconds": 10}
        paths = {"usr": "/usr", "lab": str(_GUEST), "out": str(OUT)}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "namespace": "default", "uid": self.uid},
            "spec": {
                "dnsPolicy": "Default",
                "restartPolicy": "OnFailure",
                "terminationGracePeriodSeconds": self.grace_s,
                "containers": [container],
                "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in paths.items()],
            },
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of a pod's container, as kubelet reports it."""

    running: bool = False
    restarts: int = 0
    done_at: float | None = None
    """Time at which the container ended with status 0, in Unix seconds; None before."""
    lost: bool = False
    """Whether kubelet takes the container for ended without knowing when. It does so now and then while a container
    starts slowly, with and without cgpause; then it stops the pod for good."""


def outcomes(answer: dict[str, Any]) -> dict[str, Outcome]:
    """Return the outcome of each pod by UID; `answer` is the JSON of kubelet's /pods."""
    found = {}
    for item in answer.get("items") or []:
        for status in item.get("status", {}).get("containerStatuses", [])[:1]:
            state = status.get("state", {})
            ended = state.get("terminated", {})
            done = ended.get("exitCode") == 0 and ended.get("finishedAt")
            done_at = datetime.fromisoformat(done).timestamp() if done else None
            lost = bool(ended) and not ended.get("finishedAt")
            found[item["metadata"]["uid"]] = Outcome("running" in state, status.get("restartCount", 0), done_at, lost)
    return found


def command(*words: str | Path) -> str:
    """Run a command in the guest and return its output.

    Raises:
        ToolError: the command failed.
    """
    # Without the lab's PYTHONPATH, so that the installed cgpause runs, not the checkout's.
    return run_tool(words, env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"})


def _await(what: str, is_there: Callable[[], bool]) -> None:
    wait_until(is_there, 300, f"waited in vain for {what}", poll_s=1)  # an emulated kubelet needs a while to answer


def start_node() -> None:
    """Start containerd and kubelet with the lab's configuration."""
    OUT.mkdir(exist_ok=True)
    MANIFESTS.mkdir(parents=True, exist_ok=True)
    with tarfile.open(BUNDLE) as bundle:
        bundle.extract("kubelet", "/usr/local/bin", filter="data")
        bundle.extract("image.tar", OUT, filter="data")
    for name, target in _FILES.items():
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_GUEST / name, target)
    for module in ("overlay", "br_netfilter", "veth"):
        command("modprobe", module)
    command("systemctl", "daemon-reload")
    command("systemctl", "restart", "containerd")
    command("ctr", "-n", "k8s.io", "images", "import", OUT / "image.tar")
    command("systemctl", "start", "kubelet")
    _await("kubelet to make its cgroups", KUBEPODS.exists)


def install() -> None:
    """Install cgpause as on a node without a network, with the shipped configuration."""
    command(REPO / "scripts/install", "--wheels", WHEELS)


def set_cgpause(*, on: bool) -> None:
    """Stop cgpause; if `on`, start it again with an empty state folder: without history and learned peaks."""
    command("systemctl", "stop", "cgpause")
    if on:
        for path in STATE.iterdir():
            path.unlink()
        command("systemctl", "start", "cgpause")


def add(pods: Iterable[Pod]) -> None:
    """Write the pods' manifests, from which kubelet starts them."""
    for pod in pods:
        new = MANIFESTS / f".{pod.name}"  # kubelet does not read dot files
        new.write_text(json.dumps(pod.manifest()))
        new.rename(MANIFESTS / f"{pod.name}.json")


def await_running(pods: Sequence[Pod]) -> None:
    """Wait until all pods run."""
    _await(f"{', '.join(pod.name for pod in pods)} to run", lambda: all(one.running for one in look_at(pods)))


def look_at(pods: Iterable[Pod]) -> list[Outcome]:
    """Return the outcome of each pod; an empty one while kubelet does not answer or does not know the pod."""
    found = _ask_kubelet()
    return [found.get(pod.uid, Outcome()) for pod in pods]


def _ask_kubelet() -> dict[str, Outcome]:
    try:
        with urllib.request.urlopen("http://127.0.0.1:10255/pods", timeout=30) as answer:
            return outcomes(json.load(answer))
    except OSError:
        return {}


def count_restarts(pods: Iterable[Pod]) -> int:
    """Return the number of restarts of these pods' containers, once kubelet knows them all."""
    uids = [pod.uid for pod in pods]
    found: dict[str, Outcome] = {}

    def knows_all() -> bool:
        found.update(_ask_kubelet())
        return found.keys() >= set(uids)

    _await("kubelet's answer on the restarts of pods", knows_all)
    return sum(found[uid].restarts for uid in uids)


def remove(pods: Iterable[Pod]) -> None:
    """Remove pods' manifests and wait until their cgroups are gone."""
    gone = list(pods)
    for pod in gone:
        (MANIFESTS / f"{pod.name}.json").unlink(missing_ok=True)
    _await("pods to end", lambda: not any(pod.cgroup.exists() for pod in gone))


def remove_all() -> None:
    """Remove every pod that a case left behind."""
    for manifest in MANIFESTS.iterdir():
        manifest.unlink()
    tier = KUBEPODS / "kubepods-burstable.slice"
    _await("pods to end", lambda: not any(tier.glob("*-pod*")))


def capacity_bytes() -> int:
    """Return memory.max of kubepods, in bytes."""
    return int((KUBEPODS / "memory.max").read_text())


def oom_kills() -> int:
    """Return the number of processes in pods that the OOM killer has killed."""
    return read_keyed(KUBEPODS / "memory.events")["oom_kill"]


def pauses() -> dict[str, float]:
    """Return the number of pauses in cgpause's history and the longest one in seconds."""
    found = json.loads(command("cgpause", "history", "-ojson"))["pauses"]
    lengths = [pause["paused_s"] or 0.0 for pause in found]
    return {"pauses": len(lengths), "longest_s": round(max(lengths, default=0.0), 1)}


def facts() -> dict[str, Any]:
    """Return the versions and the size of this node."""

    def version(*words: str) -> str:
        found = re.search(r"\d+\.\d+[.\d]*", command(*words))
        return found[0] if found else "unknown"

    return {
        "kernel": os.uname().release,
        "kubelet": version("kubelet", "--version"),
        "containerd": version("containerd", "--version"),
        "runc": version("runc", "--version"),
        "systemd": command("systemctl", "--version").split()[1],
        "cpus": os.cpu_count() or 1,
        "kubepods_mib": capacity_bytes() >> 20,
    }
