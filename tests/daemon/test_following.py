"""Kubepods trees and pods that come and go while the daemon runs."""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path

from helpers.daemons import GIB, HIGH, MIB, PAUSED, Running, S, Start, pause_web
from helpers.processes import containers
from helpers.trees import FakeTree, cpu_max, other_tree, records_left, rewrite, wait_until

ALL_BATCH = '[[pods]]\nmatch = "*/*"\nclass = "batch"\n'
WALK_OFTEN = f"from cgpause.pods import refresh_times; refresh_times.REFRESH_NS = {S // 2}"


def start_and_sample(tree: FakeTree, start: Start, config: str, before: str) -> Running:
    """Start a daemon and wait for its first sample: to it, the pods of that one are not new."""
    sampled = tree.folder / "sampled"
    mark = f"""
import pathlib
from cgpause.pods.sampler import Sampler
take = Sampler.sample
def sample(*args, **options):
    taken = take(*args, **options)
    pathlib.Path({str(sampled)!r}).touch()
    return taken
Sampler.sample = sample"""
    daemon = start(config, before=f"{mark}{before}")
    wait_until(sampled.exists, "the first sample")
    return daemon


def test_facts_are_read_again_as_soon_as_memory_is_close(tree: FakeTree, start: Start) -> None:
    first = tree.add_pod("large", GIB // 2, memory_max=str(GIB))
    pod = tree.add_pod("resized", 32 * MIB, memory_max=str(32 * MIB))  # full: it can take no more
    # A use above the limit has the facts read again as well.
    blind = "from cgpause.pods import tracked; tracked.TrackedPod.exceeds_limit = lambda _: False"
    start_and_sample(tree, start, ALL_BATCH, f"\n{WALK_OFTEN}; {blind}")
    time.sleep(1)  # older than the facts may be when memory is tight; the next regular refresh is ten minutes away
    rewrite(pod / "memory.max", f"{GIB}\n")
    tree.set_used(HIGH)

    def grown_and_paused() -> bool:
        """Both stop far below their limits, so they may still take memory; the smaller one goes last."""
        for path, most in ((first, 3 * GIB // 4), (pod, GIB // 2)):
            current = int((path / "memory.current").read_text())
            rewrite(path / "memory.current", f"{min(current + 8 * MIB, most):020}\n")
        return cpu_max(pod) == PAUSED

    wait_until(grown_and_paused, "a pause of what may grow now")


def test_a_program_that_a_slow_runtime_starts_is_counted_far_from_the_limit(tree: FakeTree, start: Start) -> None:
    """No event reports its start. While only the runtime ran, memory was not tight, and the daemon did not look."""
    looked, started = tree.folder / "looked", tree.folder / "started"
    looked.touch()
    look = f"""
from cgpause.kernel.listening import Inside
from cgpause.pods import programs
def inspect_pod(pod):
    with pathlib.Path({str(looked)!r}).open("a") as file:
        print(pod.path, file=file)
    runs = pathlib.Path({str(started)!r}).exists()
    return Inside(runtime=not runs, program=runs)
programs.inspect_pod = inspect_pod"""
    daemon = start_and_sample(tree, start, ALL_BATCH, look)
    # Each may take more than there is: memory is tight with the first one, also if the second appears later.
    pods = [tree.add_pod(name, memory_max=str(GIB - MIB), in_containers=0) for name in ("first", "second")]
    # Two looks may be for one decision: at the third one, a decision is over.
    wait_until(lambda: all(looked.read_text().count(pod.name) >= 3 for pod in pods), "looks at the runtimes")
    assert " paused " not in daemon.log
    started.touch()
    wait_until(lambda: one_of_both_is_paused(tree, pods), "a pause with a third of the memory free")


def test_limits_that_were_raised_count_far_from_the_limit(tree: FakeTree, start: Start) -> None:
    """A resize in place is no event; the next regular refresh is ten minutes away."""
    pods, _ = raise_limits(tree, start)
    wait_until(lambda: one_of_both_is_paused(tree, pods), "a pause with a third of the memory free")


def test_the_look_for_programs_comes_before_the_first_pause(tree: FakeTree, start: Start) -> None:
    """It shows which pods are critical for the node."""
    look = """
from cgpause.kernel.listening import Inside
from cgpause.pods import programs
programs.inspect_pod = lambda _: Inside(runtime=False, program=True, node_critical=True)"""
    pods, daemon = raise_limits(tree, start, before=look)

    def both_have_grown() -> bool:
        assert not one_of_both_is_paused(tree, pods)
        return all(int((pod / "memory.current").read_text()) == 340 * MIB for pod in pods)

    wait_until(both_have_grown, "both to grow")
    assert " paused " not in daemon.log


def raise_limits(tree: FakeTree, start: Start, before: str = "") -> tuple[list[Path], Running]:
    """Start a daemon on two pods at their limits, and raise these; return the pods and the daemon."""
    pods = [tree.add_pod(name, 64 * MIB, memory_max=str(64 * MIB)) for name in ("first", "second")]
    daemon = start_and_sample(tree, start, ALL_BATCH, before)
    for pod in pods:
        rewrite(pod / "memory.max", f"{800 * MIB}\n")
    return pods, daemon


def one_of_both_is_paused(tree: FakeTree, pods: list[Path]) -> bool:
    """Let both pods grow to a third of the memory each; return whether one is paused."""
    for pod in pods:
        current = int((pod / "memory.current").read_text())
        rewrite(pod / "memory.current", f"{min(current + 2 * MIB, 340 * MIB):020}\n")
    tree.set_used(sum(int((pod / "memory.current").read_text()) for pod in pods))
    return PAUSED in map(cpu_max, pods)


def test_pod_that_is_paused_when_kubelet_moves_to_another_tree_is_resumed(tree: FakeTree, start: Start) -> None:
    pod, daemon = pause_web(tree, partial(start, before=WALK_OFTEN), cpu_max="50000 100000")

    other_tree(tree, populated=True)
    rewrite(tree.kubepods / "cgroup.events", "populated 0\nfrozen 0\n")

    wait_until(lambda: cpu_max(pod) == "50000 100000", "the original")
    wait_until(lambda: not records_left(tree.root), "the record to go")
    daemon.wait_for_log('reason="now protected: kubelet uses another kubepods tree now"')
    assert daemon.stop() == 0


def test_tree_that_kubelet_has_left_is_noticed_although_its_folders_stay(tree: FakeTree, start: Start) -> None:
    """kubelet kills the pods of the old tree and leaves their folders; no event comes from the pods of the new one."""
    pod = tree.add_pod("old")
    daemon = start()
    other = other_tree(tree, populated=True)
    elsewhere = FakeTree(tree.folder / "elsewhere", made=9)  # a new pod has a UID of its own
    elsewhere.add_pod("new").rename(other / "burstable" / f"pod{elsewhere.uids['new']}")
    tree.add_pod("last")
    daemon.wait_for_log("pod appeared pod=default/last")  # the refresh after the new tree's event is over

    rewrite(tree.kubepods / "cgroup.events", "populated 0\nfrozen 0\n")
    shutil.rmtree(containers(pod)[1])

    daemon.wait_for_log(f"pod appeared pod={elsewhere.uids['new']}")


def test_a_new_pod_is_paused_as_soon_as_its_program_is_seen(tree: FakeTree, start: Start) -> None:
    """Here it would otherwise be spared for an hour; a real one takes its first memory in a tenth of a second."""
    runs = tree.folder / "runs"
    look = f"""
from cgpause.pods import programs, tracked
programs.is_made = lambda _: pathlib.Path({str(runs)!r}).exists()
programs.LOOK_FOR_NS = 10**18  # not two seconds: a busy machine may need longer
tracked.SPARED_S = 3600.0"""
    old = tree.add_pod("old", GIB // 2, memory_max=str(64 * GIB))
    daemon = start_and_sample(tree, start, f"{ALL_BATCH}[pause]\nsettle_s = 3600\n[protect]\nown_word = false\n", look)
    tree.set_used(HIGH)
    pod = tree.add_pod("new", 8 * MIB, memory_max=str(GIB - MIB))

    def new_one_is_paused() -> bool:
        """The old one grows, so it goes first."""
        current = int((old / "memory.current").read_text())
        rewrite(old / "memory.current", f"{current + 2 * MIB:020}\n")
        return cpu_max(pod) == PAUSED

    daemon.wait_for_log("pod appeared pod=default/new")
    for _ in range(10):
        assert not new_one_is_paused(), "a runtime still makes its container"
        time.sleep(0.1)
    runs.touch()
    wait_until(new_one_is_paused, "a pause")
