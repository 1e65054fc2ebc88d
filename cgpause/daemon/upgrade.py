"""Checks the configuration before an upgrade, for scripts/install and the Debian package.

    python -m cgpause.daemon.upgrade

The new version checks it with the options that the installed unit gives to the daemon: a drop-in may name another file.
With a bad configuration the new daemon would exit with 2, and systemd would not start it again.
"""

from __future__ import annotations

import logging
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from glob import glob

from cgpause.core.errors import Exit, printable
from cgpause.daemon import reload
from cgpause.kernel import logfmt
from cgpause.kernel.journal import UNIT

log = logging.getLogger(__name__)

_OPTIONS = "CGPAUSE_OPTIONS="
_SHOW = ("systemctl", "show", "--property=Environment,EnvironmentFiles", UNIT)
_SHOW_S = 30


def main() -> int:
    """Return 0 if the daemon would accept options and configuration, else log the problems and return their status."""
    logfmt.set_up(verbose=False)
    try:
        options = unit_options()
    except subprocess.TimeoutExpired:
        log.error("systemd does not answer within %d s: %s", _SHOW_S, " ".join(_SHOW))
        return Exit.CHECK_FAILED
    try:
        status = reload.main(shlex.split(options))
    except ValueError as e:  # a quote without its end
        log.error("the options cannot be read: %s", e)
        status = Exit.USAGE
    except SystemExit as e:  # the new version does not know an option
        status = Exit.USAGE if e.code else Exit.DONE
    if status:
        log.error("the new version was to use %s%s (systemctl cat cgpause)", _OPTIONS, printable(options))
    return status


def unit_options() -> str:
    """Return CGPAUSE_OPTIONS as systemd has loaded it; empty without systemd (a chroot) or without the unit.

    Raises:
        subprocess.TimeoutExpired: systemd hangs.
    """
    try:
        shown = subprocess.run(_SHOW, capture_output=True, text=True, errors="replace", timeout=_SHOW_S, check=False)
    except OSError:
        return ""
    values: dict[str, str] = {}
    for line in shown.stdout.splitlines():
        name, _, value = line.partition("=")
        values[name] = f"{values.get(name, '')} {value}"
    found = [word for word in _words(values.get("Environment", "")) if word.startswith(_OPTIONS)]
    for pattern in re.findall(r"(/.*?) \(ignore_errors=", values.get("EnvironmentFiles", "")):  # they come last
        found += [value for path in sorted(glob(pattern)) for value in _assigned(path)]
    return found[-1].removeprefix(_OPTIONS) if found else ""


def _assigned(path: str) -> list[str]:
    """Return the assignments of CGPAUSE_OPTIONS in a file of EnvironmentFile=, unquoted; none if it cannot be read."""
    found: list[str] = []
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file.read().replace("\\\n", "").splitlines():
            name, is_set, value = line.strip().partition(_OPTIONS)
            if is_set and not name:
                with suppress(ValueError):  # without its end a quote is part of the value; `main` reports it
                    value = "".join(shlex.split(value)) if value[:1] in ("'", '"') else value
                found.append(_OPTIONS + value)
    return found


def _words(text: str) -> list[str]:
    r"""Return the words of a line that systemctl shows, unquoted: it quotes words with special characters.

    It is shell_maybe_quote() in systemd's src/basic/escape.c, since 247. shlex would leave the \ before $.
    """
    found = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', text)
    return [plain or re.sub(r"\\(.)", r"\1", quoted) for quoted, plain in found]


if __name__ == "__main__":
    sys.exit(main())
