"""The dashboard's last decisions, as the history has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgpause.cli.top.past import Kept
from cgpause.telemetry import history
from cgpause.telemetry.events import Event


def note(path: Path, at: float) -> None:
    history.append(str(path), Event(at, "paused", "default/web", "uid", "no room"), 1 << 20)


def test_the_history_is_read_again_when_there_is_more(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    kept = Kept(str(path))
    kept.look()
    assert not kept.events
    note(path, 1.0)
    kept.look()
    before = kept.events
    assert [event.at for event in before] == [1.0]
    kept.look()
    assert kept.events is before
    note(path, 2.0)
    kept.look()
    assert [event.at for event in kept.events] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("folder", "the history cannot be read: "),
        ("link", "the history cannot be read: "),
        ("nothing", "no history so far"),
    ],
)
def test_a_history_that_cannot_be_read_is_none_and_the_dashboard_can_say_why(
    tmp_path: Path, there: str, said: str
) -> None:
    path = tmp_path / "history.jsonl"
    if there == "folder":
        path.mkdir()
    elif there == "link":
        note(tmp_path / "other", 1.0)
        path.symlink_to("other")
    kept = Kept(str(path))
    kept.look()
    assert kept.events == ()
    assert kept.none.startswith(said)


def test_without_a_path_there_is_none() -> None:
    kept = Kept(None)
    kept.look()
    assert kept.events == ()
    assert "--state-dir" in kept.none


def test_of_one_pod_its_own_events_are_found_among_the_others(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for number in range(500):
        event = Event(number, "paused", "default/web", f"uid-{number % 250}", "no room")
        history.append(str(path), event, 1 << 20)
    kept = Kept(str(path))
    assert kept.of("uid-7") == ()
    kept.look()

    assert [event.at for event in kept.of("uid-7")] == [7.0, 257.0]
    assert kept.of("uid-none") == ()
    path.unlink()
    assert kept.of("uid-7") == ()
