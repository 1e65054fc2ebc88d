"""`cgpause bug-report`: the output of some commands in one archive, with hashes in place of names (`core.redact`)."""

from __future__ import annotations

import gzip
import io
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from cgpause import __version__
from cgpause.cli.context import Globals
from cgpause.config.render import render_config
from cgpause.config.settings import Config
from cgpause.core.errors import ConfigError, KernelWriteError, UsageError, printable
from cgpause.core.redact import Redactor, names_in
from cgpause.pods.names import read_names

FOLDER = "cgpause-bug-report"
MAX_BYTES = 2 << 20
"""Size limit of one part's output, of which the end is kept."""
_PART_S = 120.0
"""Longest time of one part: a node that is short of memory may need a minute for a command."""
_MISSING = "not collected: "
# Named properties only: the unit's text may have passwords, in Environment= or in a comment.
_UNITS = (
    "systemctl show --property=Id,LoadState,ActiveState,SubState,Result,UnitFileState,FragmentPath,DropInPaths,"
    "NeedDaemonReload,NRestarts,MainPID,ExecMainStatus,ExecMainStartTimestamp,StatusText,ControlGroup,MemoryCurrent,"
    "MemoryMin,MemoryMax,CPUUsageNSec,TasksCurrent,OOMScoreAdjust,CapabilityBoundingSet,ReadWritePaths,WatchdogUSec "
    "cgpause.service cgpause-metrics.service"
)
_BOOT_OPTIONS = (
    r"(psi|cgroup[._a-z0-9]*|swapaccount|systemd\.(unified|legacy)[._a-z0-9]*|init_on_[a-z]+|transparent_hugepage|"
    r"lockdown|mitigations|nohz[_a-z]*|isolcpus|maxcpus|mem|numa[_a-z]*|hugepages[_a-z]*)(=.*)?"
)
_KUBEPODS = (
    r".*kubepods[^/]*/(cgroup\.(controllers|subtree_control|stat)|cpu\.(max|stat)|"
    r"memory\.(current|max|high|swap\.max|events|pressure))"
)
_WRONG_VALUE = re.compile(r"(?<=[:;] found )(?=[\"'\[{]).*?(?=; allowed:|$)", re.MULTILINE)
"""A value that the daemon has refused, in its log: it may be a secret."""
_PACKAGES = (
    "from importlib.metadata import distributions as all; names = 'typer click rich psutil inotify-simple'.split(); "
    "[print(one.name, one.version) for one in all() if str(one.name).lower().replace('_', '-') in names]"
)


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the archive: its name, its description, and the command for the shell that prints it."""

    name: str
    about: str
    command: str


def parts_of(given: Globals, options: list[str]) -> list[Part]:
    """Return the parts of a report; `options` are the global options for commands of cgpause."""
    python = f"{shlex.quote(sys.executable)} -P"  # without modules from the current folder, as in `cgpause run`
    cgpause = f"{python} -m cgpause {shlex.join(options)}"
    root, path = shlex.quote(os.path.abspath(given.cgroup_root or "/sys/fs/cgroup")), given.history_path
    events = f"tail -qn 1000 -- {shlex.join((f'{path}.1', path))}" if path else f"{cgpause} history"
    journal = "journalctl --no-pager --no-hostname --utc -o short-iso-precise -n 2000 --unit"
    return [
        Part(
            "version.txt",
            "versions of cgpause, Python, packages and operating system",
            f"exec 2>&1; {cgpause} --version; {python} -VV; {python} -c {shlex.quote(_PACKAGES)}; "
            "dpkg-query -W cgpause; grep ^PRETTY_NAME= /etc/os-release; systemctl --version | head -n 1",
        ),
        Part(
            "kernel.txt",
            "kernel, CPUs, boot options that matter here, cgroup mounts",
            f"exec 2>&1; uname -srvm; nproc; tr ' ' '\\n' </proc/cmdline | grep -xE '{_BOOT_OPTIONS}'; "
            "grep -E ' - cgroup2? ' /proc/self/mountinfo",
        ),
        Part("memory.txt", "/proc/meminfo, /proc/pressure", "tail -vn +1 /proc/meminfo /proc/pressure/*"),
        Part(
            "cgroups.txt",
            "limits and statistics of kubepods",
            f"find {root} -maxdepth 3 -regextype posix-extended -regex '{_KUBEPODS}' -exec grep -H '' {{}} +",
        ),
        Part("check.json", "cgpause check -o json", f"{cgpause} check -o json"),
        Part("config.toml", "cgpause config, without comments", f"{cgpause} config | grep '^[^#]'"),
        Part("status.json", "cgpause status -o json", f"{cgpause} status -o json"),
        Part("explain.json", "cgpause explain -o json", f"{cgpause} explain -o json"),
        Part("history.jsonl", "the last 1000 events in each file of the history", events),
        Part("unit.txt", "systemctl show of both units", _UNITS),
        Part("journal.txt", "the last 2000 lines of the daemon's log", f"{journal} cgpause.service"),
        Part("metrics-journal.txt", "the same of cgpause-metrics.service", f"{journal} cgpause-metrics.service"),
    ]


def name_file(path: str | None) -> str:
    """Return the path of the report: `path`, or a new file in the folder `path` or the current one.

    Raises:
        UsageError: `path` is no folder and does not end in .tar.gz or .tgz.
    """
    own = time.strftime("cgpause-bug-report-%Y%m%d-%H%M%S.tar.gz", time.gmtime())
    if path is None or os.path.isdir(path):
        return os.path.join(path or "", own)
    if not path.endswith((".tar.gz", ".tgz")):
        raise UsageError(f"FILE {printable(path)!r}: the report is a .tar.gz; name a file *.tar.gz, or a folder")
    return path


def write(given: Globals, options: list[str], file: str, *, keep_names: bool) -> Iterator[str]:
    """Write the report; yield the lines to print about it.

    Raises:
        KernelWriteError: the file exists already, or cannot be written; no partial file remains.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, signal.default_int_handler)  # or a partial file would remain
    try:
        # First, so that a wrong path fails before the parts are collected. O_EXCL also refuses a link.
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as e:
        hint = "name another file" if isinstance(e, FileExistsError) else "name a file that can be made"
        raise KernelWriteError(file, e, hint=hint) from e
    try:
        with open(fd, "wb") as target:
            globs, problem = _configured(given)
            # An invalid configuration may have secrets in its values, and its errors show them. The report is still an
            # empty file, which as a configuration means the defaults.
            parts = parts_of(given, options if problem is None else [*options, "--config", os.path.abspath(file)])
            texts = {part.name: _output(part.command) for part in parts}
            if problem is not None:
                texts["config.toml"] = f"{_MISSING}{problem}\n"
            if not keep_names:
                texts = _redacted(texts, given, globs)
            missing = {name: found[0] for name, text in texts.items() if (found := re.match(f"{_MISSING}.*", text))}
            listed = [f"  {part.name:<20} {printable(missing.get(part.name, part.about))}" for part in parts]
            _pack(target, {"README.txt": _readme(listed, keep_names=keep_names), **texts})
    except BaseException as e:
        os.unlink(file)
        if isinstance(e, OSError):
            raise KernelWriteError(file, e) from e
        raise
    yield from (f"wrote {printable(file)}:", *listed)
    hidden = "Names are as they were." if keep_names else "Names that are known here were replaced by hashes."
    yield f"{hidden} Look at all of it before you post it:"
    yield f"  tar -xzOf {printable(file)} | less"


def _output(command: str) -> str:
    """Return the output of a command, cut to MAX_BYTES, or the reason why there is none."""
    try:
        # A session of its own, so that killpg ends the shell's children too.
        with subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=_PART_S)
            except BaseException:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
    except subprocess.TimeoutExpired:
        return f"{_MISSING}it took longer than {_PART_S:g} s\n"
    except OSError as e:
        return f"{_MISSING}/bin/sh: {e.strerror}\n"
    if not output:
        last = errors.decode(errors="backslashreplace").strip().rpartition("\n")[2]
        return f"{_MISSING}{last or f'no output, exit code {process.returncode}'}\n"
    if len(output) > MAX_BYTES:
        # From a whole line on: a part of a name would not be known as one.
        end = output[-MAX_BYTES:].partition(b"\n")[2]
        output = b"[cut here: the last %d of %d bytes]\n%s" % (len(end), len(output), end)
    return output.decode(errors="backslashreplace")


def _readme(listed: list[str], *, keep_names: bool) -> str:
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    names = "Names are as they were (--keep-names)."
    if not keep_names:
        names = (
            "Hashes (h and ten hexadecimal digits) replace the names of namespaces, pods, containers, users and this\n"
            "host, UIDs and other ids, and globs of rules. One name has one hash in all files of this report, and\n"
            "another one in the next. These stay: default, kube-system and the like, ordinary words of cgpause where\n"
            "they may be no name, names that cgpause does not know of, and addresses."
        )
    head = f"Report of cgpause {__version__}, made {made}. Look at all of it before you post it."
    return "\n".join([head, "", names, "", *listed, ""])


def _pack(target: io.BufferedIOBase, texts: dict[str, str]) -> None:
    at = int(time.time())
    # An empty name, else gzip would write the path of the file into its header.
    with gzip.GzipFile("", "wb", fileobj=target, mtime=at) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in texts.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), at, 0o600
            tar.addfile(entry, io.BytesIO(data))


# --- names -----------------------------------------------------------------------------------------------------------


def _redacted(texts: dict[str, str], given: Globals, globs: set[str]) -> dict[str, str]:
    """Return the texts with hashes for the names that this host or the texts know. The hashes' salt is not kept."""
    known, (namespaces, names) = read_names(given.log_dir), names_in("\n".join(texts.values()))
    namespaces.update((name.namespace for name in known.pods.values()), *(glob.split("/") for glob in globs))
    names.update((name.name for name in known.pods.values()), known.containers.values(), globs, _local_names())
    redactor = Redactor(namespaces, names, _public(), secrets.token_bytes(16))
    return {name: redactor.redact(_WRONG_VALUE.sub("(left out)", text)) for name, text in texts.items()}


def _configured(given: Globals) -> tuple[set[str], str | None]:
    """Return the globs of the configuration, and if it is invalid the problem, without its values.

    Of an invalid one, the globs are all quoted strings that are not options, as the journal may quote them.
    """
    try:
        config = given.config()
    except ConfigError as e:
        text = ""
        if os.path.isfile(given.config_file):  # reading another kind could wait for ever
            with suppress(OSError), open(given.config_file, encoding="utf-8", errors="backslashreplace") as file:
                text = file.read(MAX_BYTES)
        strings = re.findall(r'"([^"\n]*)"|\'([^\'\n]*)\'', text)
        remedy = "the other parts are made with the defaults; cgpause config --check says what is wrong"
        problem = f"the configuration is invalid (mistakes: {len(e.problems)}): {remedy}"
        return {double or single for double, single in strings} - _public(), problem
    return {*config.protect.namespaces, *(rule.match for rule in config.pods)}, None


def _public() -> set[str]:
    """Return the ordinary words of cgpause."""
    return set(re.findall("[A-Za-z0-9]+", render_config(Config())))


def _local_names() -> set[str]:
    """Return the names of this host, and of users in the environment and /etc/passwd: a directory may be slow."""
    host = os.uname().nodename
    found = {host, *host.split(".", 1), *(os.environ.get(name, "") for name in ("SUDO_USER", "USER", "LOGNAME"))}
    with suppress(OSError), open("/etc/passwd", encoding="utf-8", errors="backslashreplace") as file:
        found.update(re.findall(r"^([^:\n]+):[^:\n]*:[1-9]\d{3,}:", file.read(), re.MULTILINE))  # UIDs from 1000 on
    return found - {""}
