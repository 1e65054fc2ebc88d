"""Results and claims of the demo, and their texts; values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of the demo, the same in both arms."""

    seed: int = 1
    jobs: int = 30
    limit_mib: int = 32
    unit_mib: int = 4
    rounds: int = 8
    unit_cpu_ms: int = 100
    capacity_mib: int = 384
    oversubscription: float = 1.8
    backoff_scale: float = 0.05
    timeout_s: float = 900.0
    """Longest time of an arm in s."""

    @property
    def at_once(self) -> int:
        """Number of pods that run at the same time."""
        return int(self.capacity_mib / (self.limit_mib / self.oversubscription))


@dataclass(frozen=True, slots=True)
class Restored:
    """Number of checked pods, and names of pods without their original values (or with a record)."""

    pods: int = 0
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of the jobs."""

    finished: int
    total_s: float
    oom_kills: int
    restarts: int
    lost_cpu_s: float
    waiting_mean_s: float
    running_mean_s: float
    ended: Restored
    """Each pod at its removal."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """The actions of the daemon."""

    pauses: int
    paused_s: float
    longest_pause_s: float
    sacrifices: int
    exit_code: int
    paused_at_stop: int
    """Number of paused pods when the daemon was stopped."""
    after_stop: Restored
    """All live pods after the stop."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of the demo."""

    kernel: str
    kind: str
    cpus: int


@dataclass(frozen=True, slots=True)
class Result:
    """The whole demonstration."""

    plan: Plan
    machine: Machine
    work: int
    """Iterations after each unit, measured to take `Plan.unit_cpu_ms` on this machine."""
    without: Arm
    with_cgpause: Arm
    daemon: Daemon
    seconds: float


def broken_claims(result: Result) -> list[str]:
    """Return the claims that turned out false."""
    plan, without, with_cgpause, daemon = result.plan, result.without, result.with_cgpause, result.daemon
    claims = [
        (
            without.finished == plan.jobs and with_cgpause.finished == plan.jobs,
            f"all {plan.jobs} jobs finish in both runs (found {without.finished} and {with_cgpause.finished})",
        ),
        (
            without.oom_kills > 0 and without.restarts > 0,
            f"without cgpause, containers are OOM-killed and restarted (found {without.restarts} restarts)",
        ),
        (
            with_cgpause.restarts < without.restarts,
            f"fewer restarts with cgpause (found {with_cgpause.restarts} with, {without.restarts} without)",
        ),
        (daemon.pauses > 0, "cgpause paused a pod"),
        (daemon.exit_code == 0, f"the daemon exits with 0 when it is stopped (found {daemon.exit_code})"),
        (daemon.paused_at_stop > 0, "the daemon was stopped while pods were paused"),
        (
            not with_cgpause.ended.wrong and not without.ended.wrong,
            f"every pod has its own cpu.max when it ends (not: {', '.join(with_cgpause.ended.wrong)})",
        ),
        (
            daemon.after_stop.pods > 0 and not daemon.after_stop.wrong,
            f"every pod has its own cpu.max after the daemon stopped (not: {', '.join(daemon.after_stop.wrong)})",
        ),
    ]
    return [text for holds, text in claims if not holds]


def render(result: Result) -> str:
    """Return the result as text."""
    plan, machine = result.plan, result.machine
    broken = broken_claims(result)
    lines = [*_table(_rows(result)), ""]
    lines += [f"FAILED: {text}" for text in broken]
    if not broken:
        lines.append(_verdict(result))
    size = f"with a limit of {plan.limit_mib} MiB: each holds half of it, and"
    pace = f"up to the limit and back, {plan.unit_mib} MiB and {plan.unit_cpu_ms} ms of CPU time at a step"
    lines += [
        "",
        f"jobs      {plan.jobs}, at most {plan.at_once} at once, {size} {plan.rounds} times goes",
        f"          {pace}; seed {plan.seed}",
        f"kubepods  {plan.capacity_mib} MiB, limits add up to {plan.oversubscription:.0%} of it, no swap",
        f"kubelet   restarts a killed container after 1, 10, 20, 40 … 300 s, scaled by {plan.backoff_scale:g}",
        f"machine   Linux {machine.kernel}, {machine.kind}, {machine.cpus} CPUs; the demo took {result.seconds:.0f} s",
    ]
    return "\n".join(lines)


def to_json(result: Result) -> dict[str, object]:
    """Return the result as JSON."""
    broken = broken_claims(result)
    values = asdict(result) | {"seconds": round(result.seconds, 1)}
    values["with"] = values.pop("with_cgpause")
    return {"schema": SCHEMA, "ok": not broken, "broken_claims": broken, **values}


def _rows(result: Result) -> list[tuple[str, str, str]]:
    without, with_cgpause, daemon = result.without, result.with_cgpause, result.daemon
    return [
        ("", "without cgpause", "with cgpause"),
        ("OOM kills", str(without.oom_kills), str(with_cgpause.oom_kills)),
        ("container restarts", str(without.restarts), str(with_cgpause.restarts)),
        ("total time", f"{without.total_s:.1f} s", f"{with_cgpause.total_s:.1f} s"),
        ("CPU time lost to restarts", f"{without.lost_cpu_s:.1f} s", f"{with_cgpause.lost_cpu_s:.1f} s"),
        ("pauses", "-", str(daemon.pauses)),
        ("paused, all pods together", "-", f"{daemon.paused_s:.1f} s"),
        ("longest pause", "-", f"{daemon.longest_pause_s:.1f} s"),
        ("cpu.max original: pods at their end", "-", _ratio(with_cgpause.ended)),
        (f"  after a stop while {daemon.paused_at_stop} were paused", "-", _ratio(daemon.after_stop)),
    ]


def _ratio(restored: Restored) -> str:
    return f"{restored.pods - len(restored.wrong)} of {restored.pods}"


def _table(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{name:<{widths[0]}}   {left:>{widths[1]}}   {right:>{widths[2]}}" for name, left, right in rows]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def _verdict(result: Result) -> str:
    before, after = result.without, result.with_cgpause
    saved = 1 - after.restarts / before.restarts
    time_saved = 1 - after.total_s / before.total_s
    faster = f"{time_saved:.0%} less" if time_saved >= 0 else f"{-time_saved:.0%} more"
    return f"{saved:.0%} fewer restarts and {faster} total time with cgpause; every original value is back."
