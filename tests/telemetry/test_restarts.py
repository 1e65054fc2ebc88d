"""Restarts of containers, counted by the names of their logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgpause.telemetry.restarts import LogFolder, Restarts

WEB = LogFolder("u-1", "default", "web")
JOB = LogFolder("u-2", "default", "job")


def log(folder: Path, pod: LogFolder, container: str, number: int) -> None:
    path = folder / "pods" / f"{pod.namespace}_{pod.name}_{pod.uid}" / container
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{number}.log").touch()


def look(restarts: Restarts, *pods: LogFolder, present: tuple[LogFolder, ...] = (WEB, JOB)) -> int | None:
    restarts.look(pods, {pod.uid for pod in present})
    return restarts.total


@pytest.fixture
def restarts(tmp_path: Path) -> Restarts:
    return Restarts(str(tmp_path))


def test_restarts_before_the_first_look_are_not_ours_and_those_after_it_are(tmp_path: Path, restarts: Restarts) -> None:
    log(tmp_path, WEB, "app", 4)
    assert look(restarts, WEB) == 0

    log(tmp_path, WEB, "app", 5)
    assert look(restarts, WEB) == 1
    assert look(restarts, WEB) == 1


def test_containers_that_follow_each_other_are_no_restarts(tmp_path: Path, restarts: Restarts) -> None:
    """For example init containers, sidecars and ephemeral containers."""
    look(restarts)
    for container in ("init-1", "init-2", "app"):
        log(tmp_path, WEB, container, 0)
        assert look(restarts, WEB) == 0


def test_a_pod_that_came_later_counts_from_its_beginning(tmp_path: Path, restarts: Restarts) -> None:
    """The pod may have crashed before the first check."""
    look(restarts)
    log(tmp_path, JOB, "app", 0)
    log(tmp_path, JOB, "app", 1)
    log(tmp_path, JOB, "init", 2)

    assert look(restarts, JOB) == 3


def test_a_pod_that_was_there_but_not_its_name_is_not_taken_for_new(tmp_path: Path, restarts: Restarts) -> None:
    log(tmp_path, WEB, "app", 7)
    assert look(restarts, WEB._replace(name=None, namespace=None)) is None

    assert look(restarts, WEB) == 0


def test_a_log_that_goes_takes_nothing_back(tmp_path: Path, restarts: Restarts) -> None:
    look(restarts)
    log(tmp_path, WEB, "app", 2)
    assert look(restarts, WEB) == 2
    (tmp_path / "pods" / "default_web_u-1" / "app" / "2.log").unlink()
    log(tmp_path, WEB, "app", 0)

    assert look(restarts, WEB) == 2


def test_a_pod_that_is_gone_is_forgotten_and_its_restarts_stay(tmp_path: Path, restarts: Restarts) -> None:
    look(restarts)
    log(tmp_path, WEB, "app", 2)
    look(restarts, WEB)

    assert look(restarts, WEB, present=(JOB,)) == 2
    assert restarts._known == {}


@pytest.mark.parametrize("what", ["nothing", "file", "link", "garbage"])
def test_what_is_no_log_is_passed_over(tmp_path: Path, restarts: Restarts, what: str) -> None:
    look(restarts)
    log(tmp_path, WEB, "app", 1)
    pod = tmp_path / "pods" / "default_web_u-1"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "9.log").touch()
    match what:
        case "file":
            (pod / "5.log").touch()
        case "link":
            (pod / "other").symlink_to(elsewhere)
        case "garbage":
            for name in ("x.log", "9.log.20261122-101010", "-3.log", f"{'9' * 5000}.log"[:200], "٣.log", "9.txt"):
                (pod / "app" / name).touch()

    assert look(restarts, WEB) == 1


def test_without_logs_nobody_knows(restarts: Restarts) -> None:
    assert look(restarts, WEB, JOB) is None
