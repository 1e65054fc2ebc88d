"""Idle CPUs on a real kernel."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from helpers.trees import wait_until

from cgpause.config.settings import Config
from cgpause.core.clock import NS_PER_S, now_ns
from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import PodTree


def seconds() -> tuple[float, float]:
    """Return the seconds of all CPUs since the boot: idle, and waiting for a disk (proc_stat(5))."""
    words = Path("/proc/stat").read_text().split(maxsplit=6)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return int(words[4]) * tick_s, int(words[5]) * tick_s


def test_a_cpu_that_waits_for_a_disk_is_idle(tmp_path: Path) -> None:
    """dd reads one block after the other past the page cache, so its CPU waits for each."""
    (disk,) = [line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1] == "/"][:1]
    tree = PodTree(str(tmp_path), str(tmp_path), Config())
    command = ["dd", f"if={disk}", "of=/dev/null", "bs=4k", "iflag=direct"]
    with Sampler(tree) as sampler, subprocess.Popen(command, stderr=subprocess.DEVNULL) as reader:
        waited_s = seconds()[1]
        wait_until(lambda: seconds()[1] > waited_s + 0.5, "a CPU to wait for the disk")
        for _ in range(10):  # a busy machine may stop the test between its own reading and the sampler's
            sampler.sample(now_ns())
            idle_s, waited_s = seconds()
            begun_ns = now_ns()
            time.sleep(3)
            found = sampler.sample(now_ns()).idle_cpus
            elapsed_s = (now_ns() - begun_ns) / NS_PER_S
            idle, waiting = (
                (now_s - then_s) / elapsed_s for now_s, then_s in zip(seconds(), (idle_s, waited_s), strict=True)
            )
            if waiting > 0.2 and abs(found - idle - waiting) < waiting / 2:
                break
        assert reader.poll() is None
        reader.kill()
    tree.close()
    assert waiting > 0.2
    assert abs(found - idle - waiting) < waiting / 2
