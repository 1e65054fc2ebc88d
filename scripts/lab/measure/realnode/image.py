"""Builds kubelet and an image for its pods on the host, once. Everything else in the guest is a Debian package."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

from lab.vm.apt_source import apt_options, host_source
from lab.vm.host import building, run_tool, say

SUITE = "trixie"
"""Debian release of the guest; its Go compiles kubelet."""
KUBELET_SUITE = "bookworm"
"""Last Debian release with kubelet in a source package."""
PACKAGES = ("conntrack", "containerd", "containernetworking-plugins", "ethtool", "iptables", "runc", "socat")
"""Debian packages that the node has in addition to every VM's."""
IMAGE = "localhost/pod:1"

_HERE = Path(__file__).parent
_HOOK = _HERE / "kubelet.sh"
_PAUSE = _HERE / "guest/pause.c"
_TOOLCHAIN = ("dpkg-dev", "golang-go", "golang-github-modern-go-reflect2-dev")
# Pods mount the guest's own /usr, so their image needs only /pause, the program of the sandbox.
_FOLDERS = ("dev", "etc", "lab", "out", "proc", "sys", "tmp", "usr")
_LINKS = {name: f"usr/{name}" for name in ("bin", "lib", "lib64", "sbin")}


def write_bundle(bundle: Path, cache: Path) -> None:
    """Write a tar with `kubelet` and `image.tar`; compile kubelet if the cache lacks it."""
    kubelet = ensure_kubelet(cache)
    with tempfile.TemporaryDirectory(prefix="cgpause-pause-") as folder, tarfile.open(bundle, "w") as tar:
        pause = Path(folder) / "pause"
        run_tool(["cc", "-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror", "-o", pause, _PAUSE])
        tar.add(kubelet, "kubelet")
        _add(tar, "image.tar", image_archive(pause.read_bytes()))


def ensure_kubelet(cache: Path) -> Path:
    """Return the path of kubelet's binary; compile it if the cache has none of the present recipe."""
    folder = cache / f"kubelet-{hashlib.sha256(_HOOK.read_bytes()).hexdigest()[:12]}"
    with building(folder) as work:
        if work is not None:
            say("compiling kubelet from Debian's source package (once; ten minutes or more)")
            _build_kubelet(work)
    return folder / "kubelet"


def _build_kubelet(work: Path) -> None:
    source, arch = host_source()
    tools, code = replace(source, suite=SUITE), replace(source, suite=KUBELET_SUITE)
    os.chmod(work.parent, 0o755)  # noqa: S103 - in unshare mode another uid has to look in
    with tempfile.TemporaryDirectory(prefix="cgpause-kubelet-") as scratch:
        os.chmod(scratch, 0o755)  # noqa: S103
        hook = Path(scratch) / "hook"
        hook.write_bytes(_HOOK.read_bytes())
        hook.chmod(0o755)
        # The host's /proc, /sys and /dev are mounted below the new root. In a mount namespace of its own they are gone
        # with the process, also if it is killed; so a removal of the folder does not reach the host's files.
        as_root = ("unshare", "--mount", "mmdebstrap", "--mode=root")
        run_tool(
            [
                *("nice", "-n", "15"),
                *(as_root if os.geteuid() == 0 else ("mmdebstrap", "--mode=unshare")),
                "--variant=minbase",
                "--format=null",
                f"--architectures={arch}",
                f"--include={','.join(_TOOLCHAIN)}",
                *apt_options(),
                f"--customize-hook={hook}",
                f"--customize-hook=download /build/kubelet {work / 'kubelet'}",
                tools.suite,
                "-",
                tools.line(),
                code.line().replace("deb ", "deb-src ", 1),
            ]
        )
    (work / "kubelet").chmod(0o755)


def image_archive(pause: bytes) -> bytes:
    """Return a container image of one layer, as a docker-archive for `ctr images import`."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        _add(tar, "pause", pause, mode=0o755)
        for name in _FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for name, target in _LINKS.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "Env": ["PATH=/usr/bin:/bin"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"]},
    }
    config_text = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(config_text).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        _add(tar, config_name, config_text)
        _add(tar, "layer.tar", layer.getvalue())
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return archive.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes, *, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    tar.addfile(member, io.BytesIO(data))
