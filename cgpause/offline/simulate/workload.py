"""The options of a workload file for `cgpause simulate`; `presets` has the built-in workloads.

This module has no postponed annotations: `options` needs the types themselves.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from cgpause.config.load import load_options
from cgpause.config.options import Conflict, Option, option, setting
from cgpause.core.memory_units import MIB
from cgpause.offline.simulate.kubelet import request_bytes
from cgpause.offline.simulate.load import Jobs, Load, Machine
from cgpause.offline.simulate.pods import Probe

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
MAX_JOBS = 1_000_000
MAX_SERVICES = 1000
_SPARE_MIB = 8
"""Memory between the use of a service and its limit, if the limit is not set."""

_seconds = partial(setting, unit="s", low=0, high=1e6)
_mib = partial(setting, unit="MiB", low=1, high=1 << 30)
_priority = partial(
    setting, 0, "Pods with a higher one get headroom first, whatever else they are.", low=-1000, high=1000
)
_listens = partial(setting, doc="Whether it listens on TCP: then it is a service to the daemon, and is probed.")
_protected = partial(setting, doc="Whether it may never be paused.")


def _name(what: str) -> dict[str, Option]:
    return option(
        what,
        pattern=lambda text: _NAME.fullmatch(text) is not None,
        allowed="up to 63 lower-case letters, digits and -",
    )


@dataclass(frozen=True, slots=True)
class NodesOptions:
    """The nodes, all alike."""

    count: int = setting(1, "Number of nodes.", low=1, high=1000)
    memory_mib: int = _mib(32768, "memory.max of kubepods on each.", low=16)
    cpus: float = setting(8.0, "CPUs of each.", low=0.1, high=4096)
    oversubscription_pct: float = setting(
        100.0,
        "Largest sum of the limits of a node's jobs: a job requests its limit divided by it.",
        unit="%",
        low=1,
        high=10000,
    )
    backoff_scale: float = setting(
        1.0, "Factor on kubelet's wait before a restart (1, 10, 20, 40 … 300 s).", low=0, high=100
    )
    start_s: float = _seconds(0.2, "kubelet's time to start a container; it starts one at a time.", high=3600)
    page_us: float = setting(1.7, "CPU time that a page of 4 KiB costs.", unit="µs", low=0.01, high=1e6)
    charged_kib: int = setting(
        300, "Memory that the kernel charges to a container besides the program's.", unit="KiB", low=0, high=1000
    )
    give_up_s: float = setting(
        21600.0, "Time at which the simulation ends, whatever has not finished.", unit="s", above=0, high=1e9
    )


@dataclass(frozen=True, slots=True)
class JobsOptions:
    """Jobs of one kind."""

    name: str = field(metadata=_name("Their name."))
    count: int = field(metadata=option("How many.", low=1, high=MAX_JOBS))
    limit_mib: int = field(metadata=option("Memory limit of each.", unit="MiB", low=4, high=1 << 30))
    unit_mib: int | None = _mib(None, "What it takes at a time; an eighth of the limit unless set.")
    rounds: int = setting(3, "How often it goes up and down.", low=1, high=1000)
    unit_cpu_s: float = setting(2.0, "CPU time of the work after each unit.", unit="s", above=0, high=1e6)
    unit_idle_s: float = _seconds(0.0, "Asleep after the work after each unit.")
    request_millicpu: int = setting(0, "CPU request of each.", unit="thousandths of a CPU", low=0, high=1 << 22)
    start_s: float = _seconds(0.0, "When the first comes.", high=1e9)
    every_s: float = _seconds(0.0, "How long after it the next comes.")
    priority: int = _priority()

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a conflict if a unit is larger than the limit, or far too small."""
        if self.unit_mib is not None and not self.limit_mib / 10_000 <= self.unit_mib <= self.limit_mib:
            message = f"found {self.unit_mib} with limit_mib {self.limit_mib}; allowed: from 1/10000 of limit_mib to it"
            yield Conflict(("unit_mib", "limit_mib"), message)


@dataclass(frozen=True, slots=True)
class _LastingOptions:
    """Common options of services and DaemonSets."""

    name: str = field(metadata=_name("Its name."))
    base_mib: int = field(metadata=option("Memory that each pod always holds.", unit="MiB", low=1, high=1 << 30))
    surge_mib: int = _mib(0, "Memory that a surge adds.", low=0)
    surge_s: float = _seconds(5.0, "Time in which a surge grows.", low=0.01)
    rest_s: float = _seconds(20.0, "Mean time between two surges, each from half to one and a half of it.")
    limit_mib: int | None = _mib(None, f"Memory limit of each pod; base, surge and {_SPARE_MIB} MiB unless set.", low=4)
    request_mib: int | None = _mib(None, "Memory that each pod requests; limit_mib unless set.", low=0)
    listens: bool = _listens(True)
    probe_period_s: float = _seconds(Probe().period_s, "Period of its liveness probe.", low=0.1, high=3600)
    probe_timeout_s: float = _seconds(Probe().timeout_s, "Timeout of its liveness probe.", low=0.01, high=3600)
    probe_failures: int = setting(Probe().failures, "Missed probes in a row that kill the container.", low=1, high=1000)
    probe_initial_delay_s: float = _seconds(
        Probe().initial_delay_s, "Time after the start of a container before its first probe.", high=86400
    )
    starts_s: float = _seconds(
        0.0,
        "Running time of a container before it listens; probes fail until then, and a pause makes it take longer.",
        high=86400,
    )
    latency_s: float | None = _seconds(None, "For how long it may go without an answer; only counted.")
    protected: bool = _protected(False)
    priority: int = _priority()

    @property
    def limit(self) -> int:
        """The limit in MiB."""
        return self.base_mib + self.surge_mib + _SPARE_MIB if self.limit_mib is None else self.limit_mib

    @property
    def request(self) -> int:
        """The request in MiB."""
        return self.limit if self.request_mib is None else self.request_mib

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a conflict if the pod does not fit into its limit, or the limit is below the request."""
        least = self.base_mib + self.surge_mib + 1
        if self.limit_mib is not None and self.limit_mib < least:
            yield Conflict(
                ("limit_mib", "base_mib", "surge_mib"),
                f"found {self.limit_mib}; allowed: from {least}, base_mib and surge_mib and 1",
            )
        if self.probe_timeout_s > self.probe_period_s:
            yield Conflict(
                ("probe_timeout_s", "probe_period_s"),
                f"found {self.probe_timeout_s:g} s; allowed: up to probe_period_s, {self.probe_period_s:g}",
            )
        if self.request > self.limit:
            yield Conflict(
                ("request_mib", "limit_mib"), f"found {self.request}; allowed: up to the limit of {self.limit} MiB"
            )


@dataclass(frozen=True, slots=True)
class ServicesOptions(_LastingOptions):
    """A service: pods that are placed before the jobs."""

    count: int = setting(1, "How many pods.", low=1, high=MAX_SERVICES)
    lasts_s: float | None = setting(
        None, "For how long it is there; until the last job has finished unless set.", unit="s", above=0, high=1e9
    )


@dataclass(frozen=True, slots=True)
class DaemonSetsOptions(_LastingOptions):
    """A DaemonSet: one pod on every node, before everything else."""

    count: ClassVar[None] = None
    """As many pods as nodes."""
    lasts_s: ClassVar[None] = None
    """Its pods stay until the last job has finished."""

    listens: bool = _listens(False)
    protected: bool = _protected(True)


Lasting = ServicesOptions | DaemonSetsOptions
"""Lasting pods of one kind."""


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """A whole workload file."""

    GONE: ClassVar[Mapping[str, str]] = {
        "scheduler": "removed, pods go to the least allocated node, kube-scheduler's default: delete this section"
    }
    """Sections of earlier versions, each with the message for a file that still has it."""

    shuffled: bool = setting(False, "Whether the jobs queue in an order that the seed decides, not in the file's.")
    nodes: NodesOptions = setting(NodesOptions(), "The nodes.")
    jobs: tuple[JobsOptions, ...] = setting((), "The jobs, in the order of their queue.")
    services: tuple[ServicesOptions, ...] = setting((), "The services beside them.")
    daemonsets: tuple[DaemonSetsOptions, ...] = setting((), "The DaemonSets beside them.")

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a conflict if there are no jobs, or if the lasting pods and any one job do not fit."""
        count = sum(jobs.count for jobs in self.jobs)
        if not 1 <= count <= MAX_JOBS:
            yield Conflict(("jobs",), f"found {count} jobs in all; allowed: 1 to {MAX_JOBS}, in [[jobs]] sections")
        sections: tuple[JobsOptions | _LastingOptions, ...] = (*self.jobs, *self.services, *self.daemonsets)
        names = [one.name for one in sections]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Conflict(("jobs",), f'found several sections with the name "{name}"; allowed: each once')
        nodes = self.nodes
        free = free_mib(self)
        if free is None:
            yield Conflict(
                ("services", "daemonsets"),
                f"they request more than there is; allowed: what fits into memory_mib of [nodes], {nodes.memory_mib}",
            )
            return
        for jobs in self.jobs:
            for mistake in _mistakes(jobs, nodes, max(free)):
                yield Conflict(("jobs",), f'"{jobs.name}" {mistake}')


def _mistakes(jobs: JobsOptions, nodes: NodesOptions, free: int) -> Iterator[str]:
    """Yield why jobs cannot run; `free` is the most memory in MiB that the lasting pods leave on a node."""
    request = request_bytes(jobs.limit_mib * MIB, nodes.oversubscription_pct / 100)
    if request > free * MIB:
        beside = "" if free == nodes.memory_mib else " less what services and DaemonSets request"
        yield (
            f"requests {request / MIB:.0f} MiB (limit_mib / oversubscription_pct) and fits on no node; "
            f"allowed: up to memory_mib of [nodes]{beside}, {free}"
        )
    if jobs.start_s >= nodes.give_up_s:
        yield f"begins at start_s = {jobs.start_s:g}; allowed: before give_up_s of [nodes], {nodes.give_up_s:g}"
    if jobs.request_millicpu > 1000 * nodes.cpus:
        what = f"requests {jobs.request_millicpu} millicores"
        yield f"{what} and fits on no node; allowed: up to cpus of [nodes], {nodes.cpus:g}"


def free_mib(workload: WorkloadOptions) -> list[int] | None:
    """Return the memory that DaemonSets and services leave on each node; None if they do not fit."""
    nodes = workload.nodes
    daemons = sum(one.request for one in workload.daemonsets)
    free = [nodes.memory_mib - daemons] * nodes.count
    for one in workload.services:
        for _ in range(one.count):
            free.sort()
            free[-1] -= one.request
    return free if min(free) >= 0 else None


def load_workload(path: str) -> Load:
    """Read a workload from its file.

    Raises:
        ConfigError: the file has mistakes; the error has all of them.
    """
    return make_load(path, load_options(WorkloadOptions(), path))


def make_load(name: str, workload: WorkloadOptions) -> Load:
    """Return the load of a workload."""
    nodes = workload.nodes
    machine = Machine(
        capacity_bytes=nodes.memory_mib * MIB,
        cpus=nodes.cpus,
        page_s=nodes.page_us / 1e6,
        charged_bytes=nodes.charged_kib * 1024,
        make_s=nodes.start_s,
        backoff_scale=nodes.backoff_scale,
    )
    jobs = tuple(
        Jobs(
            one.name,
            one.count,
            one.limit_mib * MIB,
            max(MIB, one.limit_mib * MIB // 8) if one.unit_mib is None else one.unit_mib * MIB,
            one.rounds,
            one.unit_cpu_s,
            one.unit_idle_s,
            one.request_millicpu,
            one.start_s,
            one.every_s,
            one.priority,
        )
        for one in workload.jobs
    )
    return Load(
        name,
        machine,
        nodes.oversubscription_pct / 100,
        jobs,
        nodes.count,
        nodes.give_up_s,
        lasting=(*workload.services, *workload.daemonsets),
        shuffled=workload.shuffled,
    )
