"""`pause` and `resume` with `--dry-run`: the same answers as without it, and no change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.commandline import GIB, run, snapshot
from helpers.trees import FakeTree, damage, pause_pod

from cgpause.core.model import Mechanism, Owner


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("pause web", ["default/web would be paused (throttle)"]),
        ("pause db", ["default/db already paused (throttle) by hand: test"]),
        ("pause web --mechanism freeze", ["default/web would be paused (freeze)"]),
        ("pause web --for 10m", ["default/web would be paused (throttle)"]),
        ("pause guarded --force", ["default/guarded would be paused (throttle)"]),
        ("pause slow frozen", [f"default/{name} would be taken over from the daemon" for name in ("slow", "frozen")]),
        ("pause slow --mechanism freeze", ["default/slow would be taken over from the daemon, and frozen"]),
        ("resume web db", ["default/web is not paused", "default/db would be resumed"]),
    ],
)
def test_a_dry_run_says_what_it_would_do_and_changes_nothing(command: str, said: list[str], tree: FakeTree) -> None:
    tree.add_pod("web")
    tree.add_pod("guarded", tier="")
    pause_pod(tree.root, tree.add_pod("db"), Owner.MANUAL)
    pause_pod(tree.root, tree.add_pod("slow"))
    pause_pod(tree.root, tree.add_pod("frozen"), mechanism=Mechanism.FREEZE)
    before = snapshot(tree.root)

    result = run(tree, *command.split(), "--dry-run")

    assert (result.exit_code, result.stdout.splitlines()) == (0, said)
    assert snapshot(tree.root) == before


def freeze_unasked(pod: Path) -> None:
    (pod / "cgroup.freeze").write_text("1\n")


@pytest.mark.parametrize(
    ("held", "arrange", "args"),
    [
        ((Owner.DAEMON, Mechanism.FREEZE), None, "--mechanism throttle"),
        ((Owner.DAEMON, Mechanism.THROTTLE), freeze_unasked, "--mechanism freeze"),
        ((Owner.DAEMON, Mechanism.THROTTLE), lambda pod: (pod / "cpu.max").write_text("rubbish\n"), ""),
        ((Owner.MANUAL, Mechanism.THROTTLE), None, "--mechanism freeze"),
        ((Owner.MANUAL, Mechanism.FREEZE), None, "--mechanism throttle --for 10m"),
        ((Owner.MANUAL, Mechanism.THROTTLE), None, ""),
        (None, freeze_unasked, "--mechanism freeze"),
        (None, lambda pod: (pod / "cpu.max").write_text("rubbish\n"), ""),
        (None, damage, ""),
    ],
    ids=[
        "taking-over-frozen", "taking-over-frozen-by-others", "taking-over-unreadable", "by-hand-otherwise",
        "by-hand-longer", "by-hand", "frozen-by-others", "unreadable", "damaged",
    ],
)  # fmt: skip
def test_a_dry_run_gives_the_answer_of_the_real_pause_where_that_changes_nothing(
    held: tuple[Owner, Mechanism] | None, arrange: Callable[[Path], object] | None, args: str, tree: FakeTree, web: Path
) -> None:
    if held is not None:
        pause_pod(tree.root, web, *held)
    if arrange is not None:
        arrange(web)
    before = snapshot(tree.root)

    trial = run(tree, "pause", "web", *args.split(), "--dry-run")
    assert snapshot(tree.root) == before
    really = run(tree, "pause", "web", *args.split())

    assert snapshot(tree.root) == before
    assert (trial.exit_code, trial.stdout, trial.stderr) == (really.exit_code, really.stdout, really.stderr)
    assert (trial.exit_code == 0) == (held == (Owner.MANUAL, Mechanism.THROTTLE) and not args)


@pytest.mark.parametrize("command", ["check", "status", "status -ojson", "explain", "explain -ojson", "config"])
def test_commands_that_only_look_change_nothing(command: str, tree: FakeTree) -> None:
    tree.set_used(int(0.99 * GIB))
    tree.add_pod("web")
    pause_pod(tree.root, tree.add_pod("db"), Owner.MANUAL)
    damage(tree.add_pod("damaged"))
    before = snapshot(tree.folder)

    assert run(tree, *command.split()).exit_code == 0
    assert snapshot(tree.folder) == before
