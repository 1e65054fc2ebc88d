"""The running demo in `cgpause top`: in a terminal until the user quits, or for a picture."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console

from cgpause.cli.top.app import open_reader
from cgpause.cli.top.screen import render
from cgpause.cli.top.ui import Ui
from cgpause.cli.top.values import NodeView
from cgpause.config.load import load_config
from cgpause.core.clock import now_ns
from cgpause.core.paths import HISTORY_FILE
from lab.bed.arms import CONFIG
from lab.bed.daemon_process import DaemonLog

PICTURE_S = 60.0
"""Time in seconds before the picture, so that the sparklines have values; the picture also needs a paused pod."""
_EVERY_S = 1.0
_COLUMNS, _LINES = 120, 40
_FONT = re.compile(r" *@font-face \{[^}]*\}\n*")
"""Font in rich's SVG that a viewer would fetch from a server; any monospaced font will do."""

Goes = Callable[[DaemonLog], bool]
"""A function that is called several times a second; it returns False at the end."""
Look = Callable[[Path, Path, Path], AbstractContextManager[Goes]]
"""A context manager that shows a cgroup root, with its log folder and the daemon's state folder."""


@contextlib.contextmanager
def in_terminal(root: Path, log_dir: Path, state: Path) -> Iterator[Goes]:
    """Show the dashboard in this terminal until the user quits."""
    argv = [sys.executable, "-m", "cgpause", "--cgroup-root", str(root), "--log-dir", str(log_dir)]
    top = subprocess.Popen([*argv, "--config", str(CONFIG), "--state-dir", str(state), "top"])
    try:
        yield lambda _: top.poll() is None
    finally:
        top.terminate()  # it restores the terminal
        top.wait()


def for_picture(file: Path) -> Look:
    """Save a frame as SVG as soon as it has a paused pod and sparklines."""

    @contextlib.contextmanager
    def look(root: Path, log_dir: Path, state: Path) -> Iterator[Goes]:
        begun_s = time.monotonic()
        due_s = begun_s
        history = str(state / HISTORY_FILE)
        with open_reader(str(root), str(log_dir), load_config(str(CONFIG), must_exist=True), history) as reader:

            def goes_on(log: DaemonLog) -> bool:
                nonlocal due_s
                now_s = time.monotonic()
                if now_s < due_s:
                    return True
                due_s = now_s + _EVERY_S
                snapshot = reader.read(now_ns())
                if now_s < begun_s + PICTURE_S or not log.paused_now:
                    return True
                file.write_text(drawn(snapshot))
                return False

            yield goes_on

    return look


def drawn(snapshot: NodeView) -> str:
    """Return the dashboard's screen as SVG."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(file=nowhere, record=True, color_system="truecolor", width=_COLUMNS, height=_LINES)
        console.print(render(snapshot, Ui(), _COLUMNS, _LINES), soft_wrap=True)
        picture = _FONT.sub("", console.export_svg(title="cgpause top"))
    # Without it, librsvg drops the blanks at the start and end of each text.
    return picture.replace("<svg ", '<svg xml:space="preserve" ', 1)
