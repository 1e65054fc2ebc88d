"""The file that keeps what the daemon has learned of workloads: `learned.json` in its state directory (`arguments`).

    {"schema":1,"peaks":{"default/job":[1468006400,1501560832]},"kinds":{"default/job":"batch","default/web":"service"}}

`peaks` are the last peaks in bytes of each workload's pods, `kinds` says which workloads are services; in both the
oldest comes first. The daemon replaces the file as a whole (`saver`) and reads it when it starts. `cgpause explain` and
the dashboard read it, so that they expect of a pod what the daemon expects.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from cgpause.core import wholefile
from cgpause.core.errors import CgpauseError, printable
from cgpause.policy.growth import KEPT_PEAKS, KEPT_WORKLOADS
from cgpause.policy.kinds import KEPT as KEPT_KINDS

_SCHEMA = 1
_MAX_BYTES = 4 << 20
"""1000 workloads with the longest names there can be, each character of them escaped, are less."""
_LONGEST_NAME = 255
"""Characters of a workload's name: it comes from the name of one of kubelet's log folders."""
_MOST = 1 << 63
_KINDS = {"service": True, "batch": False, "silent": None}
_WORDS = {kind: word for word, kind in _KINDS.items()}


class LearnedError(CgpauseError):
    """The file is there, and cannot be read or is damaged."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Knowledge of workloads, by name; nothing is known of others."""

    peaks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """As in `Growths`."""
    kinds: Mapping[str, bool | None] = field(default_factory=dict)
    """As `Kinds` has them: True for a service, False for batch, None for one that was silent so far."""


def encode(learned: Learned) -> bytes:
    """Return the text of the file."""
    kinds = {name: _WORDS[kind] for name, kind in learned.kinds.items()}
    values = {"schema": _SCHEMA, "peaks": dict(learned.peaks), "kinds": kinds}
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes) -> Learned:
    """Read the text of the file; of more workloads or peaks than the daemon keeps the oldest are left out.

    Raises:
        LearnedError: it is damaged, or of another version of cgpause.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise LearnedError(f"not JSON: {str(e)[:100]}") from e
    if not isinstance(found, dict) or "schema" not in found:
        raise LearnedError("not a file of cgpause's")
    if found["schema"] != _SCHEMA or isinstance(found["schema"], bool):
        raise LearnedError(
            f"schema {printable(str(found['schema'])[:20])}, and this version of cgpause knows {_SCHEMA}"
        )
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
    """Replace the file in one step, for its owner alone.

    Raises:
        OSError: that could not be done; the old one stays.
    """
    wholefile.replace(path, encode(learned), 0o600)


def read(path: str) -> Learned:
    """Read the file; without one nothing has been learned.

    Raises:
        LearnedError: it cannot be read, is damaged, or of another version of cgpause.
    """
    name = printable(path)
    try:
        return decode(wholefile.read(path, _MAX_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return Learned()
    except OSError as e:
        hint = "; root may: run as root (sudo)" if e.errno == errno.EACCES else ""
        raise LearnedError(f"cannot read {name}: {e.strerror}{hint}") from e
    except LearnedError as e:
        raise LearnedError(f"{name}: {e}") from e
