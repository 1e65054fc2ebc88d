"""`cgpause bug-report`: what somebody needs who was not there, in one file, without the names in it.

Every part is collected by itself, within limits of time and size; one that fails leaves its reason in its place. What
is hidden, and how, is `redact`'s.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import json
import os
import platform
import re
import secrets
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cgpause import __version__, history, output
from cgpause.arguments import history_path
from cgpause.cgroupfs import read_controllers
from cgpause.check import run_checks
from cgpause.config import Config, render_config
from cgpause.errors import CgpauseError, ConfigError, KernelWriteError, printable
from cgpause.explain import decide_now
from cgpause.given import Globals
from cgpause.journal import UNIT
from cgpause.names import read_names
from cgpause.redact import Names, names_in_labels, redact, redact_values, users_in
from cgpause.sampler import Sampler
from cgpause.tree import find_kubepods
from cgpause.view import read_status

FOLDER = "cgpause-bug-report"
_README = "README.txt"
_MISSING = "not collected: "
MAX_BYTES = 2 << 20
"""Of one part."""
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
_BOOT_OPTIONS = re.compile(
    r"(?:psi|cgroup[\w.]*|swapaccount|systemd\.(?:unified|legacy)[\w.]*|init_on_\w+|transparent_hugepage|lockdown|"
    r"mitigations|nohz\w*|isolcpus|maxcpus|mem|numa\w*|hugepages\w*)(?:=.*)?"
)
_PACKAGES = ("typer", "click", "rich", "psutil", "inotify-simple", "prometheus-client")
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
class Part:
    """A file of the report: text, or a document that becomes JSON; else why there is none."""

    name: str
    content: str | dict[str, Any] | list[dict[str, Any]] | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """How a part is collected, and what it is."""

    name: str
    about: str
    collect: Callable[[], str | dict[str, Any] | list[dict[str, Any]]]


class NotHere(Exception):  # noqa: N818 - no error: something a host may well do without
    """Why there is nothing to collect."""


def write(given: Globals, path: str | None, *, keep_names: bool) -> Iterator[str]:
    """Write the report; yields what to tell about it, line by line.

    Raises:
        KernelWriteError: the file is there already, or cannot be written. Nothing is left of it then.
    """
    at = time.time()
    file = path or time.strftime("cgpause-bug-report-%Y%m%d-%H%M%S.tar.gz", time.gmtime(at))
    try:
        # First, so that whoever named a wrong file need not wait to hear of it. O_EXCL follows no link either.
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as e:
        hint = "name another file" if isinstance(e, FileExistsError) else "name a file that can be made"
        raise KernelWriteError(file, e, hint=hint) from e
    try:
        with open(fd, "wb") as target:
            config = _configuration(given)
            sources = _sources(given, config)
            texts = report(collect(sources), names_of(given, config), keep_names=keep_names)
            about = {source.name: source.about for source in sources}
            _pack(target, {_README: _readme(at, about, keep_names=keep_names), **texts}, int(at))
    except BaseException as e:
        os.unlink(file)
        if isinstance(e, OSError):
            raise KernelWriteError(file, e) from e
        raise
    yield f"wrote {printable(file)}:"
    for name, text in texts.items():
        line = text.partition("\n")[0]
        yield f"  {name:<20} {printable(line) if line.startswith(_MISSING) else about[name]}"
    hidden = "Names are as they were." if keep_names else "Names that are known here were replaced by hashes."
    yield f"{hidden} Look at all of it before you post it:"
    yield f"  tar -xzOf {printable(file)} | less"


# --- from parts to texts ---------------------------------------------------------------------------------------------


def report(parts: list[Part], names: Names, *, keep_names: bool, salt: bytes | None = None) -> dict[str, str]:
    """Every part as the text that goes out, by its file's name. The salt is thrown away with this call."""
    salt = secrets.token_bytes(16) if salt is None else salt
    names = _with_those_in(parts, names)
    texts = {}
    for part in parts:
        if part.problem is not None:
            text = _MISSING + (part.problem if keep_names else redact(part.problem, names, salt)) + "\n"
        else:
            text = _as_text(part.content, names, None if keep_names else salt)
        texts[part.name] = _bounded(text, keep_end="journal" in part.name)
    return texts


def _as_text(content: object, names: Names, salt: bytes | None) -> str:
    if isinstance(content, str):
        return content if salt is None else redact(content, names, salt)
    shown = content if salt is None else redact_values(content, names, salt)
    if isinstance(shown, list):
        return "".join(json.dumps(line) + "\n" for line in shown)
    return json.dumps(shown, indent=2) + "\n"


def _bounded(text: str, *, keep_end: bool) -> str:
    data = text.encode(errors="backslashreplace")
    if len(data) <= MAX_BYTES:
        return data.decode()
    note = f"[cut here: {len(data)} bytes are more than {MAX_BYTES}]\n"
    if keep_end:
        return note + data[-MAX_BYTES:].decode(errors="ignore")
    return data[:MAX_BYTES].decode(errors="ignore") + "\n" + note


def _with_those_in(parts: list[Part], names: Names) -> Names:
    """Also names of pods that are gone, and of users, which only the parts themselves know."""
    namespaces, others = set(names.namespaces), set(names.names)
    for part in parts:
        text = part.content if isinstance(part.content, str) else json.dumps(part.content, ensure_ascii=False)
        others |= users_in(text)
        if isinstance(part.content, str):
            found = names_in_labels(text)
            namespaces |= found[0]
            others |= found[1]
        elif isinstance(part.content, list):
            for line in part.content:
                namespace, slash, name = str(line.get("pod", "")).rpartition("/")
                namespaces |= {namespace} if slash else set()
                others |= {name} if slash else set()
    return replace(names, namespaces=frozenset(namespaces), names=frozenset(others))


def _readme(at: float, about: dict[str, str], *, keep_names: bool) -> str:
    names = "Names are as they were (--keep-names)."
    if not keep_names:
        names = (
            "Names of namespaces, pods and containers, UIDs and other ids, names of this host and of users, and\n"
            "the globs of rules are replaced by hashes: h and ten hexadecimal digits. The same name has the same hash\n"
            "in all files of this report, and another one in the next. default, kube-system and the like stay, and\n"
            "so does an ordinary word of cgpause's own that is a name here too, where it may be just the word. Names\n"
            "that cgpause does not know of, and addresses, are not replaced."
        )
    listed = "".join(f"  {name:<20} {what}\n" for name, what in about.items())
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    return (
        f"Report of cgpause {__version__}, made {made}. Look at all of it before you post it.\n\n{names}\n\n{listed}\n"
        f'A file that says "{_MISSING.strip()}" has the reason in it.\n'
    )


def _pack(target: io.BufferedIOBase, texts: dict[str, str], at: int) -> None:
    # The name of the file, which gzip would note, is none of the report.
    with gzip.GzipFile("", "wb", fileobj=target, mtime=at) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in texts.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), at, 0o600
            tar.addfile(entry, io.BytesIO(data))


# --- collecting ------------------------------------------------------------------------------------------------------


def collect(sources: list[Source], part_s: float = _PART_S, whole_s: float = _WHOLE_S) -> list[Part]:
    """Collect each part in its own thread: one that hangs (a disk, a mount) is left behind, and no reason to wait."""
    deadline = time.monotonic() + whole_s
    return [_collect(source, min(part_s, deadline - time.monotonic())) for source in sources]


def _collect(source: Source, within_s: float) -> Part:
    found: list[Part] = []

    def work() -> None:
        try:
            found.append(Part(source.name, source.collect()))
        except NotHere as e:
            found.append(Part(source.name, None, str(e)))
        except CgpauseError as e:
            found.append(Part(source.name, None, str(e)))
        except OSError as e:
            found.append(Part(source.name, None, f"{printable(str(e.filename or 'it'))}: {e.strerror}"))
        except Exception as e:  # noqa: BLE001 - what is broken here may be what the report is about
            found.append(Part(source.name, None, f"{type(e).__name__}: {e}"))

    if within_s <= 0:
        return Part(source.name, None, "the parts before it took all the time there is")
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(within_s)
    return found[0] if found else Part(source.name, None, f"it took longer than {within_s:.0f} s")


def _sources(given: Globals, config: Config) -> list[Source]:
    return [
        Source("version.txt", "cgpause, Python, packages, operating system", _versions),
        Source("kernel.txt", "kernel, and boot options that matter here", _kernel),
        Source("cgroups.txt", "cgroup mounts and controllers, kubepods", lambda: _cgroups(given)),
        Source("check.json", "cgpause check", lambda: _check(given, config)),
        Source("config.toml", "the configuration in effect", lambda: _config_text(given)),
        Source("status.json", "cgpause status", lambda: _status(given, config)),
        Source("explain.json", "cgpause explain", lambda: _explain(given, config)),
        Source("history.jsonl", f"the last {EVENTS} events of the history", lambda: _history(given)),
        Source("unit.txt", "the unit's properties, and it and its drop-ins", partial(_unit, UNIT)),
        Source("journal.txt", f"the last {JOURNAL_LINES} lines of its log", partial(_journal, UNIT)),
        Source("metrics-unit.txt", "the same of the metrics' unit", partial(_unit, _METRICS_UNIT)),
        Source("metrics-journal.txt", "and the end of its log", partial(_journal, _METRICS_UNIT)),
        Source("pressure.txt", "/proc/pressure", _pressure),
        Source("meminfo.txt", "/proc/meminfo", lambda: _read("/proc/meminfo")),
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
    about = os.uname()  # without its nodename
    lines = [f"{about.sysname} {about.release} {about.version} {about.machine}", f"CPUs {os.cpu_count()}"]
    try:
        options = [word for word in _read("/proc/cmdline").split() if _BOOT_OPTIONS.fullmatch(word)]
        lines.append(f"boot options: {' '.join(options) or 'none that matters here'}")
    except OSError as e:
        lines.append(f"boot options: /proc/cmdline: {e.strerror}")
    return "\n".join(lines) + "\n"


def _cgroups(given: Globals) -> str:
    mounts = [line for line in _read("/proc/self/mountinfo").splitlines() if re.search(r" - cgroup2? ", line)]
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
    # As text: a "name" is not a pod's here.
    return json.dumps({"schema": 1, "checks": [output.finding_values(found) for found in findings]}, indent=2) + "\n"


def _configuration(given: Globals) -> Config:
    """What is configured; the defaults where it is not valid, which config.toml says."""
    try:
        return given.config()
    except CgpauseError:
        return Config()


def _config_text(given: Globals) -> str:
    try:
        rendered = render_config(given.config())
    except ConfigError as e:
        # Without what was found there: nobody knows what that is.
        places = ", ".join(f"line {problem.line or '?'}" for problem in e.problems)
        raise NotHere(
            f"the configuration is not valid ({places}): the other parts are made with the defaults; "
            "cgpause config --check says what is wrong"
        ) from e
    # What every option means is in the manual.
    return "".join(f"{line}\n" for line in rendered.splitlines() if line and not line.startswith("#"))


def _status(given: Globals, config: Config) -> dict[str, Any]:
    with given.tree(config) as tree, Sampler(tree) as sampler:
        return read_status(tree, sampler)


def _explain(given: Globals, config: Config) -> dict[str, Any]:
    with given.tree(config) as tree, Sampler(tree) as sampler:
        return output.explain_values(*decide_now(tree, sampler, config, _WATCH_S), config)


def _history(given: Globals) -> list[dict[str, Any]]:
    path = history_path(given.state_dir, given.cgroup_root)
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
    return without_secrets(shown + "\n" + _output(["systemctl", "cat", "--no-pager", unit]))


def without_secrets(unit: str) -> str:
    """A unit's text without what it puts into an environment or a credential: a proxy's password, for example."""
    return re.sub(
        r"^(\s*(?:Environment|SetCredential\w*|PassEnvironment)\s*=)(?!CGPAUSE_OPTIONS=[^\s\"']*$|\"CGPAUSE_OPTIONS=[^\"]*\"$)(?:.*\\\n)*.*",
        r"\1(left out)",
        unit,
        flags=re.MULTILINE,
    )


def _journal(unit: str) -> str:
    how = ["-q", "--no-pager", "--no-hostname", "--utc", "-o", "short-iso-precise", "-n", str(JOURNAL_LINES)]
    lines = _output(["journalctl", *how, f"--unit={unit}"])
    if not lines.strip():
        raise NotHere(f"the journal has nothing of {unit}, or nothing that may be read without root")
    return lines


def _pressure() -> str:
    return "".join(f"{name}:\n{_read(f'/proc/pressure/{name}')}" for name in ("memory", "cpu", "io"))


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="backslashreplace") as file:
        return file.read(MAX_BYTES)


def _output(command: list[str]) -> str:
    """What a command prints."""
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


# --- names -----------------------------------------------------------------------------------------------------------


def names_of(given: Globals, config: Config) -> Names:
    """Every name that this host knows; those in the parts come on top."""
    known = read_names(given.log_dir)
    namespaces = {name.namespace for name in known.pods.values()}
    names = {name.name for name in known.pods.values()} | set(known.containers.values())
    names |= _host_names() | _user_names()
    public = set(re.findall(r"[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*", render_config(Config())))
    public |= {piece for word in public for piece in re.split(r"[._-]", word)}
    configured = {*config.protect.namespaces, *(rule.match for rule in config.pods)}
    globs = configured | (set(_strings_in(given.config_file)) - public)
    for glob in globs:
        namespace, slash, name = glob.rpartition("/")
        namespaces |= {part for part in (namespace if slash else name,) if _is_name(part)}
        names |= {part for part in (name,) if slash and _is_name(part)}
    return Names(frozenset(namespaces), frozenset(names), frozenset(globs), frozenset(public))


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9.-]+", text) is not None


def _strings_in(path: str) -> Iterator[str]:
    """What stands in quotes in a configuration, whether it is valid or not: the journal may quote it."""
    try:
        text = _read(path)
    except OSError:
        return
    for double, single in re.findall(r'"([^"\n]*)"|\'([^\'\n]*)\'', text):
        yield double or single


def _host_names() -> set[str]:
    full = os.uname().nodename
    short, _, domain = full.partition(".")
    return {name for name in (full, short, domain) if name}


def _user_names() -> set[str]:
    """Of people, as far as this host lists them: a directory service may take its time, and has too many."""
    found = {os.environ.get(name, "") for name in ("SUDO_USER", "USER", "LOGNAME")}
    try:
        lines = _read("/etc/passwd").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, uid = (*line.split(":"), "", "")[:3]
        if uid.isdecimal() and 1000 <= int(uid) < 65534:
            found.add(name)
    return found - {""}
