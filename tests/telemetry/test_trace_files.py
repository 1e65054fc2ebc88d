"""The files of a trace: truncated, damaged or hostile ones harm no reader, and a recorder's death costs little."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.traces import MIB, S, make_moment, make_pod, written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cgpause.config.settings import Config
from cgpause.core.model import Policy
from cgpause.offline.trace.estimate import estimate
from cgpause.offline.trace.replay import replay
from cgpause.telemetry.trace.encode import Encoder
from cgpause.telemetry.trace.read import SEGMENTS, Trace, load_trace
from cgpause.telemetry.trace.values import TraceError
from cgpause.telemetry.trace.write import LEAST_BYTES, TraceFiles

FUZZED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def save(path: Path, lines: Sequence[str]) -> str:
    path.write_text("".join(lines))
    return str(path)


def some(count: int = 5, start_s: int = 0) -> list[str]:
    pod = make_pod(0)
    return written([make_moment((start_s + i) * S, {pod: i * MIB}) for i in range(count)])


def load(tmp_path: Path, lines: Sequence[str]) -> Trace:
    return load_trace(save(tmp_path / "x.trace", lines))


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    lines = some()
    whole = "".join(lines)
    for cut in range(len(whole) - len(lines[-1]) + 1, len(whole) - 1):
        (tmp_path / "x").write_text(whole[:cut])
        trace = load_trace(str(tmp_path / "x"))
        assert (trace.samples, trace.torn) == (4, 1)


def test_nothing_comes_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=":7: no JSON"):
        load(tmp_path, ["".join(some())[:-9], "\n", *some(5, 10)])


def packed(lines: Sequence[str]) -> bytes:
    return gzip.compress("".join(lines).encode(), mtime=0)


def test_gzip_may_end_anywhere_and_have_several_members(tmp_path: Path) -> None:
    lines, path = some(), tmp_path / "x"
    first, second = packed(lines[:4]), packed(lines[4:])
    samples = 2
    for cut in range(len(first), len(first + second) + 1):
        path.write_bytes((first + second)[:cut])
        trace = load_trace(str(path))
        assert trace.samples >= samples
        assert [f"{line.decode()}\n" for line in trace.lines] == lines[: len(trace.lines)]
        samples = trace.samples
    assert (samples, trace.torn) == (5, 0)


@pytest.mark.parametrize("after", [bytes(99), b"\xff" * 99, b"\x1f\x8b\xff", b"\x1f\x8b\x08" + b"\xff" * 99])
def test_what_is_no_gzip_after_it_is_the_end(after: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(packed(some()) + after)
    trace = load_trace(str(tmp_path / "x"))

    assert (trace.samples, trace.torn) == (5, 0)


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_what_is_killed_while_it_writes_loses_a_block_at_most(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / name)
    files = TraceFiles(path, 4 * LEAST_BYTES, Encoder(1.0))
    for number in range(20):
        files.add(make_moment(number * S, {make_pod(0): number * MIB}), tight=True)
    with open(path, "rb+") as file:
        file.truncate(files.written - 9)

    trace = load_trace(path)
    assert trace.torn == 1
    assert trace.samples in (19, 18)
    files.close()


def test_samples_are_written_in_blocks_and_sooner_while_memory_is_tight(tmp_path: Path) -> None:
    path = tmp_path / "x"
    files = TraceFiles(str(path), LEAST_BYTES, Encoder(1.0))

    def samples(at_s: float, *, tight: bool) -> int:
        files.add(make_moment(int(at_s * S), {make_pod(0): 0}), tight=tight)
        return path.read_bytes().count(b'"t":')

    assert [samples(t, tight=False) for t in range(11)] == [*[0] * 5, *[6] * 5, 11]
    assert [samples(10 + t / 5, tight=True) for t in range(1, 7)] == [*[11] * 4, 16, 16]
    files.flush()
    files.close()
    assert load_trace(str(path)).samples == 17


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_files_are_bounded_and_the_oldest_goes(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / name)
    files = TraceFiles(path, LEAST_BYTES, Encoder(1.0))
    pods = [make_pod(i, uid=f"{i * 7919 % 104729:032x}") for i in range(200)]
    most = 0
    for number in range(3000):
        moment = make_moment(number * S, {pod: (number * 7919 + i * 104729) % 4099 * MIB for i, pod in enumerate(pods)})
        files.add(replace(moment, time_s=1e9 + number), tight=False)
        most = max(most, sum(file.stat().st_size for file in tmp_path.iterdir()))
    files.flush()
    files.close()
    most = max(most, sum(file.stat().st_size for file in tmp_path.iterdir()))

    assert most <= LEAST_BYTES
    assert len(list(tmp_path.iterdir())) == SEGMENTS
    trace = load_trace(path)
    assert len(trace.headers) == SEGMENTS
    last = list(trace.moments())
    assert last[-1].time_s == 1e9 + 2999
    assert [moment.sample.at_ns for moment in last] == [(3000 - len(last) + i) * S for i in range(len(last))]
    assert [moment.begins for moment in last] == [True] + [False] * (len(last) - 1)


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("target")
    with pytest.raises(OSError, match="x"):
        TraceFiles(str(tmp_path / "x"), LEAST_BYTES, Encoder(1.0))
    assert not (tmp_path / "target").exists()


LINES = some(2)
HEAD, POD, FIRST, SECOND = LINES


def changed(line: str, **changes: object) -> str:
    values = json.loads(line) | changes
    return json.dumps({key: value for key, value in values.items() if value is not ...}) + "\n"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        pytest.param([], "there is no sample in it", id="empty"),
        pytest.param([HEAD], "there is no sample in it", id="header-only"),
        pytest.param(["hello\n"], r"x\.trace:1: no JSON", id="text"),
        pytest.param(["[1]\n"], r":1: found \[1\]; allowed: a JSON object", id="list"),
        pytest.param([POD], ":1: the first line is no header", id="headless"),
        pytest.param([changed(HEAD, cgpause_trace=2)], "found 2; this cgpause reads schema 1", id="schema"),
        pytest.param([changed(HEAD, cgpause_trace=True)], "found True; this", id="schema-bool"),
        pytest.param([changed(HEAD, hashed="no")], 'found hashed "no"', id="hashed"),
        pytest.param([changed(HEAD, version=...)], "version is missing", id="missing"),
        pytest.param([changed(HEAD, version="x" * 601)], "version: found .*allowed: up to 600", id="long"),
        pytest.param([changed(HEAD, time=-1)], "time: found -1", id="time"),
        pytest.param([changed(HEAD, quantum=0)], "a quantum of 0", id="quantum"),
        pytest.param([HEAD.replace("1.0", "NaN")], "interval: found nan", id="nan"),
        pytest.param([HEAD.replace("1.0", "1e999")], "interval: found inf", id="overflow"),
        pytest.param([HEAD, "{}\n"], ":2: found {}; allowed: a header, a pod", id="nothing"),
        pytest.param([HEAD, changed(POD, qos="Best")], 'qos: found "Best"; allowed: Guaranteed', id="qos"),
        pytest.param([HEAD, changed(POD, qos=["Best"])], r"qos: found \['Best'\]", id="qos-list"),
        pytest.param([HEAD, changed(POD, paused=[1])], "paused: found", id="paused"),
        pytest.param([HEAD, changed(POD, max="max")], 'max: found "max"; allowed: a whole', id="limit"),
        pytest.param([HEAD, changed(POD, unmade="x")], 'unmade: found "x"; allowed: a boolean', id="unmade"),
        pytest.param([HEAD, changed(POD, priority=1001)], "priority: found 1001", id="priority"),
        pytest.param([HEAD, POD, changed(POD, inode=9)], "another one before it is gone", id="pod-twice"),
        pytest.param([HEAD, POD, changed(POD, pod=1)], "pod 1 is also pod 0", id="pod-also"),
        pytest.param([HEAD, '{"gone":3}\n'], "pod 3 was not introduced", id="gone"),
        pytest.param([HEAD, POD, changed(FIRST, h=...)], "has no h", id="no-host"),
        pytest.param([HEAD, POD, changed(FIRST, h=[0, None, 0])], "h: found 0", id="no-memory"),
        pytest.param([HEAD, POD, changed(FIRST, m=[1, 1])], "pod 1 was not introduced", id="whose"),
        pytest.param([HEAD, POD, changed(FIRST, m=[0])], "m: found .*allowed: pairs", id="half-pair"),
        pytest.param([HEAD, POD, changed(FIRST, m=[0, -1])], "m: found -1", id="negative"),
        pytest.param([HEAD, POD, changed(FIRST, m=[0, True])], "m: found True", id="bool"),
        pytest.param([HEAD, POD, changed(FIRST, m=[0, 1 << 62])], "m: found", id="huge"),
        pytest.param([HEAD, POD, changed(FIRST, m={"0": 1})], "m: found", id="object"),
        pytest.param([HEAD, POD, changed(FIRST, i=[0, 0])], "i: found 0; allowed: a whole number from 1", id="no-cpu"),
        pytest.param([HEAD, POD, changed(FIRST, i=[2, 201])], "i: found 201", id="more-idle-than-cpus"),
        pytest.param([HEAD, POD, changed(FIRST, i=[2])], "i: found .*allowed: .CPUs, hundredths", id="half-cpus"),
        pytest.param([HEAD, POD, changed(FIRST, d=10**9)], "d: found", id="read-later"),
        pytest.param([*LINES, changed(HEAD, at=1)], ":5: found a header that is older", id="older-header"),
        pytest.param([*LINES, changed(SECOND, t=1)], ":5: t: found a time before", id="back"),
        pytest.param([HEAD, "[" * 100_000 + "\n"], ":2: no JSON", id="deep"),
        pytest.param([HEAD, POD[:-9] + "\n", FIRST], r":2: no JSON: found .{60,140}$", id="torn-in-the-middle"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(lines: list[str], said: str, tmp_path: Path) -> None:
    # The line that follows shows that the trace was not only cut off.
    with pytest.raises(TraceError, match=said):
        load(tmp_path, [*lines, *([FIRST] if lines and lines != [HEAD] else [])])


def test_control_characters_of_names_reach_no_terminal(tmp_path: Path) -> None:
    evil = "a\x1b[31m\n\u202e\ud800"
    trace = load(tmp_path, [changed(HEAD, version=evil), changed(POD, name=evil, namespace=evil, uid=evil), FIRST])

    (moment,) = trace.moments()
    pod = moment.sample.pods[0].pod
    assert pod.label.isprintable()
    assert pod.uid.isprintable()
    assert trace.headers[0].version.isprintable()


@pytest.mark.parametrize(
    "text", [SECOND.encode(), b"\n", b" ", b" " * 99 + b"\n", b""], ids=["lines", "ends", "line", "blank", "zeros"]
)
def test_a_bomb_is_refused(text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cgpause.telemetry.trace.read.MAX_BYTES", MIB)
    path = tmp_path / "x.gz"
    # gzip skips zeros after its end, one by one.
    bomb = gzip.compress(text * (3 * MIB // len(text)), mtime=0) if text else bytes(MIB)
    path.write_bytes(packed(LINES) + bomb)

    with pytest.raises(TraceError, match="more than 1 MiB of text"):
        load_trace(str(path))


def test_a_line_without_an_end_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress("".join(LINES).encode() + b"[" * (20 * MIB) + b"\n" + FIRST.encode(), mtime=0))

    with pytest.raises(TraceError, match=":5: no JSON"):
        load_trace(str(path))


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 62) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=4,
)


@st.composite
def damaged(draw: st.DrawFn) -> list[str]:
    """Return the lines of a trace with some values changed, and some lines missing, doubled or swapped."""
    lines = written(
        [make_moment(i * S, {make_pod(j): (i + 1) * (j + 1) * 300 * MIB for j in range(3)}) for i in range(6)]
    )
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        found = json.loads(lines[at])
        match draw(st.sampled_from(["set", "drop", "double", "swap"])):
            case "set":
                key = draw(st.sampled_from([*found, "a", "u", "d", "m", "o", "w", "changed", "settled", "paused"]))
                lines[at] = json.dumps(found | {key: draw(values)}) + "\n"
            case "drop":
                del lines[at]
            case "double":
                lines.insert(at, lines[at])
            case _:
                lines[0], lines[at] = lines[at], lines[0]
    return lines


@FUZZED
@given(damaged())
def test_whatever_is_in_a_trace_it_is_read_or_refused(tmp_path: Path, lines: list[str]) -> None:
    try:
        trace = load(tmp_path, lines)
    except TraceError:
        return
    for policy in Policy:
        config = replace(Config(), policy=policy)
        assert replay(trace, config).decisions == trace.samples
        estimate(trace, config)
