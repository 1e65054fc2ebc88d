"""`cgpause bug-report`: the facts for a bug report in one archive, with hashes in place of names.

`evidence` collects the parts; a part that fails has the reason in its place. `redact` replaces the names.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import secrets
import signal
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace

from cgpause import __version__
from cgpause.cli.context import Globals
from cgpause.cli.evidence import MAX_BYTES, Document, collect, configuration_of, read_text, sources_of
from cgpause.config.render import render_config
from cgpause.config.settings import Config
from cgpause.core.errors import KernelWriteError, UsageError, printable
from cgpause.core.redact import HiddenNames, names_in_labels, redact, redact_values, users_in
from cgpause.pods.names import read_names

FOLDER = "cgpause-bug-report"
_README = "README.txt"
_MISSING = "not collected: "


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


def write(given: Globals, file: str, *, keep_names: bool) -> Iterator[str]:
    """Write the report; yield the lines to print about it.

    Raises:
        KernelWriteError: the file exists already, or cannot be written; no partial file remains.
    """
    at = time.time()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or a partial file would remain
    try:
        # First, so that a wrong path fails before the parts are collected. O_EXCL also refuses a link.
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as e:
        hint = "name another file" if isinstance(e, FileExistsError) else "name a file that can be made"
        raise KernelWriteError(file, e, hint=hint) from e
    try:
        with open(fd, "wb") as target:
            config = configuration_of(given)
            sources = sources_of(given, config)
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


def report(parts: list[Document], names: HiddenNames, *, keep_names: bool) -> dict[str, str]:
    """Return the text of every part by file name, redacted unless `keep_names`. The hashes' salt is not kept."""
    salt = secrets.token_bytes(16)
    names = _with_those_in(parts, names)
    texts = {}
    for part in parts:
        if part.problem is not None:
            text = _MISSING + (part.problem if keep_names else redact(part.problem, names, salt)) + "\n"
        else:
            text = _as_text(part.content, names, None if keep_names else salt)
        texts[part.name] = _bounded(text, keep_end="journal" in part.name)
    return texts


def _as_text(content: object, names: HiddenNames, salt: bytes | None) -> str:
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


def _with_those_in(parts: list[Document], names: HiddenNames) -> HiddenNames:
    """Return `names` with the names of users and of deleted pods that occur in the parts."""
    namespaces, others = set(names.namespaces), set(names.names)
    for part in parts:
        text = part.content if isinstance(part.content, str) else json.dumps(part.content, ensure_ascii=False)
        found = names_in_labels(text)
        namespaces |= found[0]
        others |= found[1] | users_in(text)
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
    # An empty name, else gzip would write the path of the file into its header.
    with gzip.GzipFile("", "wb", fileobj=target, mtime=at) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in texts.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), at, 0o600
            tar.addfile(entry, io.BytesIO(data))


# --- names -----------------------------------------------------------------------------------------------------------


def names_of(given: Globals, config: Config) -> HiddenNames:
    """Return the names that this host knows: pods, containers, hosts, users, and names in the configuration."""
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
    return HiddenNames(frozenset(namespaces), frozenset(names), frozenset(globs), frozenset(public))


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9.-]+", text) is not None


def _strings_in(path: str) -> Iterator[str]:
    """Yield the quoted strings of a configuration file, also of an invalid one, as the journal may quote them."""
    try:
        text = read_text(path)
    except OSError:
        return
    for double, single in re.findall(r'"([^"\n]*)"|\'([^\'\n]*)\'', text):
        yield double or single


def _host_names() -> set[str]:
    full = os.uname().nodename
    short, _, domain = full.partition(".")
    return {name for name in (full, short, domain) if name}


def _user_names() -> set[str]:
    """Return local users from the environment and /etc/passwd; a directory service may be slow, and has too many."""
    found = {os.environ.get(name, "") for name in ("SUDO_USER", "USER", "LOGNAME")}
    try:
        lines = read_text("/etc/passwd").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, uid = (*line.split(":"), "", "")[:3]
        if uid.isdecimal() and 1000 <= int(uid) < 65534:
            found.add(name)
    return found - {""}
