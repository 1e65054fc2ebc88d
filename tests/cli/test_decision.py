"""The decision of `cgpause explain`, made on a tree of ordinary files."""

from __future__ import annotations

import time
from contextlib import closing

from helpers.commandline import MIB, Patch
from helpers.trees import FakeTree, rewrite

from cgpause.cli.decision import decide_now
from cgpause.config.settings import Config
from cgpause.core.clock import now_ns
from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import PodTree


def test_page_cache_that_a_pod_takes_meanwhile_is_no_growth(tree: FakeTree, monkeypatch: Patch) -> None:
    tree.set_used(500 * MIB)
    reads, grows = (tree.add_pod(name, 100 * MIB, memory_max=str(300 * MIB)) for name in ("reads", "grows"))
    real, begun = time.sleep, time.monotonic()

    def sleep_and_take(seconds: float) -> None:
        real(seconds)
        taken = int((time.monotonic() - begun) * 50) * MIB
        for pod, cache in ((reads, taken), (grows, 0)):
            stat = f"anon 1\nshmem 0\ninactive_file {cache:020}\nactive_file 0\nslab_reclaimable 0\n"
            rewrite(pod / "memory.stat", stat)
            rewrite(pod / "memory.current", f"{100 * MIB + taken:020}\n")

    monkeypatch.setattr(time, "sleep", sleep_and_take)
    found = _rates(tree)

    assert found["reads"] < found["grows"] / 10


def _rates(tree: FakeTree) -> dict[str, float]:
    """Return each pod's growth rate after a watch of 1.5 s."""
    with closing(PodTree(str(tree.root), str(tree.log_dir), Config())) as pods, Sampler(pods) as sampler:
        pods.refresh(now_ns())
        _, verdicts = decide_now(pods, sampler, Config(), 1.5, {})
    return {str(one.usage.pod.name): 0.0 if one.place is None else one.place.rate for one in verdicts}
