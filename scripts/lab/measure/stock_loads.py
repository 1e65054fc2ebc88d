"""The loads of `lab.measure.stock`: their jobs, with order and sizes. A seed varies sizes and start times.

This module touches no cgroup and uses nothing of the daemon.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from lab.bed.kubelet import Job
from lab.bed.kubepods import MIB, Tier
from lab.bed.trial import BACKOFF_SCALE, CAPACITY_MIB, ROUNDS, UNITS

OVERSUBSCRIPTION: Final = 1.5
PROGRAMS_OVERSUBSCRIPTION: Final = 2.0
"""At 1.5 the programs' peaks hardly ever coincide, and the kernel killed none of them."""
IDLE_PODS: Final = 8
CACHED_MIB: Final = 256
"""Size of the file that each pod of `cached` reads. Two of them are more than kubepods."""
LARGE_CAPACITY_MIB: Final = 800
"""Capacity for the three large jobs. A pod's charge batches are small beside the jobs' memory, as on a node."""
LARGE_LIMIT: Final = 1.1
"""Limit of a large job divided by its peak: 44 % of kubepods for a peak of 40 %."""
LIMIT_SHARE: Final = 1.15
"""Limit of a real program divided by its measured peak."""

_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Kubernetes' alphabet for generated names (apimachinery, util/rand)."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The programs of the loads, and the speed of this machine."""

    worker: Path
    work: int
    """Iterations of worker.c in one unit of CPU time."""

    def once(self, peak_bytes: int, work: float) -> tuple[str, ...]:
        """Return the command line of a job that reaches its peak once; `work` is the units of each of its 24 steps."""
        return (str(self.worker), "once", str(peak_bytes), str(round(self.work * work)))

    def paper(
        self, limit_bytes: int, seed: int, *, work: float = 1.0, sleep_ms: int = 0, page_work: float | None = None
    ) -> tuple[str, ...]:
        """Return the command line of the paper's job: each step is `work` units and a sleep.

        Filling a step's memory costs as much as `page_work` units do for 5000 pages; None: as much as `work`.
        """
        page_iterations = round(self.work * (work if page_work is None else page_work))
        numbers = (limit_bytes, limit_bytes // UNITS, ROUNDS, round(self.work * work), seed, sleep_ms, page_iterations)
        return (str(self.worker), *map(str, numbers))

    def idle(self, seed: int) -> tuple[str, ...]:
        """Return the command line of a pod that does a little work once a second."""
        return (str(self.worker), "idle", "1000", str(MIB // 2), str(seed))


@dataclass(frozen=True, slots=True)
class Load:
    """The pods of one run."""

    capacity_bytes: int
    jobs: tuple[Job, ...]
    """The queue at the start of the run."""
    followers: Mapping[str, Job] = field(default_factory=dict)
    """By the name of a job: the job to submit when it has finished."""
    lasting: tuple[Job, ...] = ()
    """Pods that run before the daemon starts, and until the end."""
    oversubscription: float = OVERSUBSCRIPTION
    """Sum of the limits of the jobs that run at once, divided by the capacity."""
    backoff_scale: float = BACKOFF_SCALE
    """Factor of kubelet's back-off; the jobs run for seconds instead of minutes."""
    services: int = 0
    """Number of services with liveness probes; they also run before the daemon starts."""

    @property
    def count(self) -> int:
        """Number of jobs, followers included."""
        return len(self.jobs) + len(self.followers)


def suffix(chance: random.Random, length: int = 5) -> str:
    """Return random letters for the end of a pod's name."""
    return "".join(chance.choices(_SUFFIX_LETTERS, k=length))


def idle(seed: int, tools: Tools) -> Load:
    """Return pods that do a little work all the time, beside three large jobs, of which two fit at once."""
    chance = _chance("idle", seed)
    capacity = LARGE_CAPACITY_MIB * MIB
    jobs = []
    for name in ("etl", "index", "render"):
        peak = round(capacity * chance.uniform(0.38, 0.40))
        argv = tools.once(peak, chance.uniform(0.8, 1.4))
        limit = round(LARGE_LIMIT * peak)
        start_s = chance.uniform(0.0, 3.0)
        jobs.append(Job(f"{name}-{suffix(chance)}", limit, argv, request_bytes=capacity // 4, start_s=start_s))
    jobs.sort(key=lambda job: job.start_s)
    return Load(capacity, tuple(jobs), lasting=_idle_pods(chance, tools), services=1)


def waiting(seed: int, tools: Tools, sleep_ms: int = 2000, oversupply: int = 3, page_work: float | None = None) -> Load:
    """Return the paper's jobs, sleeping after each unit instead of computing: CPUs are idle, so a pause costs time."""
    chance = _chance("waiting", seed)
    limit = (32, 48, 64)[seed % 3] * MIB

    def argv(own: int) -> tuple[str, ...]:
        return tools.paper(limit, own, work=0.1, sleep_ms=sleep_ms, page_work=page_work)

    return _paper_jobs("wait", limit, chance, argv, oversupply)


def paper2(seed: int, tools: Tools) -> Load:
    """Return the paper's jobs, computing for two units in each step, as in `lab.bed.trial`."""
    limit = 32 * MIB
    return _paper_jobs("paper", limit, _chance("paper2", seed), lambda own: tools.paper(limit, own, work=2.0))


def cached(seed: int, tools: Tools) -> Load:
    """Return `paper2` beside two pods that read a file of their own over and over: page cache fills kubepods."""
    chance = _chance("cached", seed)
    script = (
        f"file=$(mktemp -p /var/tmp) && head -c {CACHED_MIB}M /dev/zero >$file && exec 3<$file && rm $file && "
        "while cat /dev/fd/3 >/dev/null; do sleep 0.1; done"
    )
    readers = tuple(
        Job(f"{name}-{suffix(chance, 10)}-{suffix(chance)}", limit, ("/bin/sh", "-c", script), request_bytes=MIB)
        for name, limit in (("backup", None), ("indexer", CAPACITY_MIB * MIB // 3))
    )
    return replace(paper2(seed, tools), lasting=readers)


def nolimit(seed: int, tools: Tools, generations: int = 4, share: float = 0.75, work: float = 0.5) -> Load:
    """Return two workloads without a limit, each a series of pods; a pod of one and a pod of the other do not fit.

    A pod needs `share` of kubepods. With three quarters even a pod that is paused at half of its peak leaves too little
    memory for the other. `work` is the units of each of its 24 steps.
    """
    chance = _chance("nolimit", seed)
    pods = _generations(("report", "backup"), share, chance, tools, generations, tier=Tier.BEST_EFFORT, work=work)
    return _chained(pods)


def nolimit_half(seed: int, tools: Tools, generations: int = 4) -> Load:
    """Return `nolimit` with pods that need little more than half of kubepods."""
    return nolimit(seed, tools, generations, share=0.56)


def nolimit_long(seed: int, tools: Tools) -> Load:
    """Return `nolimit_half` with six times the work, and with kubelet's own waits as `waiting_backoff`."""
    return replace(nolimit(seed, tools, share=0.56, work=3.0), backoff_scale=1.0)


def nolimit_beside(seed: int, tools: Tools, generations: int = 4) -> Load:
    """Return one workload without a limit, beside jobs with a limit and idle pods."""
    chance = _chance("nolimit-beside", seed)
    limit = 48 * MIB
    load = _chained(_generations(("report",), 0.56, chance, tools, generations, request_bytes=64 * MIB))
    limited = [
        Job(f"batch-{number}-{suffix(chance)}", limit, tools.paper(limit, chance.getrandbits(63), work=2.0))
        for number in range(12)
    ]
    return replace(load, jobs=(*load.jobs, *limited), lasting=_idle_pods(chance, tools))


def waiting_paced(seed: int, tools: Tools) -> Load:
    """Return `waiting` with memory that is filled as slowly as by `paper2`.

    A job of `waiting` spends 2 µs on a page besides its fault. The bed has a hundredth of a node's memory, so it is
    full many times as soon as a node.
    """
    return waiting(seed, tools, page_work=2.0)


def waiting_backoff(seed: int, tools: Tools) -> Load:
    """Return `waiting_paced` with kubelet's own back-off: a restart costs as much time as on a node."""
    return replace(waiting_paced(seed, tools), backoff_scale=1.0)


LOADS: Final[Mapping[str, Callable[[int, Tools], Load]]] = {
    "idle": idle,
    "waiting": waiting,
    "waiting-paced": waiting_paced,
    "waiting-backoff": waiting_backoff,
    "paper2": paper2,
    "cached": cached,
    "nolimit": nolimit,
    "nolimit-half": nolimit_half,
    "nolimit-long": nolimit_long,
    "nolimit-beside": nolimit_beside,
}
"""The loads whose jobs run worker.c."""


def _chance(*names: object) -> random.Random:
    return random.Random(repr(names))  # noqa: S311 - repeatable, not secret


def _idle_pods(chance: random.Random, tools: Tools) -> tuple[Job, ...]:
    """Return the pods of one Deployment, with a limit far above their use."""
    replica_set = suffix(chance, 10)
    return tuple(
        Job(f"web-{replica_set}-{suffix(chance)}", 32 * MIB, tools.idle(chance.getrandbits(63)), request_bytes=MIB)
        for _ in range(IDLE_PODS)
    )


def _paper_jobs(
    name: str, limit: int, chance: random.Random, argv: Callable[[int], tuple[str, ...]], oversupply: int = 3
) -> Load:
    """Return the pods of an indexed Job, with limits of `oversupply` capacities in all and 1.5 capacities at once."""
    capacity = CAPACITY_MIB * MIB
    jobs = [
        Job(f"{name}-{number}-{suffix(chance)}", limit, argv(chance.getrandbits(63)))
        for number in range(oversupply * capacity // limit)
    ]
    return Load(capacity, tuple(jobs))


def _generations(
    names: Iterable[str],
    share: float,
    chance: random.Random,
    tools: Tools,
    generations: int,
    *,
    tier: Tier = Tier.BURSTABLE,
    request_bytes: int = 0,
    work: float = 0.5,
) -> list[list[Job]]:
    """Return the series of pods of each workload; all pods need about the same share of the capacity."""
    found = []
    for name in names:
        replica_set, start_s = suffix(chance, 10), chance.uniform(0.0, 1.0)
        peak = CAPACITY_MIB * MIB * share * chance.uniform(0.97, 1.03)
        found.append(
            [
                Job(
                    f"{name}-{replica_set}-{suffix(chance)}",
                    None,
                    tools.once(round(peak * chance.uniform(0.98, 1.02)), work),
                    request_bytes=request_bytes,
                    start_s=start_s if number == 0 else 0.0,
                    tier=tier,
                )
                for number in range(generations)
            ]
        )
    return sorted(found, key=lambda jobs: jobs[0].start_s)


def _chained(workloads: list[list[Job]]) -> Load:
    followers = {before.name: after for jobs in workloads for before, after in itertools.pairwise(jobs)}
    return Load(CAPACITY_MIB * MIB, tuple(jobs[0] for jobs in workloads), followers)


PROGRAMS: Final[Mapping[str, str]] = {
    "xz": "exec xz -6 -T1 -c text >/dev/null",
    "zstd": "exec zstd -q -19 -T1 -c text >/dev/null",
    "gcc": "exec gcc -O0 -S -o /dev/null table.c",
    "sort": "exec sort -S 96M --parallel=1 -k 2 -o /dev/null lines",
    "python": "exec python3 -c 'd = {i: str(i) * 2 for i in range(400000)}; print(sum(map(len, d.values())))'",
    "perl": "exec perl -e 'my %h; $h{$_} = \"x$_\" for 1..300000; my $s = 0; $s += length for values %h; print $s'",
    "sqlite": (
        'exec sqlite3 :memory: "PRAGMA temp_store = MEMORY; CREATE TABLE t (a INTEGER, b TEXT); WITH RECURSIVE '
        "c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 200000) INSERT INTO t SELECT x, "
        "hex(x * 7919) || 'abcdefghijklmnop' FROM c; CREATE INDEX i ON t (b); SELECT count(DISTINCT b) FROM t\""
    ),
}
"""Shell commands of real programs, run in the folder that `write_inputs` fills."""


def write_inputs(folder: Path) -> None:
    """Write the files that the programs read."""
    chance = _chance("inputs")
    words = ["".join(chance.choices("abcdefghijklmnop", k=chance.randint(3, 9))) for _ in range(3000)]
    with (folder / "text").open("w") as out:
        for _ in range(11_000):
            out.write(f"{' '.join(chance.choices(words, k=8))} {chance.random()}\n")
    with (folder / "lines").open("w") as out:
        for number in range(400_000):
            out.write(f"{number} {chance.getrandbits(64):x}\n")
    (folder / "table.c").write_text(f"const int table[] = {{{','.join(f'{n}*3+1' for n in range(120_000))}}};\n")


def program_argv(name: str, folder: Path) -> tuple[str, ...]:
    """Return the command line of one of PROGRAMS."""
    return ("/bin/sh", "-c", f'cd "$0" && {PROGRAMS[name]}', str(folder))


def programs(seed: int, peaks: Mapping[str, int], folder: Path) -> Load:
    """Return each program twice, its limit a little above its peak; a round's limits add up to 2 kubepods."""
    chance = _chance("programs", seed)
    limits = {name: round(LIMIT_SHARE * peak) for name, peak in peaks.items()}
    capacity = round(sum(limits.values()) / PROGRAMS_OVERSUBSCRIPTION)
    jobs = []
    for number in range(2):
        names = list(limits)
        chance.shuffle(names)
        jobs += [Job(f"{name}-{number}-{suffix(chance)}", limits[name], program_argv(name, folder)) for name in names]
    return Load(capacity, tuple(jobs), oversubscription=PROGRAMS_OVERSUBSCRIPTION)
