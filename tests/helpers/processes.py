"""Processes in the containers of a made tree's pods, and shell scripts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Start = Callable[..., int]


@contextmanager
def starting() -> Iterator[Start]:
    """Start processes with a given environment, named as given; end them afterwards."""
    processes = []

    def started(env: dict[str, str] | dict[bytes, bytes], name: str = "") -> int:
        code = "import sys; print(flush=True); sys.stdin.read()"
        if name:
            code = f"open('/proc/self/comm', 'w').write({name!r}); {code}"
        argv = [sys.executable, "-ISc", code]
        process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid

    yield started
    for process in processes:
        process.communicate()


def containers(pod: Path) -> list[Path]:
    """Return the sandbox and the container of a pod."""
    return sorted(pod.glob("*.scope"))


def put(place: Path, *pids: int) -> None:
    """List processes in a cgroup."""
    place.mkdir(exist_ok=True)
    (place / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


def executable(path: Path, script: str) -> None:
    """Write a shell script, and make its folder if that is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def killed(pod: Path) -> set[str]:
    """Return the names of a pod's cgroups that were killed."""
    return {kill.parent.name for kill in pod.rglob("cgroup.kill") if kill.read_text() == "1\n"}
