"""The service pods of a node: services, their network namespaces, their probers, and a control.

They do the parts of kubelet and of the container runtime that liveness needs: a sandbox that keeps the pod's network
namespace, a prober for each container, and the restart of killed containers.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cgpause.offline.simulate.kubelet import Backoff, oom_score_adj
from lab.bed.frame import wait_until
from lab.bed.kubelet import Event, EventKind, Job
from lab.bed.kubepods import MIB, NEW_NETWORK, Container, Kubepods, PodSpec, make_uid, remove_tree, spawn_into
from lab.vm.host import LabError, say

# Kubernetes' default: terminationGracePeriodSeconds.
GRACE_S: Final = 30.0
PORT: Final = 8080
"""Port of every service; each pod has a network namespace of its own."""

_NETNS_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Plan:
    """The services and jobs of a run; durations in seconds as on a real node, before `scale`."""

    seconds: float = 600.0
    """Duration once all pods run, in seconds, not scaled."""
    period: float = 10.0
    timeout: float = 1.0
    failures: int = 3
    scale: float = 1.0
    pause_services: bool = False
    services: int = 3
    jobs: int = 10
    """Number of jobs. Their requests, and half of their limits, fit beside the services'; their limits fill 1.3 nodes.
    """
    protected_jobs: int = 7
    """Number of jobs where they cannot be paused. Their limits just fill the node, so that they hardly ever stay at
    memory.high for long: there the kernel stalls the services as well, paused or not.
    """
    oversubscription: float = 1.6
    capacity_mib: int = 384
    job_mib: int = 48
    service_hold_mib: int = 8
    service_swing_mib: int = 8
    unit_mib: int = 4
    unit_cpu_ms: int = 100

    @property
    def service_limit_mib(self) -> int:
        """Memory limit and request of a service, in MiB."""
        return self.service_hold_mib + self.service_swing_mib + 8


@dataclass(slots=True)
class Probes:
    """The results of one service's probes, over all its containers; a new container starts with no failures."""

    failures: int
    """Misses in a row after which kubelet kills the container."""
    answered: int = 0
    missed: int = 0
    longest_run: int = 0
    kills: int = 0
    slowest_answer_us: int = 0
    run: int = 0

    def take(self, line: str) -> bool:
        """Count one line of the prober; return True if kubelet kills the container now."""
        verdict, took_us = line.split()
        if verdict == "answered":
            self.answered += 1
            self.run = 0
            self.slowest_answer_us = max(self.slowest_answer_us, int(took_us))
            return False
        self.missed += 1
        self.run += 1
        self.longest_run = max(self.longest_run, self.run)
        return self.run >= self.failures

    def kill(self) -> None:
        """Count a kill of the container for failed probes."""
        self.kills += 1
        self.run = 0


def add_up(all_probes: Sequence[Probes]) -> Probes:
    """Return the sum of several services' results; maxima for the longest run and the slowest answer."""
    return Probes(
        failures=all_probes[0].failures,
        answered=sum(one.answered for one in all_probes),
        missed=sum(one.missed for one in all_probes),
        longest_run=max(one.longest_run for one in all_probes),
        kills=sum(one.kills for one in all_probes),
        slowest_answer_us=max(one.slowest_answer_us for one in all_probes),
    )


class Prober:
    """One prober process outside the pods; `lines` returns its verdicts since the last call."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # the prober ends when our end of the pipe closes, also if we are killed
            process_group=0,  # Ctrl-C is for us
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout
        os.set_blocking(self._out.fileno(), False)
        self._rest = ""

    def lines(self) -> list[str]:
        """Return the whole lines printed since the last call.

        Raises:
            LabError: the prober ended by itself.
        """
        text = self._out.read()
        if text == b"":
            raise LabError("a prober ended by itself")
        *lines, self._rest = (self._rest + (text or b"").decode()).split("\n")
        return lines

    def close(self) -> None:
        """Kill the prober and reap it."""
        self._process.kill()
        self._process.wait()
        self._out.close()


class Namespaces:
    """Named network namespaces of pods, as a runtime keeps them in /run/netns.

    In the host's namespace other programs listen on ports, and cgpause would class every job as a service.
    """

    def __init__(self, tree: Kubepods, folder: Path) -> None:
        """Begin without any name: an earlier run that was cut off left those of its pods in `folder`."""
        self._tree = tree
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()

    @staticmethod
    def sandbox(worker: Path) -> tuple[str, ...]:
        """Return the command line of each pod's sandbox: it makes a network namespace and sleeps."""
        return (*NEW_NETWORK, str(worker), "pause")

    def enter(self, pod: str, *argv: str) -> tuple[str, ...]:
        """Return a command line that runs `argv` in the pod's network namespace."""
        return ("nsenter", f"--net={self._folder / pod}", *argv)

    def link(self, pod: PodSpec) -> None:
        """Wait until a new pod's sandbox has made its network namespace, and name the namespace after the pod."""
        pid = await_netns(self._tree.pod_path(pod))
        (self._folder / pod.name).symlink_to(f"/proc/{pid}/ns/net")

    def jobs(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the jobs with command lines that enter their pods' networks."""
        return [replace(job, argv=self.enter(job.name, *job.argv)) for job in jobs]

    def on_event(self, event: Event) -> None:
        """Name a pod's namespace when its sandbox runs; remove the name with the pod, for a later pod of that name."""
        if event.kind is EventKind.NETWORKED:
            self.link(event.pod)
        elif event.kind is EventKind.REMOVED:
            (self._folder / event.pod.name).unlink(missing_ok=True)


class Control:
    """The same service and prober beside the tree, where nothing is ever paused.

    If the control misses a probe, the machine was too slow, and the run shows nothing about pauses.
    """

    def __init__(self, parent: Path, program: Path, plan: Plan) -> None:
        self.probes = Probes(plan.failures)
        self._cgroup = parent / "control.service"
        self._cgroup.mkdir()
        self._pid, pidfd = spawn_into(self._cgroup, (*NEW_NETWORK, *serve(program, plan)))
        os.close(pidfd)
        await_netns(self._cgroup)
        self._prober = Prober(("nsenter", f"--net=/proc/{self._pid}/ns/net", *probe(program, plan, phase=0.5)))

    def step(self) -> None:
        """Count the prober's results; the control's service is never killed for them."""
        for line in self._prober.lines():
            self.probes.take(line)

    def close(self) -> None:
        """End the prober and the service."""
        self._prober.close()
        remove_tree(self._cgroup)
        os.waitpid(self._pid, 0)


def serve(program: Path, plan: Plan) -> tuple[str, ...]:
    """Return the command line of a service."""
    sizes = (plan.service_hold_mib * MIB, plan.service_swing_mib * MIB, round(500 * plan.scale))
    return (str(program), "serve", str(PORT), *map(str, sizes))


def probe(program: Path, plan: Plan, *, phase: float) -> tuple[str, ...]:
    """Return the command line of a service's prober; it waits `phase` periods before the first probe."""
    times_s = (phase * plan.period, plan.period, plan.timeout)
    return (str(program), "probe", "http", str(PORT), *(str(round(one * plan.scale * 1000)) for one in times_s))


def await_netns(cgroup: Path) -> int:
    """Wait until a process below a cgroup has a network namespace other than this process's; return its pid.

    Raises:
        LabError: no such process appeared in time.
    """
    ours = Path("/proc/self/ns/net").readlink()
    found: list[str] = []

    def look() -> bool:
        files = (cgroup / "cgroup.procs", *cgroup.glob("*/cgroup.procs"))
        pids = [pid for file in files for pid in file.read_text().split()]
        found.extend(pid for pid in pids if Path(f"/proc/{pid}/ns/net").readlink() != ours)
        return bool(found)

    # The kernel sends no event when a process changes its namespace.
    wait_until(look, _NETNS_SECONDS, f"no network namespace in {cgroup} within {_NETNS_SECONDS} s", poll_s=0.01)
    return int(found[0])


@dataclass(slots=True)
class _Service:
    pod: PodSpec
    probes: Probes
    backoff: Backoff
    restarts: int = 0
    container: Container | None = None
    prober: Prober | None = None
    started_s: float = 0.0
    start_at_s: float = 0.0
    kill_at_s: float | None = None


@dataclass(slots=True)
class Services:
    """The service pods of a tree with their probers. The caller calls `step` often; it does the work that is due."""

    tree: Kubepods
    namespaces: Namespaces
    program: Path
    plan: Plan
    _all: list[_Service] = field(default_factory=list)

    def __enter__(self) -> Self:
        for number in range(self.plan.services):
            pod = PodSpec(
                f"service-{number}",
                make_uid("service", number),
                self.plan.service_limit_mib * MIB,
                container="server",
                oom_score_adj=oom_score_adj(self.plan.service_limit_mib * MIB, self.plan.capacity_mib * MIB),
            )
            self._all.append(_Service(pod, Probes(self.plan.failures), Backoff(self.plan.scale)))
            self.tree.add_pod(pod)
            self.namespaces.link(pod)
        self.step()
        return self

    def __exit__(self, _type: type[BaseException] | None, _e: BaseException | None, _tb: TracebackType | None) -> None:
        for service in self._all:
            self._stop_probing(service)

    @property
    def probes(self) -> Probes:
        """Probe results of all services together."""
        return add_up([service.probes for service in self._all])

    @property
    def restarts(self) -> int:
        """Number of restarted containers."""
        return sum(service.restarts for service in self._all)

    @property
    def uids(self) -> set[str]:
        """UIDs of the service pods."""
        return {service.pod.uid for service in self._all}

    def step(self) -> None:
        """Read the probers, end containers with failed probes, and start the containers that are due."""
        for number, service in enumerate(self._all):
            if service.container is None:
                if time.monotonic() >= service.start_at_s:
                    self._start(service, number)
                continue
            self._listen(service, service.container)
            if service.kill_at_s is not None and time.monotonic() >= service.kill_at_s:
                signal.pidfd_send_signal(service.container.pidfd, signal.SIGKILL)
                service.kill_at_s = None
            if has_exited(service.container):
                self._end(service, service.container)

    def _start(self, service: _Service, number: int) -> None:
        name = service.pod.name
        argv = self.namespaces.enter(name, *serve(self.program, self.plan))
        service.container = self.tree.start_container(service.pod, argv)
        service.started_s = time.monotonic()
        # Spread the probes over the period: otherwise all of them meet the same moment of a pause.
        phase = (number + 1) / self.plan.services
        service.prober = Prober(self.namespaces.enter(name, *probe(self.program, self.plan, phase=phase)))

    def _listen(self, service: _Service, container: Container) -> None:
        if service.prober is None:
            return
        for line in service.prober.lines():
            if service.probes.take(line):
                service.probes.kill()
                say(f"{service.pod.name}: liveness probe failed {self.plan.failures} times in a row: killed")
                self._stop_probing(service)
                signal.pidfd_send_signal(container.pidfd, signal.SIGTERM)
                service.kill_at_s = time.monotonic() + GRACE_S * self.plan.scale
                return

    def _end(self, service: _Service, container: Container) -> None:
        self._stop_probing(service)
        now_s = time.monotonic()
        code, _ = self.tree.remove_container(service.pod, container)
        if code > 0:
            raise LabError(f"{service.pod.name} failed by itself, with exit code {code}")
        service.container = service.kill_at_s = None
        service.probes.run = 0
        service.restarts += 1
        service.start_at_s = now_s + service.backoff.after_kill(now_s - service.started_s)

    def _stop_probing(self, service: _Service) -> None:
        if service.prober is not None:
            service.prober.close()
            service.prober = None


def has_exited(container: Container) -> bool:
    """Return True if a container's process has ended; leave the process for `remove_container` to reap."""
    return os.waitid(os.P_PIDFD, container.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
