"""Whether a program runs in a pod yet, and how often the daemon looks."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from helpers.fixtures import Patch
from helpers.nodes import MIB, MS, S
from helpers.processes import containers
from helpers.trees import FakeTree

from cgpause.core.clock import NEVER_NS
from cgpause.core.model import PodUsage
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.listening import Inside
from cgpause.pods import programs
from cgpause.pods.programs import LOOK_FOR_NS, LOOK_NS
from cgpause.pods.tracked import SPARED_S
from cgpause.pods.tree import PodTree

PROGRAM, RUNTIME, SANDBOX = Inside(False, True), Inside(True, False), Inside(False, False)  # noqa: FBT003
BOTH = Inside(True, True)  # noqa: FBT003


@pytest.mark.parametrize(
    ("inside", "populated", "used_mib", "no_program"),
    [
        pytest.param(SANDBOX, 1, 32, True, id="sandbox"),
        pytest.param(RUNTIME, 1, 32, True, id="runtime"),
        pytest.param(SANDBOX, 1, 33, False, id="too-large-for-them"),
        pytest.param(PROGRAM, 1, 1, False, id="a-program"),
        pytest.param(BOTH, 1, 1, False, id="a-runtime-beside-a-program"),
        pytest.param(None, 0, 0, True, id="no-process"),
        pytest.param(None, 1, 0, False, id="hidden-processes"),
        pytest.param(None, None, 0, False, id="unknown"),
    ],
)
def test_a_pod_is_unmade_until_a_program_runs_in_it(
    fake: FakeTree,
    tree: PodTree,
    monkeypatch: Patch,
    inside: Inside | None,
    populated: int | None,
    used_mib: int,
    no_program: bool,
) -> None:
    found = [inside]
    monkeypatch.setattr(programs, "inspect_pod", lambda _: found[0])
    tree.refresh(0)
    path = fake.add_pod("web-0", current=100 * MIB)  # ended containers left some
    for child, used in zip(containers(path), (0, used_mib * MIB), strict=True):
        (child / "memory.current").write_text(f"{used}\n")
    if populated is not None:
        (path / "cgroup.events").write_text(f"populated {populated}\n")
    (tracked,) = tree.refresh(S)[0]
    tree.check_programs(S)
    assert not tracked.pod.no_program, "it is spared anyway"
    tree.check_programs(2 * S)
    assert tracked.pod.no_program is no_program
    assert tree.programs.must_check is (no_program or inside is BOTH), "a runtime at work may yet set a limit"

    found[0] = PROGRAM
    tree.check_programs(3 * S)
    assert not tracked.pod.no_program
    tracked.pod = replace(tracked.pod, no_program=True)
    tree.note_container_change(tracked, 4 * S)
    assert not tracked.pod.no_program, "no look may follow for hours"


def test_a_pod_is_no_longer_spared_once_its_program_is_seen(fake: FakeTree, tree: PodTree, monkeypatch: Patch) -> None:
    """A program can take its first memory in a tenth of the time for which a new pod is spared."""
    made: list[str] = []
    monkeypatch.setattr(programs, "is_made", lambda cgroup: cgroup.path in made)
    tree.refresh(0)
    fake.add_pod("web-0")
    fake.add_pod("web-1")
    first, second = tree.refresh(S)[0]
    assert tree.programs.look_at_ns == S + LOOK_NS
    made.append(first.cgroup.path)
    assert tree.programs.look(S + LOOK_NS)
    assert (first.pod.spared_until_ns, second.pod.spared_until_ns) == (S + LOOK_NS, S + int(SPARED_S * S))
    assert first.pod.settled_at_ns > S + LOOK_NS, "the watermark policy still leaves it alone"
    assert tree.programs.look_at_ns == S + 2 * LOOK_NS
    tree.programs.rest_until(2 * S)
    tree.note_container_change(first, S + 3 * LOOK_NS)
    assert tree.programs.look_at_ns == 2 * S, "looks take a share of a CPU at most"
    tree.take_words(2 * S)
    assert tree.programs.look(2 * S)
    assert not tree.programs.look(3 * S), "after two seconds every sample checks"
    assert tree.programs.look_at_ns == NEVER_NS


def test_a_pod_that_is_spared_for_longer_stays_so(fake: FakeTree, tree: PodTree, monkeypatch: Patch) -> None:
    """It got a stop signal: one of its containers has ended, and the other one needs its time."""
    monkeypatch.setattr(programs, "is_made", lambda _: True)
    tree.refresh(0)
    fake.add_pod("web-0")
    (tracked,) = tree.refresh(S)[0]
    tracked.spare(31 * S)
    assert tree.programs.look(S + LOOK_NS)
    assert tracked.pod.spared_until_ns == 31 * S


def test_a_pod_stays_spared_until_its_own_word_is_known(fake: FakeTree, tree: PodTree, monkeypatch: Patch) -> None:
    """Its manifest may protect it."""
    answers = iter([False, False, True])
    requested: list[str] = []

    def request(pod: Cgroup) -> bool:
        requested.append(pod.path)
        return True

    monkeypatch.setattr(programs, "is_made", lambda _: True)
    monkeypatch.setattr(tree.words, "is_answered", lambda _: next(answers))
    tree.refresh(0)
    fake.add_pod("web-0")
    (tracked,) = tree.refresh(S)[0]
    monkeypatch.setattr(tree.words, "request", request)
    for number in range(3):
        at_ns = S + LOOK_NS + number * MS
        assert tree.programs.look_at_ns == at_ns
        assert tree.programs.look(at_ns) is (number == 2)
        assert (tracked.pod.spared_until_ns == at_ns) is (number == 2)
    assert requested == [tracked.cgroup.path] * 2, "a request wakes the thread that reads"


@pytest.mark.parametrize("is_new", [True, False], ids=["new-pod", "start-of-the-daemon"])
def test_a_word_that_cannot_be_read_keeps_a_pod_spared_for_two_seconds(
    fake: FakeTree, tree: PodTree, monkeypatch: Patch, is_new: bool
) -> None:
    """A process of another pod may hold up the thread that reads; at the daemon's start it has many words to read."""
    monkeypatch.setattr(programs, "is_made", lambda _: True)
    monkeypatch.setattr(programs, "inspect_pod", lambda _: PROGRAM)
    monkeypatch.setattr(tree.words, "is_answered", lambda _: False)
    if is_new:
        tree.refresh(0)
    fake.add_pod("web-0")
    (tracked,) = tree.refresh(S)[0]
    end_ns = S + LOOK_FOR_NS
    for at_ns in (S + int(SPARED_S * S), 2 * S, end_ns - 1):
        assert not tree.programs.look(at_ns)
        tree.check_programs(at_ns)
        assert tracked.pod.spared_until_ns == at_ns + 1
        assert tree.programs.awaits_word
    for at_ns in (end_ns, end_ns + S):
        assert not tree.programs.look(at_ns)
        tree.check_programs(at_ns)
        assert tracked.pod.spared_until_ns == end_ns
        assert not tree.programs.awaits_word
    assert tree.programs.look_at_ns == NEVER_NS


def test_a_pod_without_a_program_waits_for_no_word(fake: FakeTree, tree: PodTree, monkeypatch: Patch) -> None:
    monkeypatch.setattr(programs, "inspect_pod", lambda _: RUNTIME)
    monkeypatch.setattr(tree.words, "is_answered", lambda _: False)
    fake.add_pod("web-0")
    (tracked,) = tree.refresh(0)[0]
    tree.check_programs(S)
    assert tracked.pod.spared_until_ns == 0
    assert not tree.programs.awaits_word


def test_where_nothing_can_follow_no_look_costs_anything(fake: FakeTree, tree: PodTree, monkeypatch: Patch) -> None:
    """A protected pod is never paused. A pod with nothing but its sandbox gets an event with its next container."""
    looks: list[str] = []
    monkeypatch.setattr(programs, "is_made", lambda cgroup: looks.append(cgroup.path))  # None: no container yet
    tree.refresh(0)
    fake.add_pod("web-0")
    fake.add_pod("dns-0", namespace="kube-system")
    first, second = sorted(tree.refresh(S)[0], key=lambda one: one.pod.protected is not None)
    assert second.pod.protected is not None
    assert not tree.programs.look(S + LOOK_NS)
    assert not tree.programs.look(S + 2 * LOOK_NS)
    assert looks == [first.cgroup.path]
    assert tree.programs.look_at_ns < NEVER_NS, "its name may have come late"
    second.pod = replace(second.pod, protected=None)
    assert not tree.programs.look(S + 3 * LOOK_NS)
    assert looks == [first.cgroup.path, second.cgroup.path]
    assert tree.programs.look_at_ns == NEVER_NS


def test_the_limits_of_new_pods_count_as_memory_that_they_may_soon_take(
    fake: FakeTree, tree: PodTree, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(programs, "is_made", lambda _: True)
    fake.add_pod("old", memory_max=str(7 * MIB))
    tree.refresh(0)
    assert tree.programs.claims_bytes() == 0
    fake.add_pod("new", memory_max=str(20 * MIB))
    fake.add_pod("without-a-limit")
    tree.refresh(S)
    assert tree.programs.claims_bytes() == 20 * MIB
    new = next(one for one in tree.pods.values() if one.pod.memory_max_bytes == 20 * MIB)
    new.usage = PodUsage(8 * MIB, new.pod)
    assert tree.programs.claims_bytes() == 12 * MIB
    assert tree.programs.look(S + LOOK_NS)
    assert tree.programs.claims_bytes() == 0, "a decision counts them now"


def test_a_pod_that_is_gone_is_not_looked_into(fake: FakeTree, tree: PodTree, monkeypatch: Patch) -> None:
    monkeypatch.setattr(programs, "is_made", lambda _: False)
    tree.refresh(0)
    path = fake.add_pod("web-0")
    tree.refresh(S)
    shutil.rmtree(path)
    tree.refresh(S + MS)
    assert not tree.programs.look(S + LOOK_NS)
    assert tree.programs.look_at_ns == NEVER_NS


def test_a_pod_is_protected_once_a_program_in_it_is_critical_for_the_node(
    fake: FakeTree, tree: PodTree, monkeypatch: Patch
) -> None:
    found = [RUNTIME]
    monkeypatch.setattr(programs, "inspect_pod", lambda _: found[0])
    tree.refresh(0)
    fake.add_pod("csi-0")
    (tracked,) = tree.refresh(S)[0]
    tree.check_programs(2 * S)
    assert tracked.pod.protected is None
    found[0] = PROGRAM._replace(node_critical=True)
    tree.check_programs(3 * S)
    assert tracked.pod.protected == "critical for the node (oom_score_adj -997)"
    found[0] = PROGRAM
    tree.note_container_change(tracked, 4 * S)
    tree.check_programs(5 * S)
    assert tracked.pod.protected is not None, "an init container may be less critical than the program before it"


def test_a_pod_in_which_a_runtime_works_beside_a_program_is_spared_for_a_while(
    fake: FakeTree, tree: PodTree, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(programs, "inspect_pod", lambda _: BOTH)
    tree.refresh(0)
    fake.add_pod("web-0")
    (tracked,) = tree.refresh(S)[0]
    tree.check_programs(2 * S)
    assert tracked.pod.spared_until_ns == 2 * S + int(SPARED_S * S)
    tree.check_programs(20 * S)
    assert tracked.pod.spared_until_ns == 2 * S + int(SPARED_S * S), "a program may have the name of a runtime"


@pytest.mark.parametrize(
    ("inside", "made", "watched", "rests"),
    [
        pytest.param(PROGRAM, True, True, True, id="made"),
        pytest.param(PROGRAM, True, False, False, id="without-inotify"),
        pytest.param(PROGRAM, False, True, False, id="another-container-is-being-made"),
        pytest.param(BOTH, True, True, False, id="a-runtime-beside-the-program"),
        pytest.param(SANDBOX, None, True, False, id="no-container-yet"),
    ],
)
def test_a_new_pod_is_checked_in_each_sample_until_it_is_made(
    fake: FakeTree, tree: PodTree, monkeypatch: Patch, inside: Inside, made: bool | None, watched: bool, rests: bool
) -> None:
    checks: list[str] = []

    def inspect(cgroup: Cgroup) -> Inside:
        checks.append(cgroup.path)
        return inside

    monkeypatch.setattr(programs, "inspect_pod", inspect)
    monkeypatch.setattr(programs, "is_made", lambda _: made)
    tree.refresh(0)
    fake.add_pod("web-0")
    (tracked,) = tree.refresh(S)[0]
    for at_ns in (2 * S, 3 * S, 4 * S):  # a runtime spares the pod for SPARED_S
        tree.check_programs(at_ns, watched=watched)
    assert len(checks) == (1 if rests else 3)
    tree.note_container_change(tracked, 5 * S)
    tree.check_programs(6 * S, watched=watched)
    assert len(checks) == (2 if rests else 4), "an event reports its next container"


@pytest.mark.parametrize(
    ("waits", "watched", "seconds"),
    [
        pytest.param(RUNTIME, True, 1, id="a-runtime-works"),
        pytest.param(SANDBOX, True, 10, id="a-new-container-is-an-event"),
        pytest.param(SANDBOX, False, 1, id="without-inotify"),
    ],
)
def test_after_a_while_only_pods_that_still_wait_are_looked_at_and_not_in_each_sample(
    fake: FakeTree, tree: PodTree, monkeypatch: Patch, waits: Inside, watched: bool, seconds: int
) -> None:
    looks: list[Inside] = []
    found = [waits]

    def look(_: Cgroup) -> Inside:
        looks.append(found[0])
        return found[0]

    monkeypatch.setattr(programs, "inspect_pod", look)
    for child in containers(fake.add_pod("web-0")):
        (child / "memory.current").write_text("0\n")
    (tracked,) = tree.refresh(0)[0]
    for at_ns in (S, (1 + seconds) * S - 1, (1 + seconds) * S):
        tree.check_programs(at_ns, watched=watched)
        assert tracked.pod.no_program, "also where it waited before the daemon started"
        assert tree.programs.must_check is (seconds == 1), "else an event reports the program's container"
    assert len(looks) == 2
    found[0] = PROGRAM
    for at_ns in (21 * S, 40 * S, 60 * S):
        tree.check_programs(at_ns, watched=watched)
        assert not tracked.pod.no_program
    assert len(looks) == 3
    assert not tracked.signs.has_program, "whether it listens was asked when the daemon started"
    tree.note_container_change(tracked, 61 * S)
    tree.check_programs(61 * S)
    tree.check_programs(61 * S + 1)
    assert len(looks) == 5
    assert tracked.signs.has_program
