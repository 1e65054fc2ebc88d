"""What the test bed needs of the host: progress lines, the cache folder, locks, and tools run with clean ends.

Leaves images, payloads and QEMU to the other `vm_*` modules.
"""

import fcntl
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

REPO = Path(__file__).resolve().parents[3]

# The kernel kills the child when we die, even by SIGKILL: no VM may outlive the run that wanted it.
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_started = time.monotonic()


class LabError(Exception):
    """The test bed itself failed: nothing is known about the command under test."""


class ToolError(LabError):
    """A tool we run on the host failed; the message carries the end of its output."""


def say(text: str) -> None:
    """Tell the person waiting what is going on, and since when."""
    print(f"vm [{time.monotonic() - _started:6.1f}s] {text}", file=sys.stderr, flush=True)


def cache_dir(env: Mapping[str, str] = os.environ) -> Path:
    """The folder that outlives a run."""
    if env.get("CGPAUSE_CACHE"):
        return Path(env["CGPAUSE_CACHE"])
    if env.get("XDG_CACHE_HOME"):
        return Path(env["XDG_CACHE_HOME"]) / "cgpause"
    return Path(env.get("HOME") or "~").expanduser() / ".cache" / "cgpause"


@contextmanager
def building(target: Path) -> Iterator[Path | None]:
    """Build the folder `target` once, whatever happens: yields an empty folder to fill, or None if it is there.

    The folder takes its name only when the caller is done, so a build that was cut short leaves nothing that
    looks finished, and two builders wait for each other.
    """
    if target.exists():
        yield None
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{target}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run to build {target.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            yield None
            return
        with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as scratch:
            work = Path(scratch) / "new"
            work.mkdir()
            yield work
            work.rename(target)


def end_by_signal() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP end this program by unwinding it, and nothing interrupts that."""
    for number in _ENDING:
        signal.signal(number, _unwind)


def _unwind(number: int, _frame: FrameType | None) -> NoReturn:
    for other in _ENDING:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def commit_of(repo: Path = REPO) -> str:
    """The short commit, "+dirty" where the tree is not it; docs/ does not count, for the results are written there."""
    git = functools.partial(subprocess.run, cwd=repo, capture_output=True, text=True, check=False)
    head = git(["git", "rev-parse", "--short", "HEAD"])
    if head.returncode:
        return "unknown"
    changed = git(["git", "status", "--porcelain", "--", ".", ":!docs"]).stdout.strip()
    return head.stdout.strip() + ("+dirty" if changed else "")


def tail(path: Path, lines: int = 40) -> str:
    """The last lines of a log, for a person."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(line.rstrip() for line in text.splitlines()[-lines:])


def run_tool(argv: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a tool to its end and return its standard output; what else it says is shown only if it fails."""
    with tempfile.NamedTemporaryFile(prefix="cgpause-", suffix=".log") as log:
        try:
            child = subprocess.Popen(
                [str(arg) for arg in argv],
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        except FileNotFoundError as e:
            raise ToolError(f"{argv[0]} is not installed") from e
        try:
            out, _ = child.communicate()
        except BaseException:
            # SIGTERM and patience: mmdebstrap has mounts to undo.
            child.terminate()
            try:
                child.wait(timeout=20)
            except subprocess.TimeoutExpired:
                child.kill()
            raise
        if child.returncode:
            seen = "\n".join((out + tail(Path(log.name))).splitlines()[-40:])
            raise ToolError(f"{argv[0]} failed with status {child.returncode}:\n{seen}")
        return out
