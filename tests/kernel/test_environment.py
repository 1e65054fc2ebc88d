"""A pod's own word in the environment of its containers' first processes; the processes are real, the tree is made."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from helpers.fixtures import Patch
from helpers.processes import Start, containers, put
from helpers.trees import FakeTree
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core.clock import NS_PER_S, now_ns
from cgpause.core.errors import KernelReadError
from cgpause.core.model import OwnWord
from cgpause.core.parse import parse_variable
from cgpause.kernel import environment
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.environment import ContainerWords, strongest


@pytest.fixture
def web(tree: FakeTree) -> Path:
    return tree.add_pod("web")


def read(pod: Path, known: ContainerWords | None = None) -> OwnWord | None:
    with Cgroup(str(pod.parent), pod.name) as cgroup:
        return (known or ContainerWords()).read(cgroup)


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
        (b"\xff\xfe", OwnWord.UNKNOWN),
    ],
    ids=lambda value: str(value)[:8],
)
def test_the_word_is_that_of_the_containers_process(
    web: Path, start_process: Start, value: str | bytes, word: OwnWord
) -> None:
    put(containers(web)[0], start_process({"PATH": "/"}))
    put(containers(web)[1], start_process({b"A": b"1", b"CGPAUSE": os.fsencode(value), b"B": b"\xff"}))
    assert read(web) is word


@pytest.mark.parametrize("below", ["container", "container/init.scope"], ids=["crun", "init-in-crun"])
def test_processes_further_down_are_read(web: Path, start_process: Start, below: str) -> None:
    (containers(web)[1] / "container").mkdir()
    put(containers(web)[1] / below, start_process({"CGPAUSE": "protect"}))
    assert read(web) is OwnWord.PROTECT


def test_a_threaded_cgroup_hides_no_process_beside_it(web: Path, start_process: Start, monkeypatch: Patch) -> None:
    put(containers(web)[1], start_process({"CGPAUSE": "protect"}))
    put(containers(web)[1] / "threaded")
    pids = Cgroup.pids

    def refuse(self: Cgroup, below: str = "") -> list[int]:
        if below == "threaded":
            raise KernelReadError("cgroup.procs", OSError(errno.EOPNOTSUPP, "Operation not supported"))
        return pids(self, below)

    monkeypatch.setattr(Cgroup, "pids", refuse)
    assert read(web) is OwnWord.PROTECT


def test_only_the_first_process_of_a_container_speaks_for_it(web: Path, start_process: Start) -> None:
    first = start_process({"CGPAUSE": "batch"})
    later = [start_process({"CGPAUSE": "protect"}) for _ in range(2)]
    put(containers(web)[1], *later, first)
    assert read(web) is OwnWord.BATCH


def test_the_strongest_word_of_the_containers_is_the_pods(web: Path, start_process: Start) -> None:
    put(containers(web)[0], start_process({"CGPAUSE": "batch"}))
    put(containers(web)[1], start_process({"CGPAUSE": "service"}))
    assert read(web) is OwnWord.SERVICE


def test_a_later_reading_goes_on_with_the_containers_that_one_leaves_out(web: Path, start_process: Start) -> None:
    plain = start_process({"PATH": "/"})
    for container in containers(web):
        put(container, plain)
    for number in range(100):
        put(web / f"crio-conmon-{number:064x}.scope", plain)
        put(web / f"crio-{number:064x}.scope", plain)
    put(web / f"crio-{77:064x}.scope", start_process({"CGPAUSE": "protect"}))
    known = ContainerWords()
    first, was_complete = read(web, known), known.is_complete
    assert not was_complete
    assert strongest(first, read(web, known)) is OwnWord.PROTECT
    assert known.is_complete


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


def test_a_container_is_read_once_and_only_when_its_own_program_runs(web: Path, start_process: Start) -> None:
    sandbox, container = containers(web)
    put(sandbox, start_process({"PATH": "/"}))
    known = ContainerWords()

    assert read(web, known) is None
    assert not known.is_complete, "the container has no process yet"
    put(container, start_process({"CGPAUSE": "protect"}, name="runc:[2:INIT]"))
    assert read(web, known) is None
    assert not known.is_complete, "its process is the runtime's"
    put(container, start_process({"CGPAUSE": "batch"}))
    assert read(web, known) is OwnWord.BATCH
    assert known.is_complete
    put(container, start_process({"CGPAUSE": "protect"}))
    assert read(web, known) is None, "not read again"


@pytest.mark.parametrize(
    ("age_s", "word", "is_complete"),
    [
        pytest.param(9, None, False, id="a-runtime"),
        pytest.param(11, OwnWord.BATCH, False, id="perhaps-a-runtime-on-a-slow-node"),
        pytest.param(129, OwnWord.BATCH, False, id="not-yet-certain"),
        pytest.param(131, OwnWord.BATCH, True, id="a-program"),
    ],
)
def test_an_unnamed_process_may_be_a_runtime_or_a_program(
    web: Path, start_process: Start, monkeypatch: Patch, age_s: int, word: OwnWord | None, is_complete: bool
) -> None:
    """crun keeps the name of a descriptor until its program starts; gVisor's sandbox has the name `exe` for good."""
    put(containers(web)[0], start_process({"PATH": "/"}))
    put(containers(web)[1], start_process({"CGPAUSE": "batch"}, name="3"))
    monkeypatch.setattr(environment, "read_started_ns", lambda _: now_ns() - age_s * NS_PER_S)
    known = ContainerWords()
    assert read(web, known) is word
    assert known.is_complete is is_complete
    put(containers(web)[1], start_process({"CGPAUSE": "protect"}))
    assert read(web, known) is (None if is_complete else OwnWord.PROTECT)


def test_of_a_huge_environment_only_a_part_is_read(web: Path, start_process: Start, monkeypatch: Patch) -> None:
    monkeypatch.setattr(environment, "_MOST_BYTES", 8192)
    put(containers(web)[0], start_process({"PATH": "/"}))
    filler = "x" * (8192 - len("A=\0CGPAUSE=protect\0"))
    put(containers(web)[1], start_process({"A": filler + "xxxxx", "CGPAUSE": "protect"}))
    assert read(web) is None, "an entry that is cut off is none"
    put(containers(web)[1], start_process({"CGPAUSE": "protect", "A": filler * 10}))
    assert read(web) is OwnWord.PROTECT


def test_a_process_that_has_ended_is_no_error_and_hides_none_that_runs(web: Path, start_process: Start) -> None:
    put(containers(web)[1], 2**22 + 1)
    known = ContainerWords()
    assert read(web, known) is None
    assert not known.is_complete
    put(containers(web)[1], 2**22 + 1, start_process({"CGPAUSE": "protect"}))
    assert read(web, known) is OwnWord.PROTECT


def test_an_environment_that_stays_empty_is_the_programs(web: Path, start_process: Start, monkeypatch: Patch) -> None:
    """In an exec it is empty for a moment only."""
    sandbox, container = containers(web)
    put(sandbox, start_process({"PATH": "/"}))
    put(container, start_process({}))
    known = ContainerWords()
    assert read(web, known) is None
    assert not known.is_complete
    monkeypatch.setattr(environment, "_EMPTY_S", 0.0)
    assert read(web, known) is None
    assert known.is_complete
