"""cgpause as `scripts/install` puts it on a node: its files, its history, and faults of its surroundings."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from helpers.trees import wait_until
from vm.slices import REPO, run, show

PREFIX = Path("/usr/local/lib/cgpause")
COMMAND = Path("/usr/local/bin/cgpause")
UNIT = Path("/etc/systemd/system/cgpause.service")
METRICS_UNIT = Path("/etc/systemd/system/cgpause-metrics.service")
RUN = Path("/run/cgpause")
SHARED = [
    Path("/etc/fish/completions/cgpause.fish"),
    Path("/usr/local/share/bash-completion/completions/cgpause"),
    Path("/usr/local/share/man/man1/cgpause.1"),
    Path("/usr/local/share/man/man5/cgpause.toml.5"),
    Path("/usr/local/share/zsh/site-functions/_cgpause"),
]
CLEANED_UP = 'reason="cgpause left it paused"'


def install(*options: str, status: int = 0) -> str:
    return run(REPO / "scripts/install", *options, status=status)


def pauses(*options: str) -> list[dict[str, object]]:
    """Return the pauses that `cgpause history` prints."""
    found: list[dict[str, object]] = json.loads(run(COMMAND, "history", "-ojson", *options))["pauses"]
    return found


def last_pauses(state: str, *names: str) -> list[dict[str, object]]:
    """Return the last pause of each pod once the history has all in this state: after the write tests wait for."""
    found: list[dict[str, object]] = []

    def are_noted() -> bool:
        last = {pause["pod"]: pause for pause in pauses()}
        found[:] = [last.get(name, {}) for name in names]
        return all(pause.get("state") == state for pause in found)

    wait_until(are_noted, f"the history to have {', '.join(names)} {state}")
    return found


def last_pause(name: str, state: str) -> dict[str, object]:
    """Return a pod's last pause as `last_pauses` does."""
    return last_pauses(state, name)[0]


def systemd_is_up_to_date(*units: str) -> bool:
    """Return True if systemctl needs no daemon-reload; otherwise it would ask for one at each call."""
    return {show("NeedDaemonReload", unit) for unit in ("cgpause", *units)} == {"no"}


@contextlib.contextmanager
def drop_in(unit: Path, text: str) -> Iterator[None]:
    """Have the manual's drop-in, override.conf, for a unit during the block; afterwards restart the unit without it.

    The caller restarts the unit for the drop-in to count.
    """
    path = Path(f"{unit}.d/override.conf")
    path.parent.mkdir()
    path.write_text(text)
    try:
        run("systemctl", "daemon-reload")
        yield
    finally:
        shutil.rmtree(path.parent)
        run("systemctl", "daemon-reload")
        run("systemctl", "restart", unit.name)


def unit_options(options: str) -> AbstractContextManager[None]:
    """Set these options by the drop-in of docs/operations.md."""
    return drop_in(UNIT, f'[Service]\nEnvironment="CGPAUSE_OPTIONS={options}"\n')


@contextlib.contextmanager
def python_upgraded(how: str) -> Iterator[None]:
    """Break the virtual environment as a distribution upgrade does: its Python is gone, or is a later version."""
    current = (PREFIX / "current").resolve()
    [lib] = current.glob("lib/python3.*")
    target = os.readlink(current / "bin/python")
    if how == "gone":
        (current / "bin/python").unlink()
        (current / "bin/python").symlink_to("/usr/bin/python3.1")
    else:
        lib.rename(lib.with_name("python3.1"))
    try:
        yield
    finally:
        if how == "gone":
            (current / "bin/python").unlink()
            (current / "bin/python").symlink_to(target)
        else:
            lib.with_name("python3.1").rename(lib)


def entries(*matches: str) -> list[dict[str, str]]:
    """Return the unit's matching journal entries, with their fields."""
    run("journalctl", "--sync")
    return [json.loads(line) for line in run("journalctl", "-q", "-o", "json", "--unit=cgpause", *matches).splitlines()]
