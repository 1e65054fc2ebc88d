"""The file of the daemon's knowledge of workloads: `learned.json` in its state directory (`arguments`).

    {"schema":1,"peaks":{"default/job":[1468006400,1501560832]},"kinds":{"default/job":"batch","default/web":"service"}}

`peaks` are the last peaks in bytes of each workload's pods, `kinds` says which workloads are services; in both the
oldest comes first. The daemon replaces the file as a whole (`saver`) and reads it when it starts. `cgpause explain` and
the dashboard read it too, so that they expect the same of a pod as the daemon does.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from cgpause.core.errors import CgpauseError, printable
from cgpause.kernel import wholefile
from cgpause.policy.kinds import KEPT as KEPT_KINDS
from cgpause.policy.peaks import KEPT_PEAKS, KEPT_WORKLOADS

_SCHEMA = 1
_MAX_BYTES = 4 << 20
"""Largest file that is read; 1000 workloads with the longest names, each character escaped, take less."""
_LONGEST_NAME = 255
"""Most characters of a workload's name, which is part of the name of one of kubelet's log folders."""
_MOST = 1 << 63
_KINDS = {"service": True, "batch": False, "silent": None}
_NOT_OURS = (errno.EFBIG, errno.EINVAL, errno.ELOOP)
"""Errors of `wholefile.read` for what no daemon has written: a file too large, no regular file, or a link."""
_WORDS = {kind: word for word, kind in _KINDS.items()}


class LearnedError(CgpauseError):
    """The file exists but cannot be read, or is damaged."""


class LearnedUnreadableError(LearnedError):
    """The file could not be read (EIO, ESTALE): it may be good."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Knowledge of workloads, by name."""

    peaks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Last peaks of each workload's pods in bytes, as in `Peaks.known`."""
    kinds: Mapping[str, bool | None] = field(default_factory=dict)
    """True for a service, False for batch, None for a workload that has not listened so far; as in `Kinds`."""


def encode(learned: Learned) -> bytes:
    """Return the file's content as bytes of JSON."""
    kinds = {name: _WORDS[kind] for name, kind in learned.kinds.items()}
    values = {"schema": _SCHEMA, "peaks": dict(learned.peaks), "kinds": kinds}
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes) -> Learned:
    """Parse the file's content; the oldest workloads and peaks beyond the daemon's limits are left out.

    Raises:
        LearnedError: the content is damaged, or of another version of cgpause.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise LearnedError(f"not JSON: {str(e)[:100]}") from e
    if not isinstance(found, dict) or "schema" not in found:
        raise LearnedError("not a file of cgpause's")
    schema = found["schema"]
    if schema != _SCHEMA or isinstance(schema, bool):
        raise LearnedError(f"schema {printable(str(schema)[:20])}, and this version of cgpause knows {_SCHEMA}")
    return Learned(
        {name: _peaks(name, peaks) for name, peaks in _newest(found, "peaks", KEPT_WORKLOADS)},
        {name: _kind(name, kind) for name, kind in _newest(found, "kinds", KEPT_KINDS)},
    )


def _newest(found: Mapping[str, object], key: str, most: int) -> list[tuple[str, object]]:
    values = found.get(key)
    if not isinstance(values, dict):
        raise LearnedError(f"{key} is missing or damaged")
    if any(not 0 < len(name) <= _LONGEST_NAME for name in values):
        raise LearnedError(f"{key} has a name that no workload can have")
    return list(islice(values.items(), max(len(values) - most, 0), None))


def _peaks(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(_is_size(peak) for peak in value):
        raise LearnedError(f"the peaks of {printable(name)} are damaged")
    return tuple(value[-KEPT_PEAKS:])


def _kind(name: str, value: object) -> bool | None:
    if not isinstance(value, str) or value not in _KINDS:
        raise LearnedError(f"the kind of {printable(name)} is damaged")
    return _KINDS[value]


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


# --- the file --------------------------------------------------------------------------------------------------------


def write(path: str, learned: Learned) -> None:
    """Replace the file in one step, and wait for the disk; only its owner may read it.

    Raises:
        OSError: the file could not be written; the old one stays.
    """
    wholefile.replace(path, encode(learned), 0o600, sync=True)


def read(path: str) -> Learned:
    """Read the file; return empty knowledge if there is none.

    Raises:
        LearnedError: the file cannot be read, is damaged, or is of another version of cgpause.
    """
    name = printable(path)
    try:
        return decode(wholefile.read(path, _MAX_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return Learned()
    except OSError as e:
        hint = "; root may: run as root (sudo)" if e.errno == errno.EACCES else ""
        kind = LearnedError if e.errno in _NOT_OURS else LearnedUnreadableError
        raise kind(f"cannot read {name}: {e.strerror}{hint}") from e
    except LearnedError as e:
        raise LearnedError(f"{name}: {e}") from e
