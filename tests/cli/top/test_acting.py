"""The result of a confirmed action: the ledger's answer or error in words, never a traceback."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.commandline import Patch, frozen
from helpers.refusals import failing
from helpers.trees import FakeTree, cpu_max, damage, pause_pod, records_left

from cgpause.cli.top.app import Keep, Load, act
from cgpause.cli.top.reader import Reader
from cgpause.cli.top.ui import Act, Deed
from cgpause.cli.top.values import PodState
from cgpause.config.load import load_config
from cgpause.config.settings import Config
from cgpause.core.clock import now_ns
from cgpause.core.errors import ConfigError, KernelError, KernelLockError, KernelReadError, KernelWriteError
from cgpause.core.model import Owner
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.telemetry.events import Event


@pytest.fixture
def reader(tree: FakeTree, web: Path, monkeypatch: Patch) -> Iterator[Reader]:
    monkeypatch.setenv("SUDO_USER", "alice")
    monkeypatch.setenv("PATH", "/nonexistent")  # hides systemctl
    with Reader(str(tree.root), str(tree.log_dir), Config()) as reader:
        reader.read(now_ns())
        yield reader


def keep(_: Event) -> None:
    """Keep nothing."""


def do(reader: Reader, deed: Deed, load: Load = Config, keep: Keep = keep) -> tuple[str, bool]:
    [web] = reader.read(now_ns()).pods
    return act(reader, load, keep, Act(deed, (web,)))


def test_what_was_written_is_said_and_noted_for_the_history(reader: Reader) -> None:
    noted: list[Event] = []
    already = "default/web: already paused (throttle) by hand: cgpause top by alice"
    for deed, said in (
        (Deed.PAUSE, ("default/web paused: cpu.max 50000 100000 -> 1001 100000", False)),
        (Deed.FREEZE, (f"{already}; to pause it otherwise, cgpause resume it first", True)),
        (Deed.RESUME, ("default/web resumed: cpu.max 50000 100000", False)),
        (Deed.RESUME, ("default/web is not paused", False)),
        (Deed.FREEZE, ("default/web paused: frozen", False)),
    ):
        assert do(reader, deed, keep=noted.append) == said

    assert [event.what for event in noted] == ["paused", "resumed", "paused"]
    assert {(one.pod, one.owner, one.reason) for one in noted} == {("default/web", "manual", "cgpause top by alice")}


def test_of_several_pods_the_failures_are_named(tree: FakeTree, web: Path, reader: Reader) -> None:
    db, cache = tree.add_pod("db"), tree.add_pod("cache")
    pods = reader.read(now_ns() + 10**10).pods
    os.setxattr(db, "user.oomd_omit", b"1")  # since it was looked at

    message, failed = act(reader, Config, keep, Act(Deed.FREEZE, pods))

    assert message.startswith("2 pods frozen; default/db is protected: ")
    assert message.endswith("cgpause pause --force default/db overrides")
    assert failed
    assert ([frozen(pod) for pod in (web, db, cache)], len(records_left(tree.root))) == ([True, False, True], 2)
    assert act(reader, Config, keep, Act(Deed.RESUME, pods[:1] + pods[2:])) == ("2 pods resumed", False)


def test_an_error_of_the_history_is_said_once_for_several_pods(tree: FakeTree, reader: Reader) -> None:
    tree.add_pod("db")
    pods = reader.read(now_ns() + 10**10).pods

    message, failed = act(reader, Config, lambda _: "the disk is full", Act(Deed.PAUSE, pods))

    assert (message, failed) == ("2 pods paused; the disk is full", False)


def test_a_pod_that_is_gone_is_said_to_be(reader: Reader, tree: FakeTree, web: Path) -> None:
    gone = Act(Deed.PAUSE, reader.read(now_ns()).pods)
    web.rename(tree.folder / "gone")
    reader.read(now_ns() + 10**10)

    assert act(reader, Config, keep, gone) == ("default/web is gone", True)


def test_the_configuration_counts_as_it_is_when_a_pod_is_paused(reader: Reader, tree: FakeTree, web: Path) -> None:
    file = tree.folder / "config.toml"

    def load() -> Config:
        return load_config(str(file), must_exist=True)

    file.write_text('[[pods]]\nmatch = "default/web"\nprotect = true\n')
    message, failed = do(reader, Deed.PAUSE, load)
    assert failed
    assert message.startswith("default/web is protected: ")
    [pod] = reader.read(now_ns()).pods
    assert pod.state is PodState.PROTECTED

    file.write_text("polycy = 1\nmechanizm = 2\n")
    message, failed = do(reader, Deed.PAUSE, load)
    assert failed
    assert message.startswith(f"default/web stays as it is: the configuration is broken: {file}: polycy: ")
    assert "mechanizm" in message
    assert message.isprintable()
    assert records_left(tree.root) == []

    file.write_text('mechanism = "freeze"\n')
    assert do(reader, Deed.PAUSE, load) == ("default/web paused: frozen", False)


def test_a_broken_configuration_keeps_no_pod_paused(reader: Reader, tree: FakeTree, web: Path) -> None:
    pause_pod(tree.root, web, Owner.DAEMON)

    load = failing(ConfigError("config.toml", ()))

    assert do(reader, Deed.RESUME, load) == ("default/web resumed: cpu.max 50000 100000", False)
    assert cpu_max(web) == "50000 100000"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
@pytest.mark.parametrize("kind", [KernelLockError, KernelReadError, KernelWriteError])
@pytest.mark.parametrize("deed", Deed)
def test_without_the_right_to_do_it_the_way_to_it_is_said(
    deed: Deed, kind: type[KernelError], number: int, reader: Reader, tree: FakeTree, web: Path, monkeypatch: Patch
) -> None:
    if deed is Deed.RESUME:
        pause_pod(tree.root, web, Owner.DAEMON)
    monkeypatch.setattr(Cgroup, "locked", failing(kind("/sys/fs/cgroup/x", OSError(number, ""))))

    message, failed = do(reader, deed)

    assert failed
    assert message.startswith(f"not permitted: run cgpause top as root to {deed} pods (cannot ")


def test_what_cannot_be_resumed_says_what_to_do_by_hand(reader: Reader, web: Path) -> None:
    damage(web)

    message, failed = do(reader, Deed.RESUME)

    assert failed
    assert "write the pod's cpu.max by hand" in message
    assert message.isprintable()
