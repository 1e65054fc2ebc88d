"""Helpers that run the command line in tests and check its effects."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from typer.testing import CliRunner, Result

from cgpause.cli.main import app
from cgpause.core.errors import Exit
from cgpause.core.model import PauseRecord
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from helpers.trees import FakeTree

GIB = 1 << 30
MIB = 1 << 20
S = 1_000_000_000
THROTTLED = "1001 100000"
Patch = pytest.MonkeyPatch
ABSENT = "/nonexistent/cgpause/config.toml"
NOBODY = 65534

HOSTILE = os.fsdecode(b"a\x1b[31m\n\xff")
ESCAPED = r"a\x1b[31m\n\udcff"
CONTENTS: dict[str, bytes | str | None] = {
    "missing": None,
    "empty": b"",
    "newline": b"\n",
    "garbage": bytes(range(256)) * 10,
    "nul": b"\x00" * 100,
    "words": b"max max max\n",
    "negative": b"-1\n",
    "huge": b"9" * 100_000,
    "biggest": b"18446744073709551615 18446744073709551615\n",
    "directory": "directory",
    "loop": "loop",
}


def invoke(*args: str) -> Result:
    """Run the command in this process and return its result; fail the test on any traceback."""
    result = CliRunner().invoke(app, args)
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        pytest.fail(f"{args} crashed:\n{''.join(traceback.format_exception(error))}")
    assert "Traceback" not in result.stderr
    assert result.exit_code in set(Exit)
    return result


def json_of(*args: str) -> dict[str, Any]:
    """Return what the command prints as JSON; it must succeed and say nothing on stderr."""
    result = invoke(*args, "-ojson")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def place(tree: FakeTree) -> list[str]:
    return ["--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir)]


def argv(tree: FakeTree, *args: str) -> list[str]:
    return [sys.executable, "-m", "cgpause", *place(tree), *args]


def run(tree: FakeTree, *args: str) -> Result:
    return invoke(*place(tree), *args)


def with_config(tree: FakeTree, text: str) -> list[str]:
    file = tree.folder / "config.toml"
    file.write_text(text)
    return ["--config", str(file)]


def frozen(pod: Path) -> bool:
    return (pod / "cgroup.freeze").read_text() == "1\n"


def record_of(tree: FakeTree, pod: Path) -> PauseRecord:
    with Cgroup(str(tree.root), str(pod.relative_to(tree.root))) as cgroup:
        record = ledger.read_record(cgroup)
    assert record is not None
    return record


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return all facts about a folder that a write would change: bytes, xattrs, modes, times, inodes."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        xattrs = {name: os.getxattr(path, name) for name in os.listxattr(path, follow_symlinks=False)}
        found[str(path)] = (content, xattrs, status.st_mode, status.st_mtime_ns, status.st_ino)
    return found


@contextmanager
def as_nobody() -> Iterator[None]:
    """Drop root's powers inside the block if the tests run as root; the kernel checks the effective uid."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def hostile_tree(tree: FakeTree) -> Path:
    """Move kubepods below a folder with terminal control characters in its name; return the folder of pod `web`."""
    web = tree.add_pod("web", cpu_max="50000 100000")
    (tree.root / HOSTILE).mkdir()
    tree.kubepods.rename(tree.root / HOSTILE / "kubepods.slice")
    return tree.root / HOSTILE / web.relative_to(tree.root)


def process(
    tree: FakeTree,
    *args: str | bytes,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.PIPE,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*argv(tree), *args],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **(env or {})},
        timeout=120,
        check=False,
    )


def overwrite(path: Path, content: bytes | str | None) -> None:
    """Replace a file or a folder by one of CONTENTS: bytes, a directory, a loop of links, or nothing."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "directory":
        path.mkdir()
    elif content == "loop":
        path.symlink_to(path.name)
