"""Own words of pods in the tree of pods and in the daemon's thread; the processes are real, the tree is made."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.fixtures import Log, Patch
from helpers.nodes import MS, S
from helpers.processes import Start, containers, put
from helpers.refusals import failing
from helpers.trees import FakeTree, wait_until

from cgpause.config.settings import Config, PodRule, ProtectConfig
from cgpause.core.errors import KernelReadError
from cgpause.core.model import OwnWord, PodKind
from cgpause.kernel import environment
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.environment import ContainerWords
from cgpause.pods.own_words import OwnWords, OwnWordsThread
from cgpause.pods.tree import PodTree

OWN = "its own word (CGPAUSE=protect)"


# --- the tree of pods ------------------------------------------------------------------------------------------------


class Requested(OwnWords):
    """Words that the test sets, and the pods that were requested."""

    def __init__(self) -> None:
        super().__init__("/")
        self.pods: list[str] = []
        self.can = True

    def request(self, pod: Cgroup) -> bool:
        self.pods.append(os.path.basename(pod.path))
        return self.can


@pytest.fixture
def words() -> Requested:
    return Requested()


@pytest.fixture
def tree(fake: FakeTree, words: Requested) -> Iterator[PodTree]:
    made = PodTree(str(fake.root), str(fake.log_dir), Config(), words=words)
    yield made
    made.close()


@pytest.fixture
def web(fake: FakeTree, start_process: Start) -> Path:
    """Return a pod whose container says protect."""
    made = fake.add_pod("web")
    put(containers(made)[1], start_process({"CGPAUSE": "protect"}))
    return made


def test_a_pod_is_requested_once_until_its_containers_change(fake: FakeTree, tree: PodTree, words: Requested) -> None:
    fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    for at_ns in range(1, 5):
        tree.refresh(at_ns)
        tree.read_details(at_ns)
    assert len(words.pods) == 1
    tree.note_container_change(tracked, 6)
    tree.refresh(7)
    assert len(words.pods) == 2


def test_a_pod_is_requested_again_if_no_thread_could_start(fake: FakeTree, tree: PodTree, words: Requested) -> None:
    words.can = False
    fake.add_pod("web")
    tree.refresh(0)
    words.can = True
    tree.refresh(1)
    tree.refresh(2)
    assert len(words.pods) == 2


def test_a_word_that_comes_later_counts_as_soon_as_it_is_taken(fake: FakeTree, tree: PodTree, words: Requested) -> None:
    fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    words._keep(tracked.pod.cgroup, OwnWord.BATCH)
    tree.take_words(1)
    assert tracked.pod.kind is PodKind.BATCH
    words._keep(tracked.pod.cgroup, OwnWord.PROTECT)
    tree.take_words(2)
    assert tracked.pod.protected == OWN
    words._keep(tracked.pod.cgroup, OwnWord.BATCH)
    tree.take_words(3)
    assert tracked.pod.protected == OWN, "a manifest never changes, so a container that says less changes nothing"


def test_a_word_that_is_read_after_the_last_look_counts_in_the_next_sample(
    fake: FakeTree, tree: PodTree, words: Requested
) -> None:
    fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    words._keep(tracked.pod.cgroup, OwnWord.PROTECT)
    tree.check_programs(1)
    assert tracked.pod.protected == OWN


def test_no_environment_is_read_where_no_word_is_heeded(fake: FakeTree, tree: PodTree, words: Requested) -> None:
    fake.add_pod("web")
    fake.add_pod("trusted")
    tree.config = Config(protect=ProtectConfig(own_word=False), pods=(PodRule(match="default/trusted", own_word=True),))
    tree.refresh(0)
    assert [name for name in words.pods if "00000002" in name] == words.pods != []
    tree.config = Config()
    tree.refresh(1)
    assert len(words.pods) == 2, "after a reload it is"


def test_after_a_reload_without_own_words_none_counts(fake: FakeTree, tree: PodTree, words: Requested) -> None:
    fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    words._keep(tracked.pod.cgroup, OwnWord.PROTECT)
    tree.refresh(1)
    assert tracked.pod.protected == OWN
    tree.config = Config(protect=ProtectConfig(own_word=False))
    tree.refresh(2)
    assert tracked.pod.protected is None


@pytest.mark.usefixtures("web")
def test_a_command_reads_the_words_at_once(fake: FakeTree) -> None:
    tree = PodTree(str(fake.root), str(fake.log_dir), Config())
    (tracked,) = tree.refresh(0)[0]
    assert tracked.pod.protected == OWN
    tree.close()


@pytest.fixture
def pods(fake: FakeTree, start_process: Start) -> list[Path]:
    """Return three pods whose processes all say protect."""
    made = [fake.add_pod(f"pod-{number}") for number in range(3)]
    for pod in made:
        for folder in containers(pod):
            put(folder, start_process({"CGPAUSE": "protect"}))
    return made


def hold_up(monkeypatch: Patch, *pods: Path) -> threading.Lock:
    """Let the readings of some pods wait for the lock that is returned; one of 0.05 s takes too long."""
    lock, read, names = threading.Lock(), ContainerWords.read, {pod.name for pod in pods}

    def read_waiting(words: ContainerWords, pod: Cgroup) -> OwnWord | None:
        if os.path.basename(pod.path) in names:
            with lock:
                pass
        return read(words, pod)

    monkeypatch.setattr(ContainerWords, "read", read_waiting)
    monkeypatch.setattr("cgpause.pods.own_words._PATIENCE_S", 0.05)
    return lock


def test_a_process_that_keeps_its_lock_costs_a_command_its_own_word_only(
    fake: FakeTree, pods: list[Path], monkeypatch: Patch
) -> None:
    """`/proc/<pid>/environ` waits for the mmap_lock of the process; a lock that the test holds stands for it."""
    hung, *others = (pod.name for pod in pods)
    tree = PodTree(str(fake.root), str(fake.log_dir), Config())
    with hold_up(monkeypatch, pods[0]):
        wait_until(lambda: len(words_of(tree)) == 2, "the words of the others")
        assert words_of(tree).keys() == set(others)
        assert [os.path.basename(key.path) for key, pod in tree.pods.items() if tree.is_word_unread(pod)] == [hung]
    wait_until(lambda: len(words_of(tree)) == 3, "the word of the pod that has gone on")
    assert not any(map(tree.is_word_unread, tree.pods.values()))
    tree.close()


def words_of(tree: PodTree) -> dict[str, OwnWord]:
    """Refresh the tree; return the known own words, by the name of the pod's folder."""
    tree.refresh(0)
    return {os.path.basename(key.path): one.word for key, one in tree.pods.items() if one.word is not None}


def test_a_word_that_cannot_be_read_now_is_read_again(fake: FakeTree, web: Path, monkeypatch: Patch) -> None:
    tree = PodTree(str(fake.root), str(fake.log_dir), Config())
    with monkeypatch.context() as patch:
        patch.setattr(ContainerWords, "read", failing(KernelReadError("x", OSError(errno.EMFILE, ""))))
        assert not words_of(tree)
        assert all(map(tree.is_word_unread, tree.pods.values()))
    assert words_of(tree) == {web.name: OwnWord.PROTECT}
    assert not any(map(tree.is_word_unread, tree.pods.values()))
    tree.close()


def test_a_command_starts_four_readers_at_most(fake: FakeTree, monkeypatch: Patch) -> None:
    made = [fake.add_pod(f"pod-{number}") for number in range(6)]
    started = []
    start = threading.Thread.start

    def start_and_count(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_and_count)
    tree = PodTree(str(fake.root), str(fake.log_dir), Config())
    with hold_up(monkeypatch, *made):
        for at_ns in range(5):
            tree.refresh(at_ns)
        assert len(started) == 4
        assert all(map(tree.is_word_unread, tree.pods.values())), "nobody may pause them without --force"
    wait_until(lambda: not (words_of(tree) or any(map(tree.is_word_unread, tree.pods.values()))), "an end")
    tree.close()


def test_a_command_goes_on_without_words_if_no_thread_can_start(fake: FakeTree, web: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(threading.Thread, "start", failing(RuntimeError("can't start new thread")))
    tree = PodTree(str(fake.root), str(fake.log_dir), Config())

    (tracked,) = tree.refresh(0)[0]

    assert (tracked.word, tracked.pod.protected) == (None, None)
    tree.close()


# --- the daemon's thread ---------------------------------------------------------------------------------------------


@pytest.fixture
def thread(fake: FakeTree) -> OwnWordsThread:
    return OwnWordsThread(str(fake.root))


def opened(fake: FakeTree, folder: Path) -> Cgroup:
    return Cgroup(str(fake.root), str(folder.relative_to(fake.root)))


def hear(thread: OwnWordsThread, found: dict[str, OwnWord]) -> dict[str, OwnWord]:
    """Add the words that the thread has found to `found`, by the name of the pod's folder, and return it."""
    found.update({os.path.basename(key.path): word for key, word in thread.take().items()})
    return found


def test_the_thread_waits_for_a_container_that_is_being_made(
    fake: FakeTree, start_process: Start, thread: OwnWordsThread
) -> None:
    web, db = fake.add_pod("web"), fake.add_pod("db")
    for pod in (web, db):
        put(containers(pod)[0], start_process({"PATH": "/"}))
    put(containers(db)[1], start_process({"CGPAUSE": "service"}))
    found: dict[str, OwnWord] = {}
    with opened(fake, web) as one, opened(fake, db) as two:
        thread.request(one)
        thread.request(two)
        wait_until(lambda: db.name in hear(thread, found), "the word of db")
        assert web.name not in found
        assert not thread.is_answered(one.id), "one container of it is being made"
        put(containers(web)[1], start_process({"CGPAUSE": "protect"}))
        wait_until(lambda: web.name in hear(thread, found), "the word of web")
        wait_until(lambda: all(thread.is_answered(pod.id) for pod in (one, two)), "the answers")
    assert found == {web.name: OwnWord.PROTECT, db.name: OwnWord.SERVICE}


def test_without_the_right_the_thread_says_so_once(
    fake: FakeTree, start_process: Start, thread: OwnWordsThread, caplog: Log, monkeypatch: Patch
) -> None:
    read_file, allowed = environment._read, start_process({"CGPAUSE": "batch"})

    def refuse(pid: int, name: str, most: int) -> bytes:
        if pid != allowed:
            raise PermissionError
        return read_file(pid, name, most)

    monkeypatch.setattr(environment, "_read", refuse)
    pods = [fake.add_pod("web"), fake.add_pod("db")]
    put(containers(pods[0])[0], start_process({"PATH": "/"}))
    put(containers(pods[1])[0], allowed)
    for pod in pods:
        put(containers(pod)[1], start_process({"CGPAUSE": "protect"}))
        with opened(fake, pod) as cgroup:
            assert thread._read(cgroup.id, ContainerWords())
    assert list(thread.take().values()) == [OwnWord.BATCH], "that of the container that may be read"
    [line] = caplog.messages
    assert line.startswith("own words of pods not read ")
    assert "CAP_SYS_PTRACE" in line


@pytest.mark.parametrize(
    ("config", "refused"), [(Config(), True), (Config(protect=ProtectConfig(own_word=False)), False)]
)
@pytest.mark.usefixtures("web")
def test_a_command_knows_that_it_may_not_read_the_words(
    fake: FakeTree, monkeypatch: Patch, config: Config, refused: bool
) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError

    monkeypatch.setattr(environment, "_read", refuse)
    tree = PodTree(str(fake.root), str(fake.log_dir), config)
    tree.refresh(0)
    assert tree.words.is_refused is refused
    tree.close()


def test_a_bug_costs_only_the_words_of_the_pods_that_it_meets(
    fake: FakeTree, web: Path, thread: OwnWordsThread, monkeypatch: Patch, caplog: Log
) -> None:
    monkeypatch.setattr(ContainerWords, "read", lambda *_: 1 / 0)
    with opened(fake, web) as cgroup:
        assert thread.request(cgroup)
        wait_until(lambda: "own word of a pod not read" in caplog.text, "the error")
        monkeypatch.undo()
        assert thread.request(cgroup)
        wait_until(lambda: cgroup.id in thread.take(), "the word")


def test_a_pod_that_has_gone_or_was_made_again_gets_no_word(fake: FakeTree, web: Path, thread: OwnWordsThread) -> None:
    with opened(fake, web) as cgroup:
        assert thread._read(cgroup.id._replace(inode=cgroup.id.inode + 1), ContainerWords())
        assert thread._read(cgroup.id._replace(path=cgroup.id.path + "x"), ContainerWords())
        assert thread.take() == {}


def test_a_process_that_keeps_its_lock_holds_up_the_word_of_its_own_pod_only(
    fake: FakeTree, pods: list[Path], thread: OwnWordsThread, monkeypatch: Patch, caplog: Log
) -> None:
    hung, *others = pods
    found: dict[str, OwnWord] = {}

    def is_left_behind() -> bool:
        hear(thread, found)
        return "own word of a pod not read" in caplog.text

    with hold_up(monkeypatch, hung), opened(fake, hung) as one:
        assert thread.request(one)
        wait_until(is_left_behind, "the thread to be left behind")
        assert not thread.request(one), "or each change of its containers would take another thread"
        for pod in others:
            with opened(fake, pod) as other:
                assert thread.request(other)
        wait_until(lambda: hear(thread, found).keys() == {pod.name for pod in others}, "the words of the others")
    wait_until(lambda: hung.name in hear(thread, found), "the word of the pod whose process has gone on")


def test_while_the_thread_is_held_up_no_pod_may_be_paused_whose_word_is_unread(
    fake: FakeTree, pods: list[Path], thread: OwnWordsThread, monkeypatch: Patch
) -> None:
    tree = PodTree(str(fake.root), str(fake.log_dir), Config(), words=thread)
    with hold_up(monkeypatch, *pods):
        monkeypatch.setattr("cgpause.pods.own_words._PATIENCE_S", 600.0)
        tree.refresh(S)
        tree.check_programs(2 * S)
        assert [one.pod.spared_until_ns for one in tree.pods.values()] == [2 * S + 1] * 3

    def are_protected() -> bool:
        tree.check_programs(2 * S + MS)
        return all(one.pod.protected == OWN for one in tree.pods.values())

    wait_until(are_protected, "the words")
    tree.check_programs(2 * S + 2 * MS)
    assert {one.pod.spared_until_ns for one in tree.pods.values()} <= {2 * S + 1, 2 * S + MS + 1}
    tree.close()


def test_when_too_many_pods_hold_up_their_reading_the_log_says_so_once(
    fake: FakeTree, pods: list[Path], thread: OwnWordsThread, monkeypatch: Patch, caplog: Log
) -> None:
    monkeypatch.setattr("cgpause.pods.own_words._MOST_HELD_UP", 1)
    found: dict[str, OwnWord] = {}
    said = 'own words of pods not read error="the processes of 2 pods hang in the kernel"'
    with hold_up(monkeypatch, *pods[:2]):
        for pod in pods:
            with opened(fake, pod) as cgroup:
                assert thread.request(cgroup)
        wait_until(lambda: not hear(thread, found) and said in caplog.text, "the second pod to hold up its reading")
        time.sleep(0.1)
        assert hear(thread, found) == {}
        assert caplog.text.count(said) == 1
    wait_until(lambda: hear(thread, found).keys() == {pod.name for pod in pods}, "all words")


def test_a_pod_that_is_requested_twice_holds_up_one_thread(
    fake: FakeTree, pods: list[Path], thread: OwnWordsThread, monkeypatch: Patch, caplog: Log
) -> None:
    found: dict[str, OwnWord] = {}
    hung, *others = pods
    with hold_up(monkeypatch, hung), opened(fake, hung) as one:
        assert thread.request(one)
        wait_until(lambda: thread._reading is not None, "the reading of the first request")
        assert thread.request(one)
        for pod in others:
            with opened(fake, pod) as other:
                assert thread.request(other)
        wait_until(lambda: hear(thread, found).keys() == {pod.name for pod in others}, "the words of the others")
        assert len([text for text in caplog.messages if hung.name in text]) == 1
    wait_until(lambda: hung.name in hear(thread, found), "the word of the pod whose process has gone on")


def test_a_pod_that_cannot_be_read_now_is_read_again(
    fake: FakeTree, pods: list[Path], thread: OwnWordsThread, monkeypatch: Patch
) -> None:
    """Many pods that start at once may leave the node without a descriptor."""
    failed = threading.Event()

    def fail(*_: object) -> None:
        failed.set()
        raise KernelReadError("kubepods", OSError(errno.EMFILE, os.strerror(errno.EMFILE)))

    with opened(fake, pods[0]) as cgroup:
        with monkeypatch.context() as patch:
            patch.setattr(ContainerWords, "read", fail)
            assert thread.request(cgroup)
            assert failed.wait(60)
        wait_until(lambda: cgroup.id in thread.take(), "the word")


def test_words_that_were_requested_are_read_although_no_thread_could_start(
    fake: FakeTree, pods: list[Path], thread: OwnWordsThread, monkeypatch: Patch, caplog: Log
) -> None:
    """The thread that is left behind has them; another one cannot start at first, and no request follows."""
    hung, other = pods[:2]
    found: dict[str, OwnWord] = {}
    with hold_up(monkeypatch, hung), opened(fake, hung) as one, opened(fake, other) as two:
        assert thread.request(one)
        wait_until(lambda: thread._reading is not None, "the reading")
        assert thread.request(two)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", failing(RuntimeError("can't start new thread")))
            wait_until(lambda: not hear(thread, found) and "can't start new thread" in caplog.text, "a refusal")
            assert hear(thread, found) == {}
            assert caplog.text.count("can't start new thread") == 1
        wait_until(lambda: other.name in hear(thread, found), "the word of the other pod")
