"""The file between the daemon and `cgpause metrics`: readers see all of it or none, and check its content."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from helpers.metrics import Samples, parsed
from hypothesis import given
from hypothesis import strategies as st

from cgpause.telemetry.metrics import BY_NAME, FAMILIES, Figure, Values
from cgpause.telemetry.published import PublishedError, Stamp, encode, exposition, read

S = 1_000_000_000
STAMP = Stamp(at_ns=5 * S, time=1795000000.5, interval_s=5.0)


@given(st.integers(0, 2**62), st.integers(0, 2**50).map(lambda ms: ms / 1000), st.sampled_from([1.0, 5.0, 0.5]))
def test_what_is_written_is_read(at_ns: int, time: float, interval_s: float) -> None:
    stamp = Stamp(at_ns, time, interval_s)
    with tempfile.NamedTemporaryFile() as file:
        file.write(encode(stamp, {"cgpause_headroom_bytes": [Figure((), 1 << 40)]}))
        file.flush()

        found, text = read(file.name)

    assert found == stamp
    assert parsed(text) == {
        ("cgpause_up", ()): 1,
        ("cgpause_snapshot_timestamp_seconds", ()): time,
        ("cgpause_headroom_bytes", ()): 1 << 40,
    }


def test_a_histogram_is_cumulative() -> None:
    found = parsed(exposition({"cgpause_tick_duration_seconds": [Figure((), 1.25, (1, 0, 2, *[0] * 10, 1))]}))

    bounds = [*map(str, BY_NAME["cgpause_tick_duration_seconds"].buckets), "+Inf"]
    counts = [found["cgpause_tick_duration_seconds_bucket", (("le", bound),)] for bound in bounds]
    assert counts == [1, 1, *[3] * 11, 4]
    assert found["cgpause_tick_duration_seconds_count", ()] == 4
    assert found["cgpause_tick_duration_seconds_sum", ()] == 1.25


def test_each_family_has_its_help_and_type() -> None:
    every: Values = {
        family.name: [Figure(("x",) * len(family.labels), 1, (0,) * (len(family.buckets) + 1 if family.buckets else 0))]
        for family in FAMILIES
    }

    text = exposition(every).decode()

    for family in FAMILIES:
        assert f"# HELP {family.name} {family.help}\n" in text
        assert f"# TYPE {family.name} {family.kind}\n" in text
    assert text.count("# TYPE ") == len(FAMILIES)
    assert "_created" not in text


hostile = st.text(max_size=12) | st.sampled_from(
    [*'"\\\n\u2028{},\x00\ud800', '"} 1\n# HELP x y\nx 1', "\r\n", "le", "é" * 5, "\\n", '\\"']
)


@given(st.lists(st.tuples(hostile, hostile), max_size=5, unique_by=lambda names: repr(names).replace("\\ud800", "?")))
def test_no_name_breaks_the_exposition_or_passes_for_another(names: list[tuple[str, str]]) -> None:
    figures = [Figure((namespace, pod, "throttle"), number) for number, (namespace, pod) in enumerate(names)]

    found = parsed(exposition({"cgpause_pod_pauses_total": figures}))

    expected: Samples = {}
    for number, labels in enumerate(names):
        namespace, pod = (label.encode(errors="replace").decode() for label in labels)
        key = (("mechanism", "throttle"), ("namespace", namespace), ("pod", pod))
        expected["cgpause_pod_pauses_total", key] = number
    assert found == expected


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(encode(STAMP, {})[:40], id="torn"),
        pytest.param(b"\xff\xfe", id="binary"),
        pytest.param(b'{"schema": 1}', id="of-an-older-version"),
        pytest.param(encode(STAMP, {}).replace(b"cgpause 1", b"cgpause 2", 1), id="of-a-newer-version"),
        pytest.param(encode(STAMP, {}).replace(b"at_ns=5", b"at_ns=-5"), id="a-time-before-the-boot"),
        pytest.param(encode(STAMP, {}).replace(b"interval_s=5.0", b"interval_s=1e300"), id="an-interval-without-end"),
        pytest.param(encode(STAMP, {}).replace(b"interval_s=5.0", b"interval_s=nan"), id="no-interval"),
        pytest.param(encode(STAMP, {}).replace(b"time=1", b"time=" + b"1" * 400), id="a-number-of-any-length"),
    ],
)
def test_what_is_none_of_ours_is_refused_with_its_path(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "metrics.prom"
    path.write_bytes(data)

    with pytest.raises(PublishedError, match="damaged, or a daemon of another version") as refused:
        read(str(path))

    assert str(path) in str(refused.value)


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "absent")

    for name, why in (("absent", "publish = true"), ("link", "symbolic link")):
        with pytest.raises(PublishedError, match=why):
            read(str(tmp_path / name))


@pytest.mark.parametrize(
    ("age_s", "fresh"),
    [(0, True), (24.9, True), (25.1, False), (10_000, False), (-0.1, False)],
    ids=["now", "just-fresh", "just-old", "old", "of-another-boot"],
)
def test_what_is_older_than_three_intervals_and_ten_seconds_is_old(age_s: float, fresh: bool) -> None:
    assert STAMP.is_fresh(STAMP.at_ns + int(age_s * S)) is fresh
