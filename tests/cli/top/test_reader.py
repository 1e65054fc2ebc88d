"""Snapshots read from a tree of ordinary files, at times chosen by the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from helpers.commandline import GIB, MIB, Patch, S, snapshot
from helpers.refusals import occupy
from helpers.trees import FakeTree, damage, open_descriptors, pause_pod

from cgpause.cli.top.reader import Reader, RecentEvents
from cgpause.cli.top.ui import Ui, shown_pods, state_words
from cgpause.cli.top.values import Kubepods, NodeView, PodState, SeenPod
from cgpause.config.settings import Config
from cgpause.core.model import Owner, Policy, Pressure
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.find_daemon import DaemonState, FoundDaemon
from cgpause.ledger import ledger
from cgpause.ledger.high import HighRecord, encode_record
from cgpause.telemetry import history
from cgpause.telemetry.events import Event


@pytest.fixture(autouse=True)
def machine(monkeypatch: Patch) -> None:
    monkeypatch.setattr("cgpause.cli.top.reader.read_node_pressure", lambda: Pressure(0.0, 0, 0.0, 0))


@pytest.fixture
def reader(tree: FakeTree) -> Iterator[Reader]:
    with Reader(str(tree.root), str(tree.log_dir), Config()) as reader:
        yield reader


def named(snapshot: NodeView, name: str) -> SeenPod:
    return next(pod for pod in snapshot.pods if pod.label.endswith(f"/{name}"))


def levels(snapshot: NodeView) -> tuple[float, int, int]:
    """Return the headroom below which a pod is paused, the present one, and the one below which kubelet evicts."""
    assert snapshot.levels is not None
    assert snapshot.headroom is not None
    return snapshot.levels.pause_bytes, snapshot.headroom.available_bytes, snapshot.levels.evict_bytes


def read_after_growth(reader: Reader, pods: list[Path], by_mib: Sequence[int]) -> NodeView:
    """Return the second of two readings, between which each pod has grown by so many MiB."""
    reader.read(10 * S)
    for pod, mib in zip(pods, by_mib, strict=True):
        file = pod / "memory.current"
        file.write_text(f"{int(file.read_text()) + mib * MIB}\n")
    return reader.read(11 * S)


@pytest.fixture
def crowd(tree: FakeTree) -> list[Path]:
    """Three pods on a node with little headroom."""
    tree.set_used(980 * MIB)
    return [
        tree.add_pod(name, mib * MIB, memory_max=str(300 * MIB)) for name, mib in (("a", 200), ("b", 60), ("c", 50))
    ]


USE = "usage_usec {}\nuser_usec 0\nsystem_usec 0\n"
THROTTLED = USE + "nr_periods 9\nnr_throttled 3\nthrottled_usec {}\n"


@pytest.mark.parametrize(
    ("readings", "rates"),
    [
        pytest.param([(10, THROTTLED.format(1_000_000, 0))], (None, None), id="one-reading-has-no-rate"),
        pytest.param(
            [(10, THROTTLED.format(1_000_000, 0)), (12, THROTTLED.format(1_500_000, 400_000))], (250.0, 200.0), id="two"
        ),
        pytest.param(
            [(at_s, THROTTLED.format(usec, 0)) for at_s, usec in ((10, 0), (11, 500_000), (11.01, 500_100))],
            (500.0, 0.0),
            id="a-read-at-once-after-another-keeps-the-rates",
        ),
        pytest.param([(10, USE.format(10_000)), (11, USE.format(11_000))], (1.0, 0.0), id="without-the-cpu-controller"),
    ],
)
def test_cpu_is_in_millicores_and_throttled_time_in_ms_a_second(
    readings: list[tuple[float, str]], rates: tuple[float | None, float | None], web: Path, reader: Reader
) -> None:
    for at_s, text in readings:
        (web / "cpu.stat").write_text(text)
        pod = named(reader.read(int(at_s * S)), "web")

    assert (pod.cpu_millicores, pod.throttled_ms) == rates


@pytest.mark.parametrize("policy", Policy)
def test_growth_is_learned_under_either_policy(policy: Policy, tree: FakeTree) -> None:
    web = tree.add_pod("web", 10 * MIB, memory_max=str(100 * MIB))
    with Reader(str(tree.root), str(tree.log_dir), Config(policy=policy)) as reader:
        reader.read(10 * S)
        (web / "memory.current").write_text(f"{14 * MIB}\n")

        pod = named(reader.read(12 * S), "web")

    assert pod.growth == pytest.approx(2 * MIB, rel=0.1)
    assert (pod.demand > 0) == (policy is Policy.RESERVE)


def test_who_would_be_paused_and_who_is_next(crowd: list[Path], reader: Reader) -> None:
    """One of the growing pods goes first; with little headroom, another does not get its demand."""
    snapshot = read_after_growth(reader, crowd, (2, 60, 1))

    [first] = [pod for pod in snapshot.pods if pod.verdict.place is not None and pod.verdict.place.first]
    assert first.state is PodState.RUNNING
    assert PodState.WOULD_PAUSE in [pod.state for pod in snapshot.pods]
    pause_bytes, available_bytes, evict_bytes = levels(snapshot)
    assert pause_bytes > available_bytes > evict_bytes, "a pod would be paused at this headroom"


def test_beside_a_running_daemon_nothing_is_decided_but_the_next_pod_is_forecast(
    crowd: list[Path], reader: Reader, monkeypatch: Patch
) -> None:
    """The daemon has watched the pods for longer: what it has not done, it has decided against."""
    monkeypatch.setattr("cgpause.cli.top.reader.find_daemon", lambda _: FoundDaemon(DaemonState.RUNNING, 812))

    states = [pod.state for pod in read_after_growth(reader, crowd, (20, 20, 20)).pods]

    assert PodState.WOULD_PAUSE not in states
    assert states.count(PodState.NEXT) == 1


def test_next_in_line_is_the_one_with_least_to_spare_and_pausing_begins_there(tree: FakeTree, reader: Reader) -> None:
    tree.set_used(500 * MIB)
    pods = [tree.add_pod(name, 50 * MIB, memory_max=str(300 * MIB)) for name in "abc"]

    snapshot = read_after_growth(reader, pods, (30, 20, 0))

    to_spare = {
        pod.label: place.fits_in - place.needed
        for pod in snapshot.pods
        if (place := pod.verdict.place) is not None and not place.first and place.needed > 4096
    }
    nexts = [pod.label for pod in snapshot.pods if pod.state is PodState.NEXT]
    assert nexts == [min(to_spare, key=lambda label: to_spare[label])]
    pause_bytes, available_bytes, _ = levels(snapshot)
    assert pause_bytes == pytest.approx(available_bytes - min(to_spare.values()), abs=1)


def test_where_nobody_grows_nobody_is_next(tree: FakeTree, reader: Reader) -> None:
    tree.add_pod("web")
    reader.read(10 * S)

    assert {pod.state for pod in reader.read(11 * S).pods} == {PodState.RUNNING}


def test_under_watermark_the_smallest_is_next_and_the_mark_is_where_pausing_begins(tree: FakeTree) -> None:
    tree.set_used(GIB // 2)
    for name, mib in (("large", 30), ("small", 10), ("middle", 20)):
        tree.add_pod(name, mib * MIB)
    with Reader(str(tree.root), str(tree.log_dir), Config(policy=Policy.WATERMARK)) as reader:
        snapshot = reader.read(10 * S)
        assert named(snapshot, "small").state is PodState.NEXT
        assert [pod.label for pod in shown_pods(snapshot, Ui())] == ["default/small", "default/middle", "default/large"]
        assert levels(snapshot)[0] == pytest.approx(GIB / 10, abs=1)

        tree.set_used(GIB * 95 // 100)
        snapshot = reader.read(11 * S)

    would = [pod.label for pod in snapshot.pods if pod.state is PodState.WOULD_PAUSE]
    assert sorted(would) == ["default/middle", "default/small"]
    assert named(snapshot, "large").state is PodState.NEXT


def test_records_are_read_at_each_refresh(tree: FakeTree, web: Path, reader: Reader) -> None:
    pause_pod(tree.root, web, Owner.DAEMON)
    assert named(reader.read(10 * S), "web").state is PodState.PAUSED
    with Cgroup(str(tree.root), str(web.relative_to(tree.root))) as cgroup:
        ledger.resume(cgroup)
    assert named(reader.read(11 * S), "web").state is not PodState.PAUSED


def test_a_pod_that_the_daemon_resumed_may_be_paused_again(crowd: list[Path], tree: FakeTree, reader: Reader) -> None:
    """The dashboard would not have resumed it yet; all the same, a resume for headroom ends no budget."""
    for pod in crowd:
        pause_pod(tree.root, pod, Owner.DAEMON)
    waiting = next(pod for pod in reader.read(10 * S).pods if pod.verdict.what.startswith("stays paused"))
    with Cgroup(str(tree.root), waiting.key.path) as cgroup:
        ledger.resume(cgroup)

    assert next(pod for pod in reader.read(11 * S).pods if pod.key == waiting.key).verdict.blocked == ""


def test_pods_come_and_go(tree: FakeTree, web: Path, reader: Reader) -> None:
    assert len(reader.read(10 * S).pods) == 1
    tree.add_pod("db")
    web.rename(tree.folder / "gone")

    assert [pod.label for pod in reader.read(13 * S).pods] == ["default/db"]


def test_one_that_cannot_be_read_is_shown_as_such_and_hides_nobody(tree: FakeTree, reader: Reader) -> None:
    tree.add_pod("web")
    bad, paused = tree.add_pod("bad"), tree.add_pod("paused")
    (bad / "memory.current").unlink()
    damage(paused)

    snapshot = reader.read(10 * S)

    assert named(snapshot, "web").state is PodState.RUNNING
    assert named(snapshot, "bad").state is PodState.ERROR
    assert "memory.current" in (named(snapshot, "bad").error or "")
    assert "record cannot be read" in (named(snapshot, "paused").pod.protected or "")


def test_a_node_whose_memory_cannot_be_read_still_shows_its_pods(tree: FakeTree, reader: Reader) -> None:
    tree.add_pod("web")
    (tree.kubepods / "memory.stat").write_text("rubbish")

    snapshot = reader.read(10 * S)

    assert (snapshot.headroom, snapshot.levels) == (None, None)
    assert "memory.stat" in (snapshot.error or "")
    assert [pod.label for pod in snapshot.pods] == ["default/web"]


def test_of_kubepods_oom_kills_are_counted_and_memory_high_is_told_from_others(tree: FakeTree, reader: Reader) -> None:
    assert reader.read(10 * S).kubepods == Kubepods(0, None, high_is_ours=False, oom_kills=None)
    (tree.kubepods / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 1\n")
    (tree.kubepods / "memory.high").write_text(f"{900 * MIB}\n")
    os.setxattr(tree.kubepods, "user.cgpause.high", encode_record(HighRecord(None, 900 * MIB, None, S)))
    assert reader.read(11 * S).kubepods == Kubepods(0, 900 * MIB, high_is_ours=True, oom_kills=3)
    (tree.kubepods / "memory.high").write_text(f"{800 * MIB}\n")
    assert reader.read(12 * S).kubepods == Kubepods(0, 800 * MIB, high_is_ours=False, oom_kills=3)


def test_pressure_of_the_sparklines_is_the_share_of_time_that_was_stalled(reader: Reader, monkeypatch: Patch) -> None:
    for at_s, total_us in ((10, 1_000_000), (12, 1_500_000)):
        monkeypatch.setattr(
            "cgpause.cli.top.reader.read_node_pressure", lambda t=total_us: Pressure(50.0, t, 7.0, t // 10)
        )
        snapshot = reader.read(at_s * S)

    assert [(m.some_pct, m.full_pct) for m in snapshot.moments] == [(50.0, 7.0), (25.0, 2.5)]


def test_details_are_read_of_one_pod_only_when_asked_for_and_nothing_is_written(
    tree: FakeTree, web: Path, reader: Reader
) -> None:
    (web / "cgroup.procs").write_text("")
    before = snapshot(tree.root)
    key = reader.read(10 * S).pods[0].key
    assert reader.read(11 * S).detail is None

    detail = reader.read(12 * S, key).detail

    assert detail is not None
    assert detail.values["cpu_max"] == "50000 100000"
    assert (detail.oom_kills, detail.processes, detail.pressure) == (0, 0, None)
    assert snapshot(tree.root) == before
    web.rename(tree.folder / "gone")
    assert reader.read(15 * S, key).detail is None


def test_no_descriptor_is_left(tree: FakeTree) -> None:
    for name in "abc":
        (tree.add_pod(name) / "cpu.stat").write_text(USE.format(1))
    before = open_descriptors()
    with Reader(str(tree.root), str(tree.log_dir), Config()) as reader:
        for at_s in (10, 13, 16):
            reader.read(at_s * S)
            next(tree.root.rglob("*pod0000000*.slice")).rename(tree.folder / f"gone-{at_s}")
    assert open_descriptors() == before


def test_a_pause_that_another_program_has_ended_is_an_error(tree: FakeTree, web: Path, reader: Reader) -> None:
    pause_pod(tree.root, web, Owner.MANUAL)
    (web / "cpu.max").write_text("max 100000\n")
    pod = named(reader.read(10 * S), "web")
    assert pod.error == "its pause is not in force: another program has written since; resume it"
    assert (pod.state, state_words(pod)) == (PodState.ERROR, "error")


def note(path: Path, at: float) -> None:
    history.append(str(path), Event(at, "paused", "default/web", "uid", "no room"), 1 << 20)


def test_the_history_is_read_again_when_there_is_more(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    recent = RecentEvents(str(path))
    recent.read()
    assert not recent.events
    note(path, 1.0)
    recent.read()
    before = recent.events
    assert [event.at for event in before] == [1.0]
    recent.read()
    assert recent.events is before
    note(path, 2.0)
    recent.read()
    assert [event.at for event in recent.events] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("folder", "the history cannot be read: "),
        ("link", "the history cannot be read: "),
        ("nothing", "no history so far"),
        ("no path", "no history is kept for another tree without --state-dir"),
    ],
)
def test_a_history_that_cannot_be_read_is_none_and_the_dashboard_can_say_why(
    tmp_path: Path, there: str, said: str
) -> None:
    path = tmp_path / "history.jsonl"
    if there in ("folder", "link"):
        occupy(path, there)
    recent = RecentEvents(None if there == "no path" else str(path))
    recent.read()
    assert recent.events == ()
    assert recent.none.startswith(said)


def test_of_one_pod_its_own_events_are_found_among_the_others(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for number in range(500):
        event = Event(number, "paused", "default/web", f"uid-{number % 250}", "no room")
        history.append(str(path), event, 1 << 20)
    recent = RecentEvents(str(path))
    assert recent.of("uid-7") == ()
    recent.read()

    assert [event.at for event in recent.of("uid-7")] == [7.0, 257.0]
    assert recent.of("uid-none") == ()
    path.unlink()
    assert recent.of("uid-7") == ()
