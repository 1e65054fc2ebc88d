"""CPUs in one state, between two readings of a kernel file."""

from __future__ import annotations

from pathlib import Path

from helpers.nodes import S

from cgpause.kernel.cpu_time import CpuTime


def test_cpus_that_are_idle_or_wait_for_a_disk_are_counted_between_two_readings(tmp_path: Path) -> None:
    """The files are as in proc_uptime(5) and proc_stat(5); the rest of /proc/stat is hundreds of lines."""
    uptime, stat = tmp_path / "uptime", tmp_path / "stat"
    uptime.write_text("100.00 150.00\n")
    stat.write_text("cpu  9 9 9 15000 2000 9 9 0 0 0\ncpu0 9\n")
    idle, waiting = CpuTime(str(uptime), 1, 1.0, S // 5), CpuTime(str(stat), 5, 0.01, S)
    assert (idle.cpus(50 * S), waiting.cpus(50 * S)) == (0.0, 0.0), "one reading gives no average"

    uptime.write_text("102.00 151.00\n")
    stat.write_text("cpu  9 9 9 15100 2300 9 9 0 0 0\ncpu0 9\n")
    assert (idle.cpus(50 * S + S // 10), waiting.cpus(50 * S + S // 2)) == (0.0, 0.0), "too soon"
    assert (idle.cpus(52 * S), waiting.cpus(52 * S)) == (0.5, 1.5)

    stat.write_text("cpu  9 9 9 15100 2299 9 9 0 0 0\ncpu0 9\n")
    assert waiting.cpus(54 * S) == 0.0, "the kernel's sum can fall"
    stat.write_text("")
    assert waiting.cpus(60 * S) == 0.0
    idle.close()
    waiting.close()
