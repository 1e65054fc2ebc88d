"""The parts of `cgpause bug-report`, each collected from the host by itself, within limits of time and size."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from cgpause import __version__
from cgpause.cli.check import findings_values, run_checks
from cgpause.cli.context import Globals
from cgpause.cli.decision import decide_now
from cgpause.cli.explain import explain_values
from cgpause.cli.status import read_status
from cgpause.config.render import render_config
from cgpause.config.settings import Config
from cgpause.core.errors import CgpauseError, ConfigError, printable
from cgpause.kernel.cgroupfs import read_controllers
from cgpause.kernel.journal import UNIT
from cgpause.pods.discover import find_kubepods
from cgpause.pods.sampler import Sampler
from cgpause.telemetry import history

MAX_BYTES = 2 << 20
"""Size limit of one part."""
EVENTS = 1000
JOURNAL_LINES = 2000
_PART_S = 20.0
_WHOLE_S = 90.0
_COMMAND_S = 10.0
_WATCH_S = 1.0
_METRICS_UNIT = "cgpause-metrics.service"
_PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,Result,UnitFileState,FragmentPath,DropInPaths,NeedDaemonReload,NRestarts,MainPID,"
    "ExecMainStatus,ExecMainStartTimestamp,StatusText,ControlGroup,MemoryCurrent,MemoryMin,MemoryMax,CPUUsageNSec,"
    "TasksCurrent,OOMScoreAdjust,CapabilityBoundingSet,ReadWritePaths,WatchdogUSec"
)
"""The properties of a unit in the report. Its text may have passwords: in Environment=, in a comment."""
_BOOT_OPTIONS = re.compile(
    r"(?:psi|cgroup[\w.]*|swapaccount|systemd\.(?:unified|legacy)[\w.]*|init_on_\w+|transparent_hugepage|lockdown|"
    r"mitigations|nohz\w*|isolcpus|maxcpus|mem|numa\w*|hugepages\w*)(?:=.*)?"
)
_PACKAGES = ("typer", "click", "rich", "psutil", "inotify-simple")
_KUBEPODS_FILES = (
    "cgroup.controllers",
    "cgroup.subtree_control",
    "cgroup.stat",
    "cpu.max",
    "cpu.stat",
    "memory.current",
    "memory.max",
    "memory.high",
    "memory.swap.max",
    "memory.events",
    "memory.pressure",
)


@dataclass(frozen=True, slots=True)
class Document:
    """One file of the report: text, or a document for JSON; if `content` is None, `problem` has the reason."""

    name: str
    content: str | dict[str, Any] | list[dict[str, Any]] | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """File name, description and collecting function of a part."""

    name: str
    about: str
    collect: Callable[[], str | dict[str, Any] | list[dict[str, Any]]]


class NotHere(Exception):  # noqa: N818 - no error: something a host may well do without
    """Raised with the reason if the host does not have a part."""


def collect(sources: list[DocumentSource], part_s: float = _PART_S, whole_s: float = _WHOLE_S) -> list[Document]:
    """Collect each part for at most `part_s`, and all for `whole_s`; a part that hangs (disk, mount) is left behind."""
    deadline = time.monotonic() + whole_s
    return [_collect(source, min(part_s, deadline - time.monotonic())) for source in sources]


def _collect(source: DocumentSource, within_s: float) -> Document:
    found: list[Document] = []

    def work() -> None:
        try:
            found.append(Document(source.name, source.collect()))
        except (NotHere, CgpauseError) as e:
            found.append(Document(source.name, None, str(e)))
        except OSError as e:
            found.append(Document(source.name, None, f"{printable(str(e.filename or 'it'))}: {e.strerror}"))
        except Exception as e:  # noqa: BLE001 - what is broken here may be what the report is about
            found.append(Document(source.name, None, f"{type(e).__name__}: {e}"))

    if within_s <= 0:
        return Document(source.name, None, "the parts before it took all the time there is")
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(within_s)
    return found[0] if found else Document(source.name, None, f"it took longer than {within_s:.0f} s")


def sources_of(given: Globals, config: Config) -> list[DocumentSource]:
    """Return the sources of all parts of the report."""
    return [
        DocumentSource("version.txt", "cgpause, Python, packages, operating system", _versions),
        DocumentSource("kernel.txt", "kernel, and boot options that matter here", _kernel),
        DocumentSource("cgroups.txt", "cgroup mounts and controllers, kubepods", lambda: _cgroups(given)),
        DocumentSource("check.json", "cgpause check", lambda: _check(given, config)),
        DocumentSource("config.toml", "the configuration in effect", lambda: _config_text(given)),
        DocumentSource("status.json", "cgpause status", lambda: _status(given, config)),
        DocumentSource("explain.json", "cgpause explain", lambda: _explain(given, config)),
        DocumentSource("history.jsonl", f"the last {EVENTS} events of the history", lambda: _history(given)),
        DocumentSource("unit.txt", "the unit's properties", partial(_unit, UNIT)),
        DocumentSource("journal.txt", f"the last {JOURNAL_LINES} lines of its log", partial(_journal, UNIT)),
        DocumentSource("metrics-unit.txt", "properties of cgpause-metrics.service", partial(_unit, _METRICS_UNIT)),
        DocumentSource(
            "metrics-journal.txt", f"the last {JOURNAL_LINES} lines of its log", partial(_journal, _METRICS_UNIT)
        ),
        DocumentSource("pressure.txt", "/proc/pressure", _pressure),
        DocumentSource("meminfo.txt", "/proc/meminfo", lambda: read_text("/proc/meminfo")),
    ]


def _versions() -> str:
    lines = [f"cgpause {__version__}", f"python {platform.python_version()} at {sys.executable}"]
    for name in _PACKAGES:
        try:
            lines.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{name}: no metadata (not installed, or part of the Debian package)")
    try:
        lines += platform.freedesktop_os_release()["PRETTY_NAME"].splitlines()
    except (OSError, KeyError):
        lines.append("operating system unknown: no os-release")
    for command in (["systemctl", "--version"], ["dpkg-query", "-W", "cgpause"]):
        try:
            lines += _output(command).splitlines()[:1]
        except NotHere as e:
            lines.append(str(e))
    return "\n".join(lines) + "\n"


def _kernel() -> str:
    about = os.uname()  # the report leaves its nodename out
    lines = [f"{about.sysname} {about.release} {about.version} {about.machine}", f"CPUs {os.cpu_count()}"]
    try:
        options = [word for word in read_text("/proc/cmdline").split() if _BOOT_OPTIONS.fullmatch(word)]
        lines.append(f"boot options: {' '.join(options) or 'none that matters here'}")
    except OSError as e:
        lines.append(f"boot options: /proc/cmdline: {e.strerror}")
    return "\n".join(lines) + "\n"


def _cgroups(given: Globals) -> str:
    mounts = [line for line in read_text("/proc/self/mountinfo").splitlines() if re.search(r" - cgroup2? ", line)]
    lines = ["mounts:", *(mounts or ["none"])]
    try:
        root = given.root()
        lines += [f"root: {root}", f"controllers: {' '.join(read_controllers(root))}"]
        found = find_kubepods(root)
    except CgpauseError as e:
        return "\n".join([*lines, str(e)]) + "\n"
    if found is None:
        return "\n".join([*lines, "no kubepods here"]) + "\n"
    kubepods, driver = found
    try:
        lines.append(f"kubepods: {kubepods.path} ({driver} driver)")
        for name in _KUBEPODS_FILES:
            try:
                text = kubepods.read(name).decode("ascii", "replace").strip()
                lines.append(f"{name}: {text}" if "\n" not in text else f"{name}:\n{text}")
            except CgpauseError as e:
                lines.append(f"{name}: {e}")
    finally:
        kubepods.close()
    return "\n".join(lines) + "\n"


def _check(given: Globals, config: Config) -> str:
    findings = run_checks(given.cgroup_root, given.log_dir, config)
    # As text, because redaction takes each "name" in a document for the name of a pod.
    return json.dumps(findings_values(findings), indent=2) + "\n"


def configuration_of(given: Globals) -> Config:
    """Return the configuration, or the defaults if it is invalid; the part config.toml says so."""
    try:
        return given.config()
    except CgpauseError:
        return Config()


def _config_text(given: Globals) -> str:
    try:
        rendered = render_config(given.config())
    except ConfigError as e:
        # Without the invalid values, which may be secret.
        raise NotHere(
            f"the configuration has {len(e.problems)} mistakes: the other parts are made with the defaults; "
            "cgpause config --check says what is wrong"
        ) from e
    # Without the comments: the manual documents every option.
    return "".join(f"{line}\n" for line in rendered.splitlines() if line and not line.startswith("#"))


def _status(given: Globals, config: Config) -> dict[str, Any]:
    with given.tree(config) as tree, Sampler(tree) as sampler:
        return read_status(tree, sampler)


def _explain(given: Globals, config: Config) -> dict[str, Any]:
    known, _ = given.learned()  # no part has the file itself: it names workloads that are gone
    with given.tree(config, known) as tree, Sampler(tree) as sampler:
        return explain_values(*decide_now(tree, sampler, config, _WATCH_S, known.peaks), config)


def _history(given: Globals) -> list[dict[str, Any]]:
    path = given.history_path
    if path is None:
        raise NotHere("none is kept for another tree without --state-dir")
    events = history.tail(path, EVENTS)
    if not events:
        raise NotHere(f"nothing in {printable(path)}")
    return [json.loads(history.encode(event)) for event in events]


def _unit(unit: str) -> str:
    shown = _output(["systemctl", "show", f"--property={_PROPERTIES}", unit])
    if "LoadState=not-found" in shown:
        raise NotHere(f"{unit} is not installed")
    return shown


def _journal(unit: str) -> str:
    how = ["-q", "--no-pager", "--no-hostname", "--utc", "-o", "short-iso-precise", "-n", str(JOURNAL_LINES)]
    lines = _output(["journalctl", *how, f"--unit={unit}"])
    if not lines.strip():
        raise NotHere(f"the journal has nothing of {unit}, or nothing that may be read without root")
    return lines


def _pressure() -> str:
    return "".join(f"{name}:\n{read_text(f'/proc/pressure/{name}')}" for name in ("memory", "cpu", "io"))


def read_text(path: str) -> str:
    """Return the text of a host's file, up to MAX_BYTES characters."""
    with open(path, encoding="utf-8", errors="backslashreplace") as file:
        return file.read(MAX_BYTES)


def _output(command: list[str]) -> str:
    """Return the output of a command; raise NotHere if it fails without output, or takes too long."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=_COMMAND_S,
            check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"},
        )
    except subprocess.TimeoutExpired as e:
        raise NotHere(f"{command[0]} took longer than {_COMMAND_S:.0f} s") from e
    except OSError as e:
        raise NotHere(f"{command[0]}: {e.strerror}") from e
    if done.returncode and not done.stdout:
        said = done.stderr.strip().splitlines()[-1:]
        raise NotHere(f"{command[0]}: {printable(said[0]) if said else f'exit code {done.returncode}'}")
    return done.stdout
