"""The loop of the live dashboard: it joins reader, keys, signals and terminal.

Once a second the loop reads a snapshot and draws it; it handles keys and signals at once. It acts on pods through
`byhand`, as the commands do, and only after the operator's yes.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from rich.console import Console
from rich.segment import SegmentLines

from cgpause.cli import byhand
from cgpause.cli.byhand import Note
from cgpause.cli.context import Globals
from cgpause.cli.exits import exits, fail, seconds
from cgpause.cli.top.keys import LONE_ESC_S, REDRAW, KeyDecoder
from cgpause.cli.top.reader import Reader
from cgpause.cli.top.screen import render, settled, visible_rows
from cgpause.cli.top.terminal import Signals, Terminal
from cgpause.cli.top.ui import PAST, Act, Deed, Mode, Ui, update
from cgpause.cli.top.values import NodeView, SeenPod
from cgpause.config.settings import Config
from cgpause.core.clock import now_ns
from cgpause.core.errors import CgpauseError, ConfigError, Exit, HostError, KernelError, ProtectedError, printable
from cgpause.core.model import CgroupId, Mechanism
from cgpause.kernel.process import raise_descriptor_limit
from cgpause.telemetry.events import Event
from cgpause.telemetry.learned import Learned

Load = Callable[[], Config]
"""Callback that loads the configuration; raises ConfigError if it is invalid."""
Keep = Callable[[Event], str | None]
"""Callback that records an event and returns its error or None; it must not print, as it would disturb the screen."""

COMMAND = "cgpause top"
_LONGEST_WAIT_S = 3600
"""Longest time for one `poll`, which takes at most 24 days."""
_OWN_SHARE = 0.25
"""Largest share of the time spent on refreshes; on a busy or slow node they come less than once a second."""
_RELOAD_S = 5.0
"""Interval of loading the configuration again, which takes 2 ms."""
_BLIND_S = 0.1
"""If drawing a question takes longer (Ctrl-S stops the terminal), keys typed meanwhile are no answer to it."""
_ONE_FRAME = "cgpause status prints the node once"


def show(given: Globals, interval: str) -> None:
    """Show the dashboard until the operator quits."""
    every_s = seconds(interval, "--interval")
    refusal = why_not_live()
    if refusal is not None:
        fail(refusal, Exit.USAGE)
    with exits():
        config = given.config()
        known, _ = given.learned()
        fd_in, fd_out = sys.stdin.fileno(), sys.stdout.fileno()
        with open_reader(given.root(), given.log_dir, config, given.history_path, known) as reader:
            try:
                with Signals().caught() as signals, Terminal(fd_in, fd_out, Console(highlight=False)) as terminal:
                    _Live(reader, given.config, given.keep, terminal, signals, every_s).run(fd_in)
            except (OSError, termios.error) as e:
                number = e.args[0]  # termios.error is no OSError, but has the same arguments
                if number not in (errno.EIO, errno.EPIPE):  # the terminal has hung up
                    raise HostError(f"cannot draw on this terminal: {os.strerror(number)}; {_ONE_FRAME}") from e


def why_not_live() -> str | None:
    """Return the reason why stdin and stdout cannot show the live dashboard, or None if they can."""
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):  # None: closed
        return f"top is drawn on a terminal, and this is none; {_ONE_FRAME}"
    if os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
        return f"top moves the cursor, which this terminal cannot (TERM); {_ONE_FRAME}"
    return None


def open_reader(root: str, log_dir: str, config: Config, history: str | None, known: Learned | None = None) -> Reader:
    """Return a reader, with the descriptor limit raised for many pods and without log lines across the screen."""
    logging.getLogger("cgpause").addHandler(logging.NullHandler())
    raise_descriptor_limit()
    return Reader(root, log_dir, config, history, known)


@dataclass
class _Live:
    reader: Reader
    load: Load
    keep: Keep
    terminal: Terminal
    signals: Signals
    every_s: float

    def __post_init__(self) -> None:
        self.decoder = KeyDecoder()
        self.size = self.terminal.size()
        self.ui = Ui()
        self.due_s = self.reload_at_s = 0.0
        self.problem: str | None = None
        """Why the configuration could not be loaded again."""
        self.snapshot = self._read()

    def run(self, fd_in: int) -> None:
        """Run the loop until the operator quits or the terminal hangs up."""
        poll = select.poll()
        for fd in (fd_in, self.signals.fd):
            poll.register(fd, select.POLLIN)
        self._draw()
        while True:
            ready = self._wait(poll)
            if self.signals.fd in ready and not self._answer(self.signals.take()):
                return
            keys = self._keys(fd_in, ready)
            if keys is None or not self._press(keys):
                return
            if time.monotonic() >= self.due_s:
                self.snapshot = self._read()
            elif keys:
                self._take_detail()
            elif not ready:
                continue
            self._draw()

    def _wait(self, poll: select.poll) -> list[int]:
        timeout_s = min(max(self.due_s - time.monotonic(), 0.0), _LONGEST_WAIT_S)
        if self.decoder.pending:  # also if a refresh is due: it must not cut a key in two
            timeout_s = LONE_ESC_S
        return [fd for fd, _ in poll.poll(int(timeout_s * 1000) + 1)]

    def _keys(self, fd_in: int, ready: list[int]) -> list[str] | None:
        """Return the typed keys, or None if the terminal has hung up."""
        if fd_in in ready:
            data = self.terminal.read()
            return None if data is None else self.decoder.feed(data)
        return [] if ready else self.decoder.flush()

    def _press(self, keys: list[str]) -> bool:
        """Handle keys; return False if the dashboard is to end."""
        for key in keys:
            if key == REDRAW:
                self.terminal.clear()
            rows = visible_rows(self.snapshot, self.ui, *self.size)
            self.ui, intent = update(self.ui, key, self.snapshot, rows)
            if self.ui.mode is Mode.QUIT:
                return False
            if intent is not None:
                message, failed = act(self.reader, self.load, self.keep, intent)
                self.ui = replace(self.ui, message=message, failed=failed)
                self.due_s = 0.0  # show the result at once
            if self.ui.asked is not None:
                self._ask()
                break
        return True

    def _ask(self) -> None:
        """Draw the question, and drop keys typed before it was visible: they are no answer to it."""
        frame = self._render()
        self.decoder.flush()
        self.terminal.forget_input()
        begun_s = time.monotonic()
        self.terminal.draw(frame.lines)
        if time.monotonic() - begun_s > _BLIND_S:
            self.terminal.forget_input()

    def _answer(self, came: set[int]) -> bool:
        """Handle signals; return False if the dashboard is to end."""
        if came & Signals.QUIT:
            return False
        if signal.SIGTSTP in came:
            self.terminal.leave()
            self.signals.suspend()
            self.terminal.enter()
        elif signal.SIGCONT in came:  # after SIGSTOP, which we cannot catch: the shell has used the terminal since
            self.terminal.enter()
        if came & {signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH}:
            self.size = self.terminal.size()
            self.terminal.clear()
        return True

    def _read(self) -> NodeView:
        started_s = time.monotonic()
        if started_s >= self.reload_at_s:
            self.reload_at_s, self.problem = started_s + _RELOAD_S, self._reload()
        snapshot = self.reader.read(now_ns(), self._described())
        snapshot = replace(snapshot, error=snapshot.error or self.problem)
        took_s = time.monotonic() - started_s
        self.due_s = started_s + max(self.every_s, took_s / _OWN_SHARE)
        return snapshot

    def _reload(self) -> str | None:
        """Load the configuration again, as the daemon does on a reload; return the error if it is broken."""
        try:
            config = self.load()
        except ConfigError as e:
            return broken_text(e)
        if config != self.reader.tree.config:
            self.reader.configure(config)
        return None

    def _described(self) -> CgroupId | None:
        return self.ui.selected if self.ui.describing else None

    def _take_detail(self) -> None:
        """Read the details of the described pod at once if the last key changed it."""
        key, known = self._described(), self.snapshot.detail
        if key is not None and (known is None or known.key != key):
            self.snapshot = replace(self.snapshot, detail=self.reader.detail(key, now_ns()))

    def _draw(self) -> None:
        self.terminal.draw(self._render().lines)

    def _render(self) -> SegmentLines:
        self.ui = settled(self.ui, self.snapshot, *self.size)
        return render(self.snapshot, self.ui, *self.size)


def broken_text(error: ConfigError) -> str:
    """Return the mistakes in the configuration in one line."""
    return f"the configuration is broken: {'; '.join(map(printable, str(error).splitlines()))}"


def act(reader: Reader, load: Load, keep: Keep, intent: Act) -> tuple[str, bool]:
    """Carry out a confirmed action; return the message, and True if it failed."""
    problems: list[str | None] = []
    results = [_do(reader, load, lambda event: problems.append(keep(event)), intent.deed, pod) for pod in intent.pods]
    said = [message for message, failed in results if failed or len(results) == 1]
    if len(results) > 1:
        done = len(results) - len(said)
        said.insert(0, f"{done} pod{'s' * (done != 1)} {PAST[intent.deed]}")
    return "; ".join([*said, *dict.fromkeys(filter(None, problems))]), any(failed for _, failed in results)


def _do(reader: Reader, load: Load, note: Note, deed: Deed, pod: SeenPod) -> tuple[str, bool]:
    tracked = reader.tree.pods.get(pod.key)
    label = pod.label
    if tracked is None:
        return f"{label} is gone", True
    try:
        if deed is Deed.RESUME:
            return f"{label} {byhand.resume(tracked, note, command=COMMAND)}", False
        # An operator may have protected the pod since the last refresh: by a rule, or by a mark on the pod.
        reader.configure(load())
        reader.tree.request_word_again(tracked)  # its container may have come after its cgroup, and names the word
        reader.tree.take_words(now_ns())
        reader.tree.update_facts(tracked, now_ns())
        mechanism = Mechanism.FREEZE if deed is Deed.FREEZE else None
        return f"{label} {byhand.pause(tracked, reader.tree, note, command=COMMAND, mechanism=mechanism)}", False
    except ConfigError as e:
        return f"{label} stays as it is: {broken_text(e)}", True
    except CgpauseError as e:
        # A failed resume has the kernel's error as its cause.
        refused = [one for one in (e, e.__cause__) if isinstance(one, KernelError)]
        if any(one.errno in (errno.EACCES, errno.EPERM) for one in refused):
            return f"not permitted: run cgpause top as root to {deed} pods ({e})", True
        about = "" if isinstance(e, ProtectedError) else f"{label}: "
        return f"{about}{printable(str(e))}", True
