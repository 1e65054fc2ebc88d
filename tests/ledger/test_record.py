"""The record's bytes: forms that later versions, operators and a crashed writer may leave."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpause.core.errors import DamagedRecordError
from cgpause.core.model import CpuMax, Mechanism, Owner, PauseRecord
from cgpause.ledger.record import decode_record, encode_record

RECORD = PauseRecord(
    mechanism=Mechanism.THROTTLE,
    owner=Owner.DAEMON,
    reason="memory use 91.0 %",
    since_ns=123,
    expires_ns=None,
    original=CpuMax(50000, 100000),
    original_burst_us=20000,
    written=CpuMax(1000, 100000),
)
TEXT = {
    "schema": 1,
    "mechanism": "throttle",
    "owner": "daemon",
    "reason": "memory use 91.0 %",
    "since_ns": 123,
    "expires_ns": None,
    "original_cpu_max": "50000 100000",
    "original_cpu_max_burst": 20000,
    "written_cpu_max": "1000 100000",
}


def test_record_is_this_json() -> None:
    """Pinned, because records outlive the version that wrote them."""
    assert json.loads(encode_record(RECORD)) == TEXT
    assert decode_record(json.dumps(TEXT).encode()) == RECORD


cpu_maxes = st.builds(CpuMax, st.none() | st.integers(1000, 10**9), st.integers(1000, 10**6))


def records(mechanism: Mechanism, written: st.SearchStrategy[CpuMax | None]) -> st.SearchStrategy[PauseRecord]:
    return st.builds(
        PauseRecord,
        mechanism=st.just(mechanism),
        owner=st.sampled_from(Owner),
        reason=st.text(st.characters()),  # surrogates too
        since_ns=st.integers(0, 2**63 - 1),
        expires_ns=st.none() | st.integers(0, 2**63 - 1),
        original=cpu_maxes,
        original_burst_us=st.integers(0, 10**9),
        written=written,
    )


@settings(deadline=None)
@given(records(Mechanism.THROTTLE, cpu_maxes) | records(Mechanism.FREEZE, st.none() | cpu_maxes))
def test_any_record_survives_the_round_trip(record: PauseRecord) -> None:
    data = encode_record(record)
    assert data.isascii()
    assert decode_record(data) == record


def changed(**values: Any) -> bytes:  # noqa: ANN401 - any JSON
    return json.dumps({**TEXT, **values}).encode()


def without(key: str) -> bytes:
    return json.dumps({k: v for k, v in TEXT.items() if k != key}).encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00", id="nul"),
        pytest.param(b"\xff\xfe", id="not-utf8"),
        pytest.param(encode_record(RECORD)[:-10], id="truncated"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"1", id="number"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[" * 100_000, id="nested-deep"),
        pytest.param(b"1" * 60_000, id="number-of-60000-digits"),
        pytest.param(b"x" * 65_536, id="64-KiB-of-something"),
        pytest.param(changed(schema=2), id="later-schema"),
        pytest.param(changed(schema="1"), id="schema-as-text"),
        pytest.param(changed(mechanism="stop"), id="unknown-mechanism"),
        pytest.param(changed(owner="root"), id="unknown-owner"),
        pytest.param(changed(reason=None), id="no-reason"),
        pytest.param(changed(since_ns=1.5), id="fraction"),
        pytest.param(changed(since_ns=True), id="bool-as-number"),
        pytest.param(changed(since_ns=[]), id="list-as-number"),
        pytest.param(changed(since_ns=10**400), id="beyond-64-bit"),
        pytest.param(changed(since_ns=-(10**400)), id="below-64-bit"),
        pytest.param(changed(expires_ns="soon"), id="text-as-number"),
        pytest.param(changed(original_cpu_max=None), id="no-original"),
        pytest.param(changed(original_cpu_max="100000"), id="original-without-period"),
        pytest.param(changed(original_cpu_max="max 100000\nmax"), id="newline-in-original"),
        pytest.param(changed(original_cpu_max="\udcff"), id="surrogate-in-original"),
        pytest.param(changed(original_cpu_max_burst=-1), id="negative-burst"),
        pytest.param(changed(written_cpu_max=1000), id="written-as-number"),
        pytest.param(changed(written_cpu_max=None), id="throttled-but-nothing-written"),
        *(pytest.param(without(key), id=f"without-{key}") for key in TEXT),
    ],
)
def test_a_record_with_anything_unexpected_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedRecordError, match=r"user\.cgpause") as e:
        decode_record(data)
    assert len(str(e.value)) < 1000
    assert "\n" not in str(e.value)


def test_keys_a_later_version_of_the_same_schema_added_are_ignored() -> None:
    assert decode_record(changed(colour="red")) == RECORD
