"""A pod's class (service, batch, starting) and its priority."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from helpers.fixtures import Patch
from helpers.nodes import S, record
from helpers.trees import FakeTree

from cgpause.config.settings import Config, PodClass, PodRule
from cgpause.core.model import Mechanism, OwnWord, PodKind
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.listening import Inside
from cgpause.pods import programs
from cgpause.pods import tracked as tracked_module
from cgpause.pods.tracked import TrackedPod
from cgpause.pods.tree import PodTree
from cgpause.policy.classify import STARTING_S
from cgpause.policy.kinds import FIRM_S, Kinds

PROGRAM, RUNTIME, SANDBOX = Inside(False, True), Inside(True, False), Inside(False, False)  # noqa: FBT003


class Asked:
    """A replacement for `listens` that gives the answer set for each pod and counts the questions."""

    def __init__(self) -> None:
        self.answers: dict[str, bool | None] = {}
        self.pods: list[str] = []

    def __call__(self, cgroup: Cgroup) -> bool | None:
        self.pods.append(cgroup.path)
        return self.answers.get(cgroup.path)


@pytest.fixture
def asked(monkeypatch: Patch) -> Asked:
    made = Asked()
    monkeypatch.setattr(tracked_module, "listens", made)
    return made


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(True, PodKind.SERVICE), (False, PodKind.BATCH), (None, PodKind.SERVICE)],
    ids=["listens", "does-not", "cannot-be-told"],
)
def test_a_pod_in_which_nothing_listens_is_batch(
    fake: FakeTree, tree: PodTree, asked: Asked, answer: bool | None, kind: PodKind
) -> None:
    asked.answers[str(fake.add_pod("web"))] = answer
    (tracked,) = tree.refresh(0)[0]
    assert tracked.pod.kind is kind


def test_rules_come_before_what_the_kernel_shows(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    tree.config = Config(
        pods=(
            PodRule(match="default/a", class_=PodClass.SERVICE, priority=3),
            PodRule(match="default/b", class_=PodClass.BATCH),
            PodRule(match="default/c", class_=PodClass.AUTO, priority=-3),
        )
    )
    asked.answers = {str(fake.add_pod("a")): False, str(fake.add_pod("b")): True, str(fake.add_pod("c")): False}
    tree.refresh(0)
    found = {t.pod.name: (t.pod.kind, t.pod.priority) for t in tree.pods.values()}
    assert found == {"a": (PodKind.SERVICE, 3), "b": (PodKind.BATCH, 0), "c": (PodKind.BATCH, -3)}
    assert len(asked.pods) == 1  # a pod with a class by rule is not asked

    tree.config = Config()
    tree.refresh(S)
    found = {t.pod.name: (t.pod.kind, t.pod.priority) for t in tree.pods.values()}
    assert found == {"a": (PodKind.BATCH, 0), "b": (PodKind.SERVICE, 0), "c": (PodKind.BATCH, 0)}


def test_a_batch_pod_is_asked_again_after_10_s_and_a_service_never(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    late, early = str(fake.add_pod("late")), str(fake.add_pod("early"))
    asked.answers = {late: False, early: True}
    tree.refresh(0)
    asked.answers = {late: True, early: False}
    asked.pods.clear()
    tree.refresh(10 * S - 1)
    assert [asked.pods, workloads(tree)] == [[], {"late": PodKind.BATCH, "early": PodKind.SERVICE}]
    tree.refresh(10 * S)
    assert [asked.pods, workloads(tree)] == [[late], {"late": PodKind.SERVICE, "early": PodKind.SERVICE}]
    tree.refresh(100 * S)
    assert asked.pods == [late]


def test_the_older_a_silent_pod_the_rarer_it_is_checked(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    """The checks of 110 pods every 10 s took most of the CPU time under pressure."""
    asked.answers[str(fake.add_pod("job"))] = False
    (tracked,) = tree.refresh(0)[0]

    def times(start_s: int, end_s: int) -> list[int]:
        found = []
        for at_s in range(start_s, end_s):
            asked.pods.clear()
            tree.read_details(at_s * S)
            found += [at_s] * len(asked.pods)
        return found

    assert times(1, 2000) == [10, 20, 40, 80, 160, 320, 640, 1240, 1840]
    tracked.pod = replace(tracked.pod, paused=record(2000 * S))
    assert times(2000, 2025) == [2000, 2010, 2020], "a pause may be long if it does not listen"
    tree.note_container_change(tracked, 2025 * S)
    tracked.clear_pause(2025 * S)
    assert times(2025, 2100) == [2035, 2045, 2065], "its new container may begin to listen"


def test_a_container_that_starts_may_yet_listen(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    """Otherwise a slow container would be paused for minutes before it listens, at each of its starts."""
    slow, known = str(fake.add_pod("slow")), str(fake.add_pod("known"))
    asked.answers = {slow: False, known: True}
    tree.refresh(0)
    assert workloads(tree) == {"slow": PodKind.BATCH, "known": PodKind.SERVICE}
    for tracked in tree.pods.values():
        tree.note_container_change(tracked, 5 * S)
    assert workloads(tree) == {"slow": PodKind.STARTING, "known": PodKind.SERVICE}
    starting_ns = int(STARTING_S * S)
    tree.refresh(5 * S + starting_ns - 1)
    assert workloads(tree) == {"slow": PodKind.STARTING, "known": PodKind.SERVICE}
    tree.refresh(5 * S + starting_ns)
    assert workloads(tree) == {"slow": PodKind.BATCH, "known": PodKind.SERVICE}


def test_of_silent_pods_from_before_the_daemon_only_known_services_are_starting(
    fake: FakeTree, tree: PodTree, asked: Asked
) -> None:
    """After an upgrade or a boot a service would be frozen as batch before it listens.

    A new job would be starting, because the daemon can pause pods of the other workload.
    """
    tree.classifier.kinds = Kinds({"default/web": True, "default/other": False})
    asked.answers = {str(fake.add_pod("web")): False, str(fake.add_pod("job")): False}
    tree.refresh(S)
    assert workloads(tree) == {"web": PodKind.STARTING, "job": PodKind.BATCH}
    tree.refresh(int((1 + FIRM_S) * S))
    assert workloads(tree) == {"web": PodKind.BATCH, "job": PodKind.BATCH}


def test_a_workload_is_known_by_its_other_pods(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    """The first pod of a Job takes STARTING_S to be known as batch; then all its other pods are batch at once."""
    first, second = str(fake.add_pod("job-0")), str(fake.add_pod("job-1"))
    asked.answers = {first: False, second: False}
    tree.refresh(0)
    (one, other) = sorted(tree.pods.values(), key=lambda tracked: str(tracked.pod.name))
    tree.note_container_change(one, 0)
    tree.note_container_change(other, 9 * S)
    assert workloads(tree) == {"job-0": PodKind.STARTING, "job-1": PodKind.STARTING}
    tree.refresh(int(STARTING_S * S))
    assert workloads(tree) == {"job-0": PodKind.BATCH, "job-1": PodKind.BATCH}
    tree.note_container_change(other, 20 * S)  # its container starts again
    assert workloads(tree)["job-1"] is PodKind.BATCH


def end(tree: PodTree, path: str, at_ns: int) -> None:
    """Remove a pod: first its container, then its cgroup."""
    (tracked,) = tree.pods.values()
    tree.note_container_change(tracked, at_ns)
    shutil.rmtree(path)
    tree.refresh(at_ns)


@pytest.mark.parametrize(
    ("inside", "answer", "known"),
    [
        pytest.param(PROGRAM, None, {"default/web": None}, id="short-job"),
        pytest.param(RUNTIME, None, {}, id="image-was-pulled"),
        pytest.param(None, None, {}, id="no-process-seen"),
        pytest.param(PROGRAM, False, {"default/web": False}, id="did-not-listen"),
        pytest.param(PROGRAM, True, {"default/web": True}, id="listened"),
    ],
)
def test_a_workload_is_certainly_batch_only_if_a_pod_of_it_did_not_listen(
    fake: FakeTree,
    tree: PodTree,
    asked: Asked,
    monkeypatch: Patch,
    inside: Inside | None,
    answer: bool | None,
    known: dict[str, bool | None],
) -> None:
    monkeypatch.setattr(programs, "inspect_pod", lambda _: inside)
    tree.refresh(0)
    path = str(fake.add_pod("web-0"))
    (tracked,) = tree.refresh(S)[0]
    tree.note_container_change(tracked, S)
    tree.check_programs(2 * S)
    if answer is not None:
        asked.answers[path] = answer
        tree.refresh(12 * S)
    end(tree, path, 15 * S)

    assert tree.classifier.kinds.known() == known


@pytest.mark.parametrize(
    ("inside", "kills", "doubted"),
    [
        pytest.param(PROGRAM, 0, True, id="the-next-container-runs"),
        pytest.param(SANDBOX, 0, False, id="its-only-container-ended"),
        pytest.param(PROGRAM, 1, False, id="the-same-container-after-a-kill"),
    ],
)
def test_the_silence_of_an_init_container_says_nothing_of_the_container_after_it(
    fake: FakeTree, tree: PodTree, asked: Asked, monkeypatch: Patch, inside: Inside, kills: int, doubted: bool
) -> None:
    """Otherwise a service whose init container ran for a minute would be frozen as batch before it can listen."""
    monkeypatch.setattr(programs, "inspect_pod", lambda _: inside)
    tree.refresh(0)
    path = fake.add_pod("web-0")
    asked.answers = {str(path): False}
    tree.refresh(S)
    for at_s in (20, 70, 80):
        tree.refresh(at_s * S)
    (tracked,) = tree.pods.values()
    assert tree.classifier.kinds.known() == {"default/web": False}
    assert tracked.pod.kind is PodKind.BATCH

    (path / "memory.events").write_text(f"oom_kill {kills}\n")
    tree.note_container_change(tracked, 100 * S)
    tree.check_programs(101 * S)
    assert tree.classifier.kinds.known() == ({} if doubted else {"default/web": False})
    assert tracked.pod.kind is (PodKind.STARTING if doubted else PodKind.BATCH)

    shutil.rmtree(path)
    tree.refresh(102 * S)
    assert tree.classifier.kinds.known() == ({"default/web": None} if doubted else {"default/web": False})


def test_the_end_of_a_pod_with_a_class_by_rule_says_nothing_of_its_workload(fake: FakeTree, tree: PodTree) -> None:
    tree.config = Config(pods=(PodRule(match="*", class_=PodClass.SERVICE),))
    tree.refresh(0)
    path = str(fake.add_pod("web-0"))
    tree.refresh(S)
    end(tree, path, 5 * S)

    assert tree.classifier.kinds.known() == {}


def test_a_workload_is_known_as_soon_as_its_pod_has_a_name(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    """kubelet makes a pod's log folder after its cgroup."""
    asked.answers = {str(fake.add_pod("job-0")): False}
    tree.refresh(0)
    tree.refresh(int(STARTING_S * S))
    fake.add_pod("job-1", log=False)
    tree.refresh(20 * S)
    (late,) = (tracked for tracked in tree.pods.values() if tracked.pod.name is None)
    assert late.pod.kind is PodKind.STARTING

    (fake.log_dir / "pods" / f"default_job-1_{late.pod.uid}").mkdir()
    tree.refresh(21 * S, facts=False)

    assert workloads(tree) == {"job-0": PodKind.BATCH, "job-1": PodKind.BATCH}


def test_a_workload_that_listens_after_all_is_not_known_as_batch(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    slow, later = str(fake.add_pod("web-0")), str(fake.add_pod("web-1"))
    asked.answers = {slow: False, later: False}
    tree.refresh(0)
    tree.refresh(20 * S)
    asked.answers[slow] = True
    tree.refresh(40 * S)
    (other,) = [tracked for tracked in tree.pods.values() if tracked.pod.name == "web-1"]
    tree.note_container_change(other, 41 * S)
    assert workloads(tree) == {"web-0": PodKind.SERVICE, "web-1": PodKind.STARTING}


def paused_while_it_starts(fake: FakeTree, tree: PodTree, asked: Asked, since_ns: int) -> tuple[str, TrackedPod]:
    """Add a pod that does not listen, start it after 1 s and pause it; return its path and the pod."""
    path = str(fake.add_pod("slow-0"))
    (tracked,) = tree.refresh(0)[0]
    tree.note_container_change(tracked, S)
    asked.answers, asked.pods = {path: False}, []
    tracked.pod = replace(tracked.pod, paused=record(since_ns))
    return path, tracked


def test_a_pod_is_no_older_after_a_pause(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    """Otherwise a service that was paused while it started would be taken for batch, and be frozen."""
    # While another workload is certainly batch, a silent young pod is STARTING.
    tree.classifier.kinds.note_batch("default/job")
    _, tracked = paused_while_it_starts(fake, tree, asked, 6 * S)
    tree.refresh(100 * S)
    assert tracked.pod.kind is PodKind.STARTING
    assert tracked.signs.ran_s(tracked.pod.paused, 100 * S) == 5.0
    assert asked.pods == [], "it has not run long enough to be asked"
    tracked.clear_pause(105 * S)
    assert tracked.pod.paused is None
    tree.refresh(159 * S)
    assert workloads(tree) == {"slow-0": PodKind.STARTING}
    assert not tree.classifier.kinds.known().get("default/slow")
    tree.refresh(169 * S)
    assert workloads(tree) == {"slow-0": PodKind.BATCH}
    tracked.pod = replace(tracked.pod, paused=record(170 * S))
    tree.note_container_change(tracked, 180 * S)  # a new container, in the pause
    tracked.clear_pause(190 * S)
    assert tracked.signs.ran_s(tracked.pod.paused, 200 * S) == 10.0


def test_a_pod_paused_while_it_started_is_not_taken_for_batch(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    """No workload is certainly batch here, so a pod that was asked and does not listen counts as batch."""
    slow, tracked = paused_while_it_starts(fake, tree, asked, 3 * S)
    tree.refresh(20 * S)
    tracked.clear_pause(21 * S)
    tree.refresh(28 * S)
    assert (asked.pods, tracked.pod.kind) == ([], PodKind.STARTING)
    tree.refresh(29 * S)
    assert (asked.pods, tracked.pod.kind) == ([slow], PodKind.BATCH)


def workloads(tree: PodTree) -> dict[str | None, PodKind]:
    return {tracked.pod.name: tracked.pod.kind for tracked in tree.pods.values()}


def test_a_pod_told_to_end_counts_as_a_service_for_ten_minutes(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    asked.answers = {str(fake.add_pod("job-0")): False}
    (job,) = tree.refresh(0)[0]

    tree.classifier.note_stop_signal(job, S)
    assert workloads(tree) == {"job-0": PodKind.SERVICE}
    tree.note_container_change(job, 2 * S)  # one of its containers has ended
    tree.refresh(601 * S - 1)
    assert workloads(tree) == {"job-0": PodKind.SERVICE}
    assert not tree.classifier.kinds.known().get("default/job"), "its workload is no service"

    tree.refresh(601 * S)
    assert workloads(tree) == {"job-0": PodKind.BATCH}


@pytest.mark.parametrize(("rules", "kind"), [((), PodKind.SERVICE), (("batch",), PodKind.BATCH)], ids=["own", "rule"])
def test_a_stop_signal_counts_for_batch_by_its_own_word_but_not_by_a_rule(
    fake: FakeTree, tree: PodTree, asked: Asked, rules: tuple[str, ...], kind: PodKind
) -> None:
    tree.config = Config(pods=tuple(PodRule(match="*/*", class_=PodClass(rule)) for rule in rules))
    fake.add_pod("job-0")
    (job,) = tree.refresh(0)[0]
    job.word = OwnWord.BATCH
    tree.refresh(1)
    assert (workloads(tree), asked.pods[1:]) == ({"job-0": PodKind.BATCH}, [])

    tree.classifier.note_stop_signal(job, S)
    tree.refresh(300 * S)
    assert workloads(tree) == {"job-0": kind}
    tree.refresh(601 * S)
    assert workloads(tree) == {"job-0": PodKind.BATCH}


def test_a_pod_that_had_no_process_yet_is_asked_again_after_10_s(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    path = str(fake.add_pod("web"))
    tree.refresh(0)
    asked.answers[path] = False
    tree.read_details(10 * S - 1)
    tree.read_details(10 * S, only_stat=True)
    assert workloads(tree) == {"web": PodKind.SERVICE}
    tree.read_details(10 * S)
    assert workloads(tree) == {"web": PodKind.BATCH}


def test_a_new_pod_is_asked_at_once_and_known_ones_in_turns(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    paths = {str(fake.add_pod(f"pod{number}")) for number in range(20)}
    asked.answers = dict.fromkeys(paths, False)
    tree.refresh(0)
    assert set(asked.pods) == paths
    asked.pods.clear()
    tree.read_details(10 * S)
    assert len(asked.pods) == 16
    tree.read_details(11 * S)
    assert set(asked.pods) == paths  # the four pods that had to wait, and no pod twice
    assert len(asked.pods) == 20


@pytest.mark.parametrize(("mechanism", "asks"), [(Mechanism.FREEZE, 2), (Mechanism.THROTTLE, 3)])
def test_a_pod_that_is_frozen_is_asked_once(
    fake: FakeTree, tree: PodTree, asked: Asked, mechanism: Mechanism, asks: int
) -> None:
    """It may have begun to listen since it was last asked; frozen, it cannot begin."""
    asked.answers[str(fake.add_pod("web"))] = False
    (tracked,) = tree.refresh(0)[0]
    tracked.pod = replace(tracked.pod, paused=replace(record(S), mechanism=mechanism))
    tree.read_details(2 * S)
    assert len(asked.pods) == 2, "at once, although it was asked less than 10 s ago"
    tree.read_details(100 * S)
    assert len(asked.pods) == asks
    tracked.pod = replace(tracked.pod, paused=None)
    tree.read_details(120 * S)
    assert len(asked.pods) == asks + 1


def test_of_all_replicas_with_init_containers_none_is_batch(
    fake: FakeTree, tree: PodTree, asked: Asked, monkeypatch: Patch
) -> None:
    """The second replica made nothing certain, and was asked after its own start, because it was paused."""
    monkeypatch.setattr(programs, "inspect_pod", lambda _: PROGRAM)
    tree.refresh(0)
    asked.answers = {str(fake.add_pod("web-0")): False, str(fake.add_pod("web-1")): False}
    tree.refresh(S)
    for at_s in (20, 70, 80):
        tree.refresh(at_s * S)
    first, second = sorted(tree.pods.values(), key=lambda tracked: tracked.signs.made_batch_ns, reverse=True)
    tree.note_container_change(second, 98 * S)
    second.pod = replace(second.pod, paused=record(98 * S + 1), no_program=True)
    tree.read_details(99 * S)
    assert second.pod.kind is PodKind.BATCH
    tree.note_container_change(first, 100 * S)
    tree.check_programs(101 * S)
    assert [one.pod.kind for one in (first, second)] == [PodKind.STARTING] * 2
    assert not second.signs.was_silent, "if it ends now, its workload is not batch"
