"""kubelet's eviction thresholds: `memory.available` in `evictionHard` and `evictionSoft` of its configuration or flags.

One entry of two maps needs no YAML library: PyYAML would take 0.9 MiB (measured), 4 % of the daemon. Forms of YAML
beyond the common ones (anchors, tags, block scalars in that entry) are refused, never guessed at. The meaning of the
values is from kubelet's `pkg/kubelet/eviction/helpers.go` and the reference of KubeletConfiguration (v1beta1).
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from cgpause.core.clock import NS_PER_S
from cgpause.core.errors import MalformedError
from cgpause.core.memory_units import MIB
from cgpause.kernel import wholefile
from cgpause.kernel.background import BackgroundReader
from cgpause.kernel.logfmt import fields
from cgpause.pods.kubelet import KubeletFlags, KubeletProcess
from cgpause.pods.refresh_times import CALM_REFRESH_NS

log = logging.getLogger(__name__)

_CHECK_NS = 10 * NS_PER_S
"""Interval between two checks of the files while memory is tight. Else it is CALM_REFRESH_NS: a check starts a thread,
which wakes the daemon six times (measured). A threshold that was raised meanwhile is found in time, because memory is
tight long before it has all gone (`decide.TIGHT_PCT`)."""
_DEFAULT_BYTES = 100 * MIB
_UNKNOWN_RATIO = 0.025
"""Largest share (0 to 1) of the capacity for the assumed default, if no configuration can be read: 100 MiB of 4 GiB."""
_ASSUMED = "kubelet's eviction threshold is taken to be its default"
_MAX_BYTES = MIB
_MERGE = "mergeDefaultEvictionSettings"
_SIGNAL = "memory.available"

_PERCENT = re.compile(r"\+?([0-9]{1,3}(?:\.[0-9]{0,20})?)%")
# apimachinery's resource.Quantity.
_QUANTITY = re.compile(r"\+?([0-9]{1,20})(?:\.([0-9]{0,20}))?(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?[0-9]{1,2}))?")
_BINARY = {unit: 1024 ** (power + 1) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}

_KEY = r"""(?P<quote>["']?)(?P<key>[A-Za-z0-9_./-]+)(?P=quote)[ ]*:"""
_LINE = re.compile(rf"(?P<indent>[ ]*){_KEY}(?:[ ]+(?P<value>.*))?")
_FLOW_ENTRY = re.compile(rf"\s*{_KEY}(?P<value>.*)", re.DOTALL)
_SCALAR = re.compile(r"""(?P<quote>["']?)(?P<text>[A-Za-z0-9.%+~-]*)(?P=quote)""")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")
_NULL = ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True)
class Threshold:
    """Available memory below which kubelet evicts, at once or after a grace period.

    It is in bytes, or a share (0 to 1) of the node's capacity. Both are 0 if it never evicts.
    """

    size_bytes: int = 0
    node_ratio: float = 0.0


_DEFAULT = Threshold(size_bytes=_DEFAULT_BYTES)


class KubeletThresholds:
    """The thresholds of the node's kubelet, as last read from its flags and its configuration."""

    def __init__(self, path: str | None = None) -> None:
        """Read them; a `path` counts instead of the flags of the kubelet that runs."""
        self._kubelet = KubeletProcess() if path is None else None
        self._flags = KubeletFlags() if path is None else KubeletFlags(path)
        self._files: list[tuple[str, int, int, int]] = []
        self._at_ns = -CALM_REFRESH_NS
        """Time of the last check."""
        self._check_files(0)
        self.thresholds = self._latest = read_thresholds(self._flags)
        """The thresholds, for `eviction_bytes`; `_latest` is the thread's."""
        self._again = BackgroundReader(
            self._read_again, self._latest, what="kubelet's configuration", where=path or "kubelet"
        )

    def follow(self, at_ns: int, *, tight: bool) -> bool:
        """If a check is due, have the thresholds read again; return whether they have changed. An error is logged only.

        `tight` is whether memory is tight. It waits for half a second at most (`BackgroundReader`).
        """
        if at_ns < self._at_ns + (_CHECK_NS if tight else CALM_REFRESH_NS):
            return False
        self._at_ns = at_ns
        before, self.thresholds = self.thresholds, self._again()
        return self.thresholds != before

    def _read_again(self) -> tuple[Threshold, ...] | None:
        before = self._flags, self._files
        self._check_files(self._at_ns)
        if (self._flags, self._files) != before:
            log.info("kubelet's configuration has changed %s", fields(file=self._flags.config))
            self._latest = read_thresholds(self._flags)
        return self._latest

    def _check_files(self, at_ns: int) -> None:
        """Take in kubelet's flags if it was started anew, and the state of its files."""
        if self._kubelet is not None:
            self._flags = self._kubelet.new_flags(at_ns) or self._flags
        self._files = []
        with suppress(OSError):
            for path in self._flags.files():
                one = os.stat(path)
                self._files.append((path, one.st_ctime_ns, one.st_ino, one.st_size))  # ctime: also a change of rights


def eviction_bytes(thresholds: tuple[Threshold, ...] | None, *, node_total_bytes: int, capacity_bytes: int) -> int:
    """Return the highest threshold in bytes; for None (unknown) kubelet's default, limited so that it fits a test node.

    kubelet takes percentages of the node's capacity, independent of the limit of kubepods.
    """
    if thresholds is None:
        return min(_DEFAULT_BYTES, int(capacity_bytes * _UNKNOWN_RATIO))
    return max(one.size_bytes + int(node_total_bytes * one.node_ratio) for one in thresholds)


def read_thresholds(flags: KubeletFlags) -> tuple[Threshold, ...] | None:
    """Read the thresholds of a kubelet with these flags; if that fails, log why and return None."""
    path, texts = flags.config, []
    try:
        for path in flags.files():
            texts.append(wholefile.read(path, _MAX_BYTES, follow=True).decode())
        return parse_thresholds(*texts, hard_flag=flags.eviction_hard, soft_flag=flags.eviction_soft)
    except OSError as e:
        log.info("%s, as its configuration cannot be read %s", _ASSUMED, fields(file=path, error=e))
    except (MalformedError, UnicodeDecodeError) as e:
        error = e if isinstance(e, MalformedError) else "not UTF-8"
        log.warning("%s, as its configuration cannot be understood %s", _ASSUMED, fields(file=path, error=error))
    return None


def parse_thresholds(*texts: str, hard_flag: str | None = None, soft_flag: str | None = None) -> tuple[Threshold, ...]:
    """Parse `evictionHard` and `evictionSoft` of a kubelet configuration and its drop-ins, in YAML or JSON.

    A flag replaces the value in the files. Without `evictionHard` kubelet's default counts, 100 MiB. With only
    other signals in it there is no threshold for memory, unless the configuration has `mergeDefaultEvictionSettings:
    true`. `evictionSoft` has no default, and is left out if it cannot be understood.

    Raises:
        MalformedError: not a kubelet configuration, or one that kubelet (or this small YAML parser) does not accept.
    """
    hard, merged = _parse(texts, "evictionHard") if hard_flag is None else (_parse_flag(hard_flag), False)
    default = _DEFAULT if hard is None or merged else Threshold()
    known = _memory(hard, default)
    try:
        soft, _ = _parse(texts, "evictionSoft") if soft_flag is None else (_parse_flag(soft_flag), False)
        return known, _memory(soft, Threshold())
    except MalformedError as e:
        log.warning("kubelet's soft eviction threshold is not known %s", fields(error=e))
        return (known,)


def _parse(texts: Iterable[str], name: str) -> tuple[dict[str, str] | None, bool]:
    """Return the entries of a map in the files, and whether defaults are merged; of both a later file wins."""
    entries: dict[str, str] | None = None
    merged = False
    for text in texts:
        parse = _parse_json if text.lstrip().startswith("{") else _parse_yaml
        found, is_merged = parse(text, name)
        entries = entries if found is None else {**(entries or {}), **found}
        merged = merged if is_merged is None else is_merged
    return entries, merged


def _parse_flag(text: str) -> dict[str, str]:
    """Parse the value of --eviction-hard or --eviction-soft: signal<value, separated by commas."""
    entries = [entry.partition("<") for entry in text.split(",") if entry.strip()]
    if not all(sign for _, sign, _ in entries):
        raise MalformedError("kubelet's eviction flag", text)
    return {signal.strip(): value.strip() for signal, _, value in entries}


def _memory(thresholds: dict[str, str] | None, default: Threshold) -> Threshold:
    value = None if thresholds is None else thresholds.get(_SIGNAL)
    return default if value is None else _parse_threshold(value)


def _parse_threshold(text: str) -> Threshold:
    percent = _PERCENT.fullmatch(text)
    if percent is not None:
        value = float(percent[1])
        if value > 100:
            raise MalformedError(_SIGNAL, text)
        return Threshold(node_ratio=value / 100 if value < 100 else 0.0)  # kubelet ignores 0% and 100%
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise MalformedError(_SIGNAL, text)
    whole, fraction, unit = match[1], match[2] or "", match[3] or ""
    exponent = int(match[4] or 0) + _DECIMAL.get(unit, 0) - len(fraction)
    number = int(whole + fraction) * _BINARY.get(unit, 1)
    # Round a fraction of a byte up, as Quantity.Value() does.
    return Threshold(size_bytes=number * 10**exponent if exponent >= 0 else -(-number // 10**-exponent))


def _parse_json(text: str, name: str) -> tuple[dict[str, str] | None, bool | None]:
    """Return the entries of a map, None without one, and whether defaults are merged, None if the file does not say."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise MalformedError(f"kubelet configuration ({type(e).__name__})", text[:60]) from e
    if not isinstance(document, dict):
        raise MalformedError("kubelet configuration", text[:60])
    found, merged = document.get(name), document.get(_MERGE)
    merged = None if merged is None else merged is True
    if found is None:
        return None, merged
    if not isinstance(found, dict) or not all(isinstance(value, str | int) for value in found.values()):
        raise MalformedError(name, found)
    return {key: str(value) for key, value in found.items()}, merged


def _parse_yaml(text: str, name: str) -> tuple[dict[str, str] | None, bool | None]:
    """Return the same as `_parse_json`."""
    top = _top_level(text)
    merged = top[_MERGE][0] == "true" if _MERGE in top else None
    block = top.get(name)
    if block is None:
        return None, merged
    inline, *below = block
    if not inline.startswith("{"):
        if inline not in (("",) if below else _NULL):
            raise MalformedError(name, inline)
        if not below:
            return None, merged
    return _entries(block, name), merged


def _top_level(text: str) -> dict[str, list[str]]:
    """Return for each top-level key the rest of its line and the lines below it, without comments."""
    found: dict[str, list[str]] = {}
    block: list[str] | None = None
    for number, raw in enumerate(text.split("\n")):
        line = _COMMENT.sub("", raw.rstrip("\r")).rstrip()
        if not line or line[0] == "%" or (line == "---" and not found):
            continue
        if line[0] in " -}]":  # a line below a key: a list and a closing bracket need no indentation
            if block is None or line.startswith("---"):
                raise MalformedError(f"kubelet configuration, line {number + 1}", raw)
            block.append(line)
            continue
        match = _LINE.fullmatch(line)
        if match is None or match["key"] in found:
            raise MalformedError(f"kubelet configuration, line {number + 1}", raw)
        block = found[match["key"]] = [match["value"] or ""]
    if not found:
        raise MalformedError("kubelet configuration", text[:60])
    return found


def _entries(block: list[str], name: str) -> dict[str, str]:
    """Return the entries of a map, in block style below its key, or in flow style in braces."""
    is_flow = block[0].startswith("{")
    items = block[1:]
    if is_flow:
        body, closed, rest = "\n".join(block)[1:].partition("}")
        if not closed or rest.strip():
            raise MalformedError(name, "\n".join(block))
        items = body.split(",")
        if not items[-1].strip():
            items.pop()  # the last entry may end with a comma, and the map may be empty
    found: dict[str, str] = {}
    indents = set()
    for item in items:
        match = (_FLOW_ENTRY if is_flow else _LINE).fullmatch(item)
        value = None if match is None else _SCALAR.fullmatch((match["value"] or "").strip())
        if match is None or value is None or (not value["quote"] and value["text"] in _NULL) or match["key"] in found:
            raise MalformedError(name, item)
        indents.add(None if is_flow else match["indent"])
        found[match["key"]] = value["text"]
    if len(indents) > 1:
        raise MalformedError(f"{name} (indentation)", items)
    return found
