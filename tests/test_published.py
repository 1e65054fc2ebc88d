"""The file between the daemon and `cgpause metrics`: readers see all of it or none, and check its content."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core.wholefile import replace
from cgpause.telemetry import published
from cgpause.telemetry.metrics import FAMILIES, Family, Figure, Kind
from cgpause.telemetry.published import PublishedError, PublishedMetrics, decode, encode, read

S = 1_000_000_000
SNAPSHOT = PublishedMetrics(
    at_ns=5 * S,
    time=1795000000.5,
    interval_s=5.0,
    values={
        "cgpause_headroom_bytes": [Figure((), 1 << 40)],
        "cgpause_pauses_total": [Figure(("default", "throttle"), 3), Figure(('a"\n\\', "freeze"), 1)],
        "cgpause_pause_duration_seconds": [Figure((), 1.5, (0, 1, *[0] * 10))],
    },
)


def as_json(**changes: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode(SNAPSHOT))
    return {**found, **changes}


def text(**changes: object) -> bytes:
    return json.dumps(as_json(**changes)).encode()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "metrics.json")
    replace(path, encode(SNAPSHOT))

    assert read(path) == SNAPSHOT


numbers = st.integers(0, 2**62) | st.floats(0, 1e300)


@st.composite
def figures(draw: st.DrawFn, family: Family) -> list[Figure]:
    labels = draw(st.lists(st.tuples(*[st.text(max_size=5) for _ in family.labels]), unique=True, max_size=3))
    size = len(family.buckets) + 1 if family.kind is Kind.HISTOGRAM else 0
    counts = st.tuples(*[st.integers(0, 2**50)] * size)
    return [Figure(label, draw(numbers), draw(counts)) for label in labels]


@given(st.data(), st.sets(st.sampled_from(FAMILIES)))
def test_any_figures_come_back_as_they_were(data: st.DataObject, families: set[Family]) -> None:
    values = {family.name: data.draw(figures(family)) for family in families}
    snapshot = PublishedMetrics(1, 1.0, 1.0, values)

    assert decode(encode(snapshot)) == snapshot


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(FAMILIES), json_values)
def test_whatever_a_metric_holds_is_known_or_left_out(family: Family, value: object) -> None:
    found = decode(text(values={family.name: value, "cgpause_headroom_bytes": [[[], 1]]}))

    for name, listed in found.values.items():
        assert decode(encode(PublishedMetrics(1, 1.0, 1.0, {name: listed}))).values == {name: listed}
    assert family.name == "cgpause_headroom_bytes" or found.values["cgpause_headroom_bytes"] == [Figure((), 1)]


@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_no_text_makes_more_than_an_error(data: bytes) -> None:
    with suppress(PublishedError):
        assert isinstance(decode(data), PublishedMetrics)


@pytest.mark.parametrize(
    ("figures", "name"),
    [
        pytest.param([[["a"], 1]], "cgpause_pauses_total", id="a-label-missing"),
        pytest.param([[["a", "b", "c"], 1]], "cgpause_pauses_total", id="a-label-too-many"),
        pytest.param([[["a", 1], 1]], "cgpause_pauses_total", id="a-label-that-is-none"),
        pytest.param([[["a", "b"], -1]], "cgpause_pauses_total", id="a-negative-counter"),
        pytest.param([[["a", "b"], True]], "cgpause_pauses_total", id="a-bool"),
        pytest.param([[["a", "b"], "1"]], "cgpause_pauses_total", id="a-string"),
        pytest.param([[["a", "b"], float("nan")]], "cgpause_pauses_total", id="nan"),
        pytest.param([[["a", "b"], float("inf")]], "cgpause_pauses_total", id="inf"),
        pytest.param([[["a", "b"], 10**400]], "cgpause_pauses_total", id="a-number-of-any-length"),
        pytest.param([[[], 1, [1, 2]]], "cgpause_pause_duration_seconds", id="other-buckets"),
        pytest.param([[[], 1]], "cgpause_pause_duration_seconds", id="no-buckets"),
        pytest.param([[[], 1, [-1] + [0] * 11]], "cgpause_pause_duration_seconds", id="a-negative-bucket"),
        pytest.param([[[], 1]], "cgpause_of_a_newer_version", id="unknown"),
        pytest.param({}, "cgpause_headroom_bytes", id="no-list"),
    ],
)
def test_a_metric_that_is_not_as_it_should_be_is_left_out_and_the_others_are_not(figures: object, name: str) -> None:
    found = decode(text(values={name: figures, "cgpause_capacity_bytes": [[[], 1]]}))

    assert found.values == {"cgpause_capacity_bytes": [Figure((), 1)]}


def test_of_two_series_with_the_same_labels_one_is_shown() -> None:
    """Prometheus refuses a scrape with both."""
    found = decode(text(values={"cgpause_pauses_total": [[["a", "b"], 1], [["a", "b"], 2], [["a", "c"], 3]]}))

    assert found.values["cgpause_pauses_total"] == [Figure(("a", "b"), 1), Figure(("a", "c"), 3)]


def test_a_label_that_is_no_unicode_is_made_one() -> None:
    found = decode(text(values={"cgpause_pods": [[["\udcff"], 1]]}))

    assert found.values["cgpause_pods"] == [Figure(("?",), 1)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "not JSON", id="empty"),
        pytest.param(text()[:50], "not JSON", id="torn"),
        pytest.param(b"[" * 100_000, "not JSON", id="nested"),
        pytest.param(b"\xff\xfe", "not JSON", id="binary"),
        pytest.param(b"[]", "not what this version", id="a-list"),
        pytest.param(text(schema=2), "not what this version", id="another-schema"),
        pytest.param(text(at_ns=None), "missing or damaged", id="no-time"),
        pytest.param(text(at_ns=True), "missing or damaged", id="a-time-that-is-none"),
        pytest.param(text(values=[]), "missing or damaged", id="values-are-a-list"),
        pytest.param(text(interval_s=1e300), "none of ours", id="an-interval-without-end"),
        pytest.param(text(interval_s=0), "none of ours", id="no-interval"),
    ],
)
def test_what_is_none_of_ours_is_refused_with_its_path(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "metrics.json"
    path.write_bytes(data)

    with pytest.raises(PublishedError, match=message) as refused:
        read(str(path))

    assert str(path) in str(refused.value)


def test_what_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent, link, folder, fifo, large = (tmp_path / name for name in ("absent", "link", "folder", "fifo", "large"))
    link.symlink_to(absent)
    folder.mkdir()
    os.mkfifo(fifo)
    large.write_bytes(b" " * 2000)
    monkeypatch.setattr(published, "_MAX_BYTES", 1000)

    for path, why in (
        (absent, "publish = true"),
        (link, "symbolic link"),
        (folder, "not a regular file"),
        (fifo, "not a regular file"),
        (large, "larger than"),
    ):
        with pytest.raises(PublishedError, match=why):
            read(str(path))


@pytest.mark.parametrize(
    ("age_s", "fresh"),
    [(0, True), (24.9, True), (25.1, False), (10_000, False), (-0.1, False)],
    ids=["now", "just-fresh", "just-old", "old", "of-another-boot"],
)
def test_what_is_older_than_three_intervals_and_ten_seconds_is_old(age_s: float, fresh: bool) -> None:  # noqa: FBT001
    assert SNAPSHOT.is_fresh(SNAPSHOT.at_ns + int(age_s * S)) is fresh


# --- writing ---------------------------------------------------------------------------------------------------------


def test_everybody_may_read_it_whatever_the_umask(tmp_path: Path) -> None:
    """The daemon's unit has UMask=0077, and the exporter reads the file as the user `nobody`."""
    before = os.umask(0o077)
    try:
        replace(str(tmp_path / "file"), b"x")
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


def test_what_a_killed_writer_left_is_written_over_and_no_link_is_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "file.new").symlink_to(target)
    (tmp_path / "file").symlink_to(target)

    replace(str(tmp_path / "file"), b"x")

    assert target.read_text() == "mine"
    assert (tmp_path / "file").read_text() == "x"
    assert not (tmp_path / "file").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "target"]


def test_a_disk_that_fills_up_leaves_the_old_one_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace(str(path), b"old")
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda fd, data: real(fd, data[:1]))
        with pytest.raises(OSError, match="No space left"):
            replace(str(path), b"new")

    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_reader_sees_the_old_one_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds at every step of a write."""
    path = str(tmp_path / "file")
    replace(path, b"old")
    seen = set()

    def looked(function: Any) -> Any:  # noqa: ANN401
        def look(*args: Any, **options: Any) -> Any:  # noqa: ANN401
            seen.add(Path(path).read_bytes())
            return function(*args, **options)

        return look

    with monkeypatch.context() as patched:
        for name in ("write", "fchmod", "rename"):
            patched.setattr(os, name, looked(getattr(os, name)))
        replace(path, b"new")

    assert seen == {b"old"}
    assert Path(path).read_bytes() == b"new"
