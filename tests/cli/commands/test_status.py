"""`cgpause status`: its order and its formats."""

from __future__ import annotations

from helpers.commandline import MIB, argv, run
from helpers.terminals import TerminalProgram
from helpers.trees import FakeTree, pause_pod

from cgpause.core.model import Owner


def test_paused_pods_come_first_and_then_the_largest(tree: FakeTree) -> None:
    for name, size in (("small", 1), ("large", 300), ("middle", 20)):
        tree.add_pod(name, size * MIB)
    pause_pod(tree.root, tree.add_pod("held", 5 * MIB), Owner.DAEMON)

    lines = run(tree, "status").stdout.splitlines()

    assert [line.split()[0] for line in lines[7:]] == [
        f"default/{name}" for name in ("held", "large", "middle", "small")
    ]
    assert lines[4] == "pods      4: 1 paused, 0 protected; 326.0Mi used"


def test_a_namespace_without_a_pod_is_named(tree: FakeTree) -> None:
    """As kubectl does: an empty table looks like a node without pods."""
    tree.add_pod("web")

    assert run(tree, "status", "-n", "default").stderr == ""
    nowhere = run(tree, "status", "-n", "nowhere")

    assert (nowhere.exit_code, nowhere.stderr) == (0, "cgpause: no pod in namespace 'nowhere'\n")


def test_a_wide_status_has_all_columns_on_any_terminal(tree: FakeTree) -> None:
    tree.add_pod("web")
    with TerminalProgram(argv(tree, "status", "-o", "wide")) as shown:
        assert "QOS" in shown.wait_for("running")
    with TerminalProgram(argv(tree, "status")) as shown:
        assert "QOS" not in shown.wait_for("running")
