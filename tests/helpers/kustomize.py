"""kustomize, from PATH or from Debian."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from lab.vm.apt_source import host_source
from lab.vm.host import building, cache_dir, run_tool

SUITE = "trixie"
"""The first stable Debian with kustomize. Its program runs on Debian 12, too (libc6 2.34)."""


def build(folder: Path) -> list[dict[str, Any]]:
    """Return the documents that kustomize makes of a folder."""
    program = shutil.which("kustomize") or _from_debian()
    return list(yaml.safe_load_all(run_tool([program, "build", folder])))


def _from_debian() -> Path:
    target = cache_dir() / f"kustomize-{SUITE}"
    with building(target) as work:
        if work is not None:
            with tempfile.TemporaryDirectory(prefix="cgpause-apt-") as scratch:
                _download(Path(scratch))
                [package] = Path(scratch).glob("kustomize_*.deb")
                run_tool(["dpkg-deb", "--extract", package, work])
    return target / "usr/bin/kustomize"


def _download(folder: Path) -> None:
    source, _ = host_source()
    (folder / "sources.list").write_text(f"{replace(source, suite=SUITE).line()}\n")
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    settings = {
        "APT::Sandbox::User": "root",  # the folder is ours alone
        "Dir::Cache": folder / "cache",
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
    }
    apt = ["apt-get", *(f"-o{name}={value}" for name, value in settings.items())]
    run_tool([*apt, "update"])
    run_tool([*apt, "download", "kustomize"], cwd=folder)
