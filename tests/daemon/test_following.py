"""Trees and pods that come and go under a running daemon."""

from __future__ import annotations

import shutil
import time

from daemons import GIB, HIGH, MIB, NO_SACRIFICE, PAUSED, S, Start, cpu_max
from trees import FakeTree, rewrite, wait_until


def test_a_node_without_kubepods_is_waited_for(tree: FakeTree, start: Start) -> None:
    hidden = tree.folder / "hidden"
    tree.kubepods.rename(hidden)
    daemon = start()
    assert 'driver="none yet"' in daemon.log

    hidden.rename(tree.kubepods)
    pod = tree.add_pod("web")
    tree.set_used(HIGH)

    wait_until(lambda: cpu_max(pod) == PAUSED, "a pause in the tree that appeared")


def test_a_tree_that_vanishes_and_comes_back_is_followed(tree: FakeTree, start: Start) -> None:
    tree.add_pod("first")
    daemon = start()
    hidden = tree.folder / "hidden"
    tree.kubepods.rename(hidden)
    daemon.wait_for_log("pod gone pod=default/first")

    tree.kubepods.mkdir()
    for name in ("cgroup.events", "memory.max", "memory.stat", "memory.current"):
        (tree.kubepods / name).write_bytes((hidden / name).read_bytes())
    (tree.kubepods / "kubepods-burstable.slice").mkdir()
    second = tree.add_pod("second")
    tree.set_used(HIGH)

    wait_until(lambda: cpu_max(second) == PAUSED, "a pause in the new tree")


def test_of_two_trees_the_one_that_comes_into_use_is_found(tree: FakeTree, start: Start) -> None:
    """Nothing tells of it: only the tree that is in use is watched."""
    other = tree.root / "kubepods"
    shutil.copytree(tree.kubepods, other)
    for tier in ("burstable", "besteffort"):
        (other / f"kubepods-{tier}.slice").rename(other / tier)
    elsewhere = FakeTree(tree.folder / "elsewhere")
    pod = elsewhere.add_pod("web")
    daemon = start(before=f"from cgpause import walks; walks.WALK_NS = {S // 2}")

    pod.rename(other / "burstable" / f"pod{elsewhere.uids['web']}")

    daemon.wait_for_log(f"pod appeared pod={elsewhere.uids['web']}")


def test_new_pods_are_left_alone_until_they_have_settled(tree: FakeTree, start: Start) -> None:
    old = tree.add_pod("old", 2)
    daemon = start(NO_SACRIFICE + "[hold]\nsettle_s = 3600\n")
    new = tree.add_pod("new", 1)
    daemon.wait_for_log("pod appeared pod=default/new")

    tree.set_used(HIGH)
    wait_until(lambda: cpu_max(old) == PAUSED, "the old pod's pause")

    assert cpu_max(new) == "max 100000\n"


def test_facts_are_read_again_as_soon_as_memory_is_close(tree: FakeTree, start: Start) -> None:
    first = tree.add_pod("large", GIB // 2)
    pod = tree.add_pod("resized", 32 * MIB, memory_max=str(32 * MIB))  # full: it may take no more
    start('[[pods]]\nmatch = "*/*"\nclass = "batch"\n', before=f"from cgpause import walks; walks.WALK_NS = {S // 2}")
    time.sleep(1)  # older than the facts may be now, and the daemon does not walk again for ten minutes
    rewrite(pod / "memory.max", f"{GIB}\n")
    tree.set_used(HIGH)

    def grown_and_paused() -> bool:
        for path in (first, pod):
            current = int((path / "memory.current").read_text())
            rewrite(path / "memory.current", f"{min(current + 8 * MIB, GIB):020}\n")
        return cpu_max(pod) == PAUSED

    wait_until(grown_and_paused, "a pause of what may grow now")
