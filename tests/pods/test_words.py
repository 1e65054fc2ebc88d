"""A pod's own word: the environment of its containers' first processes, with real processes in a made tree."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.trees import FakeTree, wait_until
from hypothesis import given
from hypothesis import strategies as st

from cgpause.config.settings import Config, PodClass, PodRule, ProtectConfig
from cgpause.core.model import OwnWord, QosClass, Workload
from cgpause.core.names import PodName
from cgpause.core.parse import parse_variable
from cgpause.kernel import environment
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.environment import Containers, strongest
from cgpause.pods.tree import PodTree
from cgpause.pods.words import Words, WordsThread
from cgpause.policy.protect import heeds_word, pod_class, protection

Start = Callable[..., int]
BURSTABLE = QosClass.BURSTABLE
WEB = PodName("default", "web")
UID = "0f9d1a2b-3c4d-4e5f-8a6b-7c8d9e0f1a2b"


@pytest.fixture
def fake(tmp_path: Path) -> FakeTree:
    return FakeTree(tmp_path)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start processes with a given environment, named as given; end them afterwards."""
    processes = []

    def started(env: dict[str, str] | dict[bytes, bytes], name: str = "") -> int:
        code = "import sys; print(flush=True); sys.stdin.read()"
        if name:
            code = f"open('/proc/self/comm', 'w').write({name!r}); {code}"
        argv = [sys.executable, "-ISc", code]
        process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid

    yield started
    for process in processes:
        process.communicate()


def containers(folder: Path) -> list[Path]:
    """Return the sandbox and the container of a pod."""
    return sorted(folder.glob("*.scope"))


def put(place: Path, *pids: int) -> None:
    place.mkdir(exist_ok=True)
    (place / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


def read(fake: FakeTree, folder: Path, known: Containers | None = None) -> OwnWord | None:
    with Cgroup(str(fake.root), str(folder.relative_to(fake.root))) as pod:
        return (known or Containers()).read(pod)


# --- the environment -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "value"),
    [
        pytest.param(b"", None, id="empty"),
        pytest.param(b"CGPAUSE=batch", b"batch", id="first-and-cut"),
        pytest.param(b"A=1\0CGPAUSE=batch\0B=2\0", b"batch", id="among-others"),
        pytest.param(b"CGPAUSE=\0", b"", id="set-to-nothing"),
        pytest.param(b"CGPAUSE=batch\0CGPAUSE=protect\0", b"batch", id="twice-the-first-as-getenv"),
        pytest.param(b"XCGPAUSE=batch\0CGPAUSES=batch\0", None, id="other-names"),
        pytest.param(b"A=\nCGPAUSE=batch\0", None, id="in-a-value"),
        pytest.param(b"\xff\xfe=\x80\0CGPAUSE=\xff\0", b"\xff", id="undecodable"),
        pytest.param(b"\0\0\0\0", None, id="overwritten"),
    ],
)
def test_a_variable_is_found_as_getenv_finds_it(environ: bytes, value: bytes | None) -> None:
    assert parse_variable(environ, b"CGPAUSE") == value


@given(st.binary())
def test_no_environment_is_an_error(environ: bytes) -> None:
    value = parse_variable(environ, b"CGPAUSE")
    assert value is None or (b"\0" not in value and value in environ)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("protect", OwnWord.PROTECT),
        ("service", OwnWord.SERVICE),
        ("batch", OwnWord.BATCH),
        ("Protect", OwnWord.UNKNOWN),
        ("", OwnWord.UNKNOWN),
        ("protect\nservice", OwnWord.UNKNOWN),
        ("p" * 100_000, OwnWord.UNKNOWN),
    ],
    ids=lambda value: str(value)[:8],
)
def test_the_word_is_that_of_the_containers_process(fake: FakeTree, start: Start, value: str, word: OwnWord) -> None:
    pod = fake.add_pod("web")
    put(containers(pod)[0], start({"PATH": "/"}))
    put(containers(pod)[1], start({"A": "1", "CGPAUSE": value, "B": "2"}))
    assert read(fake, pod) is word


def test_bytes_that_are_no_text_are_no_word(fake: FakeTree, start: Start) -> None:
    pod = fake.add_pod("web")
    put(containers(pod)[1], start({b"CGPAUSE": b"\xff\xfe", b"\xff": b"\xff"}))
    assert read(fake, pod) is OwnWord.UNKNOWN


def test_cruns_processes_one_level_down_are_read(fake: FakeTree, start: Start) -> None:
    pod = fake.add_pod("web")
    put(containers(pod)[1] / "container", start({"CGPAUSE": "protect"}))
    assert read(fake, pod) is OwnWord.PROTECT


def test_only_the_first_process_of_a_container_speaks_for_it(fake: FakeTree, start: Start) -> None:
    pod = fake.add_pod("web")
    first = start({"CGPAUSE": "batch"})
    later = [start({"CGPAUSE": "protect"}) for _ in range(2)]
    put(containers(pod)[1], *later, first)
    assert read(fake, pod) is OwnWord.BATCH


def test_the_strongest_word_of_the_containers_is_the_pods(fake: FakeTree, start: Start) -> None:
    pod = fake.add_pod("web")
    put(containers(pod)[0], start({"CGPAUSE": "batch"}))
    put(containers(pod)[1], start({"CGPAUSE": "service"}))
    assert read(fake, pod) is OwnWord.SERVICE


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ((), None),
        ((None, None), None),
        ((OwnWord.UNKNOWN, None), OwnWord.UNKNOWN),
        ((OwnWord.UNKNOWN, OwnWord.BATCH), OwnWord.BATCH),
        ((OwnWord.BATCH, OwnWord.SERVICE), OwnWord.SERVICE),
        ((OwnWord.SERVICE, OwnWord.PROTECT, OwnWord.BATCH), OwnWord.PROTECT),
    ],
)
def test_protect_is_stronger_than_service_and_service_than_batch(
    words: tuple[OwnWord | None, ...], word: OwnWord | None
) -> None:
    assert strongest(*words) is word


def test_a_container_is_read_once_and_only_when_its_own_program_runs(fake: FakeTree, start: Start) -> None:
    pod = fake.add_pod("web")
    sandbox, container = containers(pod)
    put(sandbox, start({"PATH": "/"}))
    known = Containers()

    assert read(fake, pod, known) is None
    assert not known.is_complete, "the container has no process yet"
    put(container, start({"CGPAUSE": "protect"}, name="runc:[2:INIT]"))
    assert read(fake, pod, known) is None
    assert not known.is_complete, "its process is the runtime's"
    put(container, start({"CGPAUSE": "batch"}))
    assert read(fake, pod, known) is OwnWord.BATCH
    assert known.is_complete
    put(container, start({"CGPAUSE": "protect"}))
    assert read(fake, pod, known) is None, "not read again"


def test_of_a_huge_environment_only_a_part_is_read(
    fake: FakeTree, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_MOST_BYTES", 8192)
    pod = fake.add_pod("web")
    put(containers(pod)[0], start({"PATH": "/"}))
    filler = "x" * (8192 - len("A=\0CGPAUSE=protect\0"))
    put(containers(pod)[1], start({"A": filler + "xxxxx", "CGPAUSE": "protect"}))
    assert read(fake, pod) is None, "an entry that is cut off is none"
    put(containers(pod)[1], start({"CGPAUSE": "protect", "A": filler * 10}))
    assert read(fake, pod) is OwnWord.PROTECT


def test_a_process_that_has_ended_does_not_hide_those_that_run(fake: FakeTree, start: Start) -> None:
    pod = fake.add_pod("web")
    put(containers(pod)[1], 2**22 + 1, start({"CGPAUSE": "protect"}))
    assert read(fake, pod) is OwnWord.PROTECT


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("runc:[2:INIT]", None),
        ("runc", None),
        ("exe", None),
        ("6", None),
        ("crunch", OwnWord.BATCH),
        ("runcible", OwnWord.BATCH),
        ("7zip", OwnWord.BATCH),
    ],
)
def test_only_a_runtime_makes_the_reading_wait(fake: FakeTree, start: Start, name: str, word: OwnWord | None) -> None:
    pod = fake.add_pod("web")
    put(containers(pod)[1], start({"CGPAUSE": "batch"}, name))
    assert read(fake, pod) is word


def test_a_process_that_has_ended_is_no_error(fake: FakeTree) -> None:
    pod = fake.add_pod("web")
    put(containers(pod)[1], 2**22 + 1)
    known = Containers()
    assert read(fake, pod, known) is None
    assert not known.is_complete


# --- the rules -------------------------------------------------------------------------------------------------------


def reason(config: Config, word: OwnWord | None = OwnWord.PROTECT, name: PodName | None = WEB) -> str | None:
    heeded = word if heeds_word(BURSTABLE, name, config) else None
    return protection(uid=UID, qos=BURSTABLE, name=name, opt_outs=(), holds_us=False, config=config, word=heeded)


OWN = "its own word (CGPAUSE=protect)"
ALLOW = PodRule(match="default/*", protect=False)


@pytest.mark.parametrize(
    ("config", "protected"),
    [
        pytest.param(Config(), OWN, id="by-default"),
        pytest.param(Config(protect=ProtectConfig(own_word=False)), None, id="not-heeded"),
        pytest.param(Config(pods=(ALLOW,)), OWN, id="declines-what-a-rule-allows"),
        pytest.param(Config(protect=ProtectConfig(all=True), pods=(ALLOW,)), OWN, id="keeps-out-of-an-allow-list"),
        pytest.param(
            Config(pods=(PodRule(match="default/*", protect=False, own_word=False),)), None, id="rule-ends-it"
        ),
        pytest.param(
            Config(pods=(PodRule(match="*/*", own_word=True),), protect=ProtectConfig(own_word=False)),
            OWN,
            id="rule-heeds-it",
        ),
        pytest.param(
            Config(pods=(PodRule(match="default/*", protect=True),)),
            "rule 1 ([[pods]] match = 'default/*')",
            id="a-rule-that-protects-is-named-first",
        ),
    ],
)
def test_a_pod_protects_itself_unless_the_operator_says_otherwise(config: Config, protected: str | None) -> None:
    assert reason(config) == protected


@pytest.mark.parametrize("word", [None, *OwnWord])
def test_no_word_allows_a_pause(word: OwnWord | None) -> None:
    assert reason(Config(protect=ProtectConfig(all=True)), word) is not None
    assert reason(Config(), word, PodName("kube-system", "dns")) is not None
    assert reason(Config(), word, None) == "its name is unknown while rules depend on names"


@pytest.mark.parametrize("ruled", [None, *PodClass])
@pytest.mark.parametrize("word", [None, *OwnWord])
def test_a_word_gives_a_class_only_where_no_rule_does(word: OwnWord | None, ruled: PodClass | None) -> None:
    config = Config() if ruled is None else Config(pods=(PodRule(match="*/*", class_=ruled),))
    found = pod_class(BURSTABLE, WEB, config, word)
    if ruled in (PodClass.BATCH, PodClass.SERVICE):
        assert found is ruled
    else:
        assert found == (word if word in (OwnWord.BATCH, OwnWord.SERVICE) else PodClass.AUTO)


# --- the tree of pods ------------------------------------------------------------------------------------------------


class Asked(Words):
    """Words that the test sets, and the pods that were asked for."""

    def __init__(self) -> None:
        super().__init__("/")
        self.pods: list[str] = []
        self.can = True

    def ask(self, pod: Cgroup) -> bool:
        self.pods.append(os.path.basename(pod.path))
        return self.can


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def tree(fake: FakeTree, asked: Asked) -> Iterator[PodTree]:
    made = PodTree(str(fake.root), str(fake.log_dir), Config(), words=asked)
    yield made
    made.close()


def test_a_pod_is_asked_once_until_its_containers_change(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    for at_ns in range(1, 5):
        tree.refresh(at_ns)
        tree.read_details(at_ns)
    assert len(asked.pods) == 1
    tree.starts(tracked, 6)
    tree.refresh(7)
    assert len(asked.pods) == 2


def test_a_pod_is_asked_again_if_no_thread_could_start(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    asked.can = False
    fake.add_pod("web")
    tree.refresh(0)
    asked.can = True
    tree.refresh(1)
    tree.refresh(2)
    assert len(asked.pods) == 2


def test_a_word_that_comes_later_counts_as_soon_as_it_is_taken(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    asked._keep(tracked.pod.cgroup, OwnWord.BATCH)
    tree.take_words(1)
    assert tracked.pod.workload is Workload.BATCH
    asked._keep(tracked.pod.cgroup, OwnWord.PROTECT)
    tree.take_words(2)
    assert tracked.pod.protected == OWN
    asked._keep(tracked.pod.cgroup, OwnWord.BATCH)
    tree.take_words(3)
    assert tracked.pod.protected == OWN, "a manifest never changes, so a container that says less changes nothing"


def test_no_environment_is_read_where_the_operator_heeds_no_word(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    fake.add_pod("web")
    fake.add_pod("trusted")
    tree.config = Config(protect=ProtectConfig(own_word=False), pods=(PodRule(match="default/trusted", own_word=True),))
    tree.refresh(0)
    assert [name for name in asked.pods if "00000002" in name] == asked.pods != []
    tree.config = Config()
    tree.refresh(1)
    assert len(asked.pods) == 2, "after a reload it is"


def test_after_a_reload_without_own_words_none_counts(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    asked._keep(tracked.pod.cgroup, OwnWord.PROTECT)
    tree.refresh(1)
    assert tracked.pod.protected == OWN
    tree.config = Config(protect=ProtectConfig(own_word=False))
    tree.refresh(2)
    assert tracked.pod.protected is None


def test_a_command_reads_the_words_at_once(fake: FakeTree, start: Start) -> None:
    pod = fake.add_pod("web")
    put(containers(pod)[1], start({"CGPAUSE": "protect"}))
    tree = PodTree(str(fake.root), str(fake.log_dir), Config())
    (tracked,) = tree.refresh(0)[0]
    assert tracked.pod.protected == OWN
    tree.close()


def test_a_command_waits_only_once_for_a_process_that_keeps_its_lock(
    fake: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/proc/<pid>/environ` waits for the mmap_lock of the process; a lock that the test holds stands for it."""
    lock, readings = threading.Lock(), []

    def read_waiting(_: Containers, pod: Cgroup) -> None:
        readings.append(pod.path)
        lock.acquire()
        lock.release()

    monkeypatch.setattr(Containers, "read", read_waiting)
    monkeypatch.setattr("cgpause.pods.words._PATIENCE_S", 0.05)
    for name in ("web", "db", "job"):
        fake.add_pod(name)
    tree = PodTree(str(fake.root), str(fake.log_dir), Config())
    with lock:
        assert len(tree.refresh(0)[0]) == 3, "it goes on without the words"
        assert len(readings) == 1
    tree.close()


# --- the daemon's thread ---------------------------------------------------------------------------------------------


@pytest.fixture
def thread(fake: FakeTree) -> WordsThread:
    return WordsThread(str(fake.root))


def opened(fake: FakeTree, folder: Path) -> Cgroup:
    return Cgroup(str(fake.root), str(folder.relative_to(fake.root)))


def test_the_thread_waits_for_a_container_that_is_being_made(fake: FakeTree, start: Start, thread: WordsThread) -> None:
    web, db = fake.add_pod("web"), fake.add_pod("db")
    for pod in (web, db):
        put(containers(pod)[0], start({"PATH": "/"}))
    put(containers(db)[1], start({"CGPAUSE": "service"}))
    found: dict[str, OwnWord] = {}

    def heard(name: str) -> bool:
        found.update({os.path.basename(key.path): word for key, word in thread.take().items()})
        return name in found

    with opened(fake, web) as one, opened(fake, db) as two:
        thread.ask(one)
        thread.ask(two)
        wait_until(lambda: heard(db.name), "the word of db")
        assert web.name not in found
        put(containers(web)[1], start({"CGPAUSE": "protect"}))
        wait_until(lambda: heard(web.name), "the word of web")
    assert found == {web.name: OwnWord.PROTECT, db.name: OwnWord.SERVICE}


def test_without_the_right_the_thread_says_so_once(
    fake: FakeTree, start: Start, thread: WordsThread, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_file, allowed = environment._read, start({"CGPAUSE": "batch"})

    def refuse(pid: int, name: str, most: int) -> bytes:
        if pid != allowed:
            raise PermissionError
        return read_file(pid, name, most)

    monkeypatch.setattr(environment, "_read", refuse)
    pods = [fake.add_pod("web"), fake.add_pod("db")]
    put(containers(pods[0])[0], start({"PATH": "/"}))
    put(containers(pods[1])[0], allowed)
    for pod in pods:
        put(containers(pod)[1], start({"CGPAUSE": "protect"}))
        with opened(fake, pod) as cgroup:
            assert thread._read(cgroup.id, Containers())
    assert list(thread.take().values()) == [OwnWord.BATCH], "that of the container that may be read"
    [line] = caplog.messages
    assert line.startswith("own words of pods not read ")
    assert "CAP_SYS_PTRACE" in line


def test_a_bug_costs_only_the_words_of_the_pods_that_it_meets(
    fake: FakeTree, start: Start, thread: WordsThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(thread, "_read", lambda *_: 1 / 0)
    pod = fake.add_pod("web")
    put(containers(pod)[1], start({"CGPAUSE": "protect"}))
    with opened(fake, pod) as cgroup:
        assert thread.ask(cgroup)
        wait_until(lambda: "own words of pods not read" in caplog.text, "the error")
        monkeypatch.undo()
        assert thread.ask(cgroup)
        wait_until(lambda: cgroup.id in thread.take(), "the word")


def test_a_pod_that_has_gone_or_was_made_again_gets_no_word(fake: FakeTree, start: Start, thread: WordsThread) -> None:
    pod = fake.add_pod("web")
    put(containers(pod)[1], start({"CGPAUSE": "protect"}))
    with opened(fake, pod) as cgroup:
        assert thread._read(cgroup.id._replace(inode=cgroup.id.inode + 1), Containers())
        assert thread._read(cgroup.id._replace(path=cgroup.id.path + "x"), Containers())
        assert thread.take() == {}
