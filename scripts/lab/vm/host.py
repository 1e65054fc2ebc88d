"""The host's part of the test bed: progress lines, the cache folder, locks, and tools with clean ends."""

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
DIRTY = "+dirty"
"""End of a commit's name where the working tree differs from it."""

# The kernel kills the child if this process dies, even by SIGKILL: no VM may outlive its run.
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_started = time.monotonic()


class LabError(Exception):
    """The test bed failed; the command under test has no result."""


class ToolError(LabError):
    """A tool on the host failed; the message has the end of its output."""


def say(text: str) -> None:
    """Print a progress line with the time since the start."""
    print(f"lab [{time.monotonic() - _started:6.1f}s] {text}", file=sys.stderr, flush=True)


def cache_dir() -> Path:
    """Return the cache folder, which outlives a run."""
    if own := os.environ.get("CGPAUSE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cgpause"


@contextmanager
def building(target: Path) -> Iterator[Path | None]:
    """Build the folder `target` once: yield an empty folder to fill, or None if the target exists.

    The folder gets its name after the caller has filled it, so an interrupted build leaves nothing that looks finished.
    Two builders wait for each other.
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
    """Let SIGINT, SIGTERM and SIGHUP end this program by an exception; no further signal interrupts it."""
    for number in _ENDING:
        signal.signal(number, _unwind)


def _unwind(number: int, _frame: FrameType | None) -> NoReturn:
    for other in _ENDING:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def commit_of(repo: Path = REPO) -> str:
    """Return the short commit, with "+dirty" if the tree differs; docs/ does not count: results go there."""
    return _revision(repo, ["--short", "HEAD"], [".", ":!docs"])


def trees_of(folders: Sequence[str], repo: Path = REPO) -> str:
    """Return the hashes of git's trees of these folders, with "+dirty" if one of the folders differs."""
    return _revision(repo, [f"HEAD:{folder}" for folder in folders], folders)


def _revision(repo: Path, words: Sequence[str], paths: Sequence[str]) -> str:
    git = functools.partial(subprocess.run, cwd=repo, capture_output=True, text=True, check=False)
    found = git(["git", "rev-parse", *words])
    if found.returncode:
        return "unknown"
    changed = git(["git", "status", "--porcelain", "--", *paths]).stdout.strip()
    return "-".join(found.stdout.split()) + (DIRTY if changed else "")


def tail(path: Path) -> str:
    """Return the last 40 lines of a log."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(line.rstrip() for line in text.splitlines()[-40:])


def run_tool(argv: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a tool and return its standard output; its other output is shown only after a failure."""
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
            # SIGTERM and a wait: mmdebstrap has to undo mounts.
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
