"""The record of a pause as bytes: the JSON in the xattr `user.cgpause` of a paused pod's cgroup directory.

Later versions read it, `cgpause resume --all` reads it without a daemon, and operators read it with getfattr. So it
names its schema. A missing or malformed field is an error, and an unknown one is ignored.
"""

from __future__ import annotations

import json
from typing import TypeVar

from cgpause.core.errors import DamagedRecordError, MalformedError
from cgpause.core.model import CpuMax, Mechanism, Owner, PauseRecord
from cgpause.core.parse import parse_cpu_max

XATTR = "user.cgpause"
SCHEMA = 1
_T = TypeVar("_T", str, int)


def encode_record(record: PauseRecord) -> bytes:
    """Return a record as the bytes of the xattr."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "mechanism": record.mechanism,
            "owner": record.owner,
            "reason": record.reason,
            "since_ns": record.since_ns,
            "expires_ns": record.expires_ns,
            "original_cpu_max": str(record.original),
            "original_cpu_max_burst": record.original_burst_us,
            "written_cpu_max": None if record.written is None else str(record.written),
        },
        separators=(",", ":"),
    ).encode()


def decode_record(data: bytes) -> PauseRecord:
    """Return the record in the bytes of an xattr.

    Raises:
        DamagedRecordError: the bytes are no record, have another schema, or have a value of the wrong type.
    """
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise TypeError("not an object")
        schema = _typed(fields["schema"], int)
        if schema != SCHEMA:
            raise DamagedRecordError(
                f"xattr {XATTR} has schema {schema} and this version of cgpause reads {SCHEMA}: resume with the one "
                f"that wrote it: {ascii(data)[:200]}"
            )
        written = fields["written_cpu_max"]
        record = PauseRecord(
            mechanism=Mechanism(fields["mechanism"]),
            owner=Owner(fields["owner"]),
            reason=_typed(fields["reason"], str),
            since_ns=_typed(fields["since_ns"], int),
            expires_ns=None if fields["expires_ns"] is None else _typed(fields["expires_ns"], int),
            original=_cpu_max(fields["original_cpu_max"]),
            original_burst_us=_typed(fields["original_cpu_max_burst"], int),
            written=None if written is None else _cpu_max(written),
        )
        if record.original_burst_us < 0 or (record.written is None and record.mechanism is Mechanism.THROTTLE):
            raise ValueError("its values do not fit together")
    except (KeyError, TypeError, ValueError, RecursionError, MalformedError) as e:
        raise DamagedRecordError(f"xattr {XATTR} is damaged ({e!r}): {ascii(data)[:200]}") from e
    return record


def _cpu_max(value: object) -> CpuMax:
    return parse_cpu_max(_typed(value, str).encode())


def _typed(value: object, kind: type[_T]) -> _T:
    # A bool is an int for isinstance; a record never has one.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not {kind.__name__}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a number beyond 64 bit")
    return value
