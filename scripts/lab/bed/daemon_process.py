"""The daemon as a child process: the lab starts and stops it as systemd does, and reads its log."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.bed.kubepods import read_keyed, remove_tree, spawn_into
from lab.vm.host import REPO, LabError, tail

_LINE = re.compile(r"(?:<\d>|\w+: )(?P<verb>paused|resumed|sacrificed|started|stopped) (?P<fields>.*)")
_FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')
OOM_SCORE_ADJ = -999
"""oom_score_adj of the daemon, cgpause or a peer: when the node runs out of memory, the kernel kills pods instead."""
_START_SECONDS = 120
_STOP_SECONDS = 120


@dataclass(slots=True)
class DaemonLog:
    """Counts from the daemon's log so far."""

    started: bool = False
    pauses: int = 0
    resumes: int = 0
    sacrifices: int = 0
    ended_pauses: list[tuple[str, float]] = field(default_factory=list)
    """UID of the pod, and duration in seconds, of each ended pause."""
    paused_now: set[str] = field(default_factory=set)

    @property
    def paused_s(self) -> list[float]:
        """Durations of the ended pauses in seconds."""
        return [paused_s for _, paused_s in self.ended_pauses]

    def take(self, line: str) -> None:
        """Count one line; ignore lines of other kinds."""
        match = _LINE.fullmatch(line)
        if match is None:
            return
        # The inverse of `cgpause.kernel.logfmt.fields`.
        found = _FIELD.findall(match["fields"])
        values = {key: json.loads(value) if value.startswith('"') else value for key, value in found}
        match match["verb"]:
            case "started":
                self.started = True
            case "paused":
                self.pauses += 1
                self.paused_now.add(values["uid"])
            case "resumed":
                self.resumes += 1
                self.paused_now.discard(values["uid"])
                self.ended_pauses.append((values["uid"], float(values.get("paused_s", "0"))))
            case "sacrificed":
                self.sacrifices += 1


class DaemonProcess:
    """`python -m cgpause.daemon` in a cgroup of its own beside kubepods, like a service's.

    `options` are added to its command line. As a context manager it waits for the daemon's start, and closes at the
    end.
    """

    def __init__(self, parent: Path, log_dir: Path, config: Path, log_file: Path, options: Sequence[str] = ()) -> None:
        self.log = DaemonLog()
        self._log_file = log_file
        self._cgroup = parent / "cgpause.service"
        self._cgroup.mkdir()
        argv = [sys.executable, "-m", "cgpause.daemon", "--config", str(config)]
        argv += ["--cgroup-root", str(parent), "--log-dir", str(log_dir), *options]
        # Without a notification socket: an inherited one belongs to another unit.
        env = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "JOURNAL_STREAM")}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(REPO), env.get("PYTHONPATH"))))
        log_file.write_text("")
        self._reader = open(log_file, encoding="utf-8", errors="replace")  # noqa: SIM115 - closed by close()
        self._rest = ""
        self.pid, self._pidfd = spawn_into(self._cgroup, argv, log_file, env, oom_score_adj=OOM_SCORE_ADJ)
        self._code: int | None = None

    def __enter__(self) -> Self:
        try:
            self.await_start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, _type: type[BaseException] | None, _e: BaseException | None, _tb: TracebackType | None) -> None:
        self.close()

    @property
    def cpu_s(self) -> float:
        """CPU time that the daemon has used, in seconds."""
        return read_keyed(self._cgroup / "cpu.stat")["usage_usec"] / 1e6

    def read_log(self) -> DaemonLog:
        """Count the lines logged since the last call, and return the log."""
        *lines, self._rest = (self._rest + self._reader.read()).split("\n")
        for line in lines:
            self.log.take(line)
        return self.log

    def await_start(self) -> None:
        """Wait until the daemon logs that it has started.

        Raises:
            LabError: the daemon ended, or took too long.
        """
        for _ in range(_START_SECONDS * 20):
            if self.read_log().started:
                return
            if self._wait(0.05) is not None:
                break
        raise LabError(f"the daemon did not start:\n{tail(self._log_file)}")

    def stop(self) -> int:
        """Send SIGTERM and return the exit code (minus the signal number, if a signal ended the daemon).

        Raises:
            LabError: the daemon did not stop in time.
        """
        if self._code is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
        code = self._wait(_STOP_SECONDS)
        self.read_log()
        if code is None:
            raise LabError(f"the daemon did not stop within {_STOP_SECONDS} s:\n{tail(self._log_file)}")
        return code

    def close(self) -> None:
        """Kill the daemon if it still runs, and remove its cgroup and descriptors."""
        remove_tree(self._cgroup)
        self._wait(_STOP_SECONDS)
        os.close(self._pidfd)
        self._reader.close()

    def _wait(self, seconds: float) -> int | None:
        if self._code is None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if poll.poll(int(seconds * 1000)):
                self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code
