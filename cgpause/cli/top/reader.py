"""Reader of the dashboard's snapshots of one tree.

It uses the same pod tree, sampler and policy as the daemon and `cgpause explain`, learns growth as they do, and writes
nothing. A read error is not fatal: the snapshot shows it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, Self

from cgpause.cli.status import pod_values
from cgpause.cli.top.line import levels, next_in_line
from cgpause.cli.top.values import GraphPoint, Kubepods, Levels, NodeView, PodDetail, PodState, SeenPod
from cgpause.config.settings import Config
from cgpause.core.clock import NS_PER_S
from cgpause.core.errors import CgpauseError, printable
from cgpause.core.model import CgroupId, Pause, PodUsage, Policy, Pressure, Sample
from cgpause.core.parse import CpuStat, parse_cpu_stat, parse_limit
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.find_daemon import DaemonState, FoundDaemon, find_daemon
from cgpause.kernel.psi import read_node_pressure, read_pressure
from cgpause.ledger import high
from cgpause.ledger.ledger import is_in_force
from cgpause.pods.sampler import Sampler
from cgpause.pods.tracked import TrackedPod, count_oom_kills
from cgpause.pods.tree import PodTree
from cgpause.policy import reserve
from cgpause.policy.decide import State
from cgpause.policy.explain import Verdict, explain
from cgpause.policy.kinds import Kinds
from cgpause.policy.learn import learn
from cgpause.policy.peaks import Peaks
from cgpause.policy.watermark import WatermarkState
from cgpause.telemetry import history
from cgpause.telemetry.events import Event
from cgpause.telemetry.learned import Learned

_REFRESH_NS = 2 * NS_PER_S
_FACTS_NS = 10 * NS_PER_S
"""Interval of reading names, limits and marks: they rarely change, and reading them costs as much as the rest."""
_DETAILS_NS = 5 * NS_PER_S
"""Interval of reading page cache and listening processes; while memory is tight, every refresh reads them."""
_SHORTEST_NS = NS_PER_S // 4
"""Shortest time for a rate: over less, the clock's ticks would dominate it."""
_MOMENTS = 1200
_EVENTS = 200
_EVENTS_OF_ONE = 2000
"""Number of the history's last events in which the events of one pod are searched."""


class RecentEvents:
    """The last events of a history file; none if there is no file or it cannot be read."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._known: tuple[int, int] | None = None
        self._one: tuple[object, tuple[Event, ...]] = (None, ())
        """The events of one pod, after the state of the file and the UID."""
        self.events: tuple[Event, ...] = ()
        """Newest last."""
        self.none = "none yet" if path is not None else "no history is kept for another tree without --state-dir"
        """The reason why there are no events, if there are none."""

    def read(self) -> None:
        """Read the events again if the file has changed."""
        if self._path is None:
            return
        try:
            found = os.stat(self._path, follow_symlinks=False)
            known = (found.st_ino, found.st_size)
            if known != self._known:
                self._known = known
                self.events, self.none = tuple(history.tail(self._path, _EVENTS)), "none yet"
        except FileNotFoundError:
            self._known, self.events, self.none = None, (), "no history so far"
        except (OSError, history.HistoryError) as e:
            self._known, self.events = None, ()
            self.none = f"the history cannot be read: {printable((isinstance(e, OSError) and e.strerror) or str(e))}"

    def of(self, uid: str) -> tuple[Event, ...]:
        """Return the last events of one pod, newest last."""
        if not self.events or self._path is None:
            return ()
        if self._one[0] != (self._known, uid):
            self._one = (self._known, uid), ()
            with suppress(history.HistoryError):
                found = tuple(event for event in history.tail(self._path, _EVENTS_OF_ONE) if event.uid == uid)
                self._one = (self._known, uid), found
        return self._one[1]


class _CpuUse(NamedTuple):
    """One pod's latest reading of cpu.stat, and the rates since the one before; None without one."""

    at_ns: int
    stat: CpuStat
    millicores: float | None = None
    throttled_ms: float | None = None

    def next(self, at_ns: int, stat: CpuStat) -> _CpuUse:
        """Return the use after one more reading."""
        if at_ns - self.at_ns < _SHORTEST_NS:
            return self
        elapsed_us = (at_ns - self.at_ns) / 1000
        millicores = max(stat.usage_usec - self.stat.usage_usec, 0) * 1000 / elapsed_us
        throttled_ms = max(stat.throttled_usec - self.stat.throttled_usec, 0) * 1000 / elapsed_us
        return _CpuUse(at_ns, stat, millicores, throttled_ms)


class Reader:
    """Reader of snapshots of one tree; call `close` or use it as a context manager."""

    def __init__(
        self, root: str, log_dir: str, config: Config, history_path: str | None = None, known: Learned | None = None
    ) -> None:
        """Prepare the first read; `history_path` is that of the daemon's history, `known` the saved kinds and peaks."""
        known = known or Learned()
        self.tree = PodTree(root, log_dir, config, Kinds(known.kinds))
        self._sampler = Sampler(self.tree)
        self._cpus: dict[CgroupId, _CpuUse] = {}
        self._recent = RecentEvents(history_path)
        self._state = State(reserve=reserve.with_peaks(Peaks(known.peaks)))
        self._growths = self._state.reserve.growths
        self._tight = True
        self._details_at_ns = 0
        self._moments: deque[GraphPoint] = deque(maxlen=_MOMENTS)
        self._pressure: tuple[int, Pressure] | None = None
        self._daemon = FoundDaemon(DaemonState.UNKNOWN)
        self._host = os.uname().nodename
        self._refresh_at_ns = self._facts_at_ns = 0

    def close(self) -> None:
        """Close all descriptors."""
        self._sampler.close()
        self.tree.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def configure(self, config: Config) -> None:
        """Use another configuration from the next read on."""
        self.tree.config = config
        self._facts_at_ns = self._refresh_at_ns = 0  # its rules may change the class or protection of any pod

    def read(self, at_ns: int, detail_of: CgroupId | None = None) -> NodeView:
        """Return a snapshot at `at_ns` (CLOCK_BOOTTIME); it has the details of the pod `detail_of`."""
        at = time.time()
        error = self._refresh(at_ns)
        for tracked in self.tree.pods.values():
            tracked.see_record()
        self._recent.read()
        sample: Sample | None
        try:
            self.tree.check_programs(at_ns)
            sample = self._sampler.sample(at_ns)
            if self._tight or at_ns >= self._details_at_ns:
                self._details_at_ns = at_ns + _DETAILS_NS
                sample = self._sampler.add_details(sample)
        except CgpauseError as e:
            sample, error = None, str(e)
        pressure = read_node_pressure()
        self._add_moment(at_ns, sample, pressure)
        pods, where = self._judge(sample, at_ns)
        return NodeView(
            at=at,
            at_ns=at_ns,
            zone=None,
            host=self._host,
            config=self.tree.config,
            daemon=self._daemon,
            headroom=None if sample is None else sample.headroom,
            levels=where,
            kubepods=self._read_kubepods(),
            pressure=pressure,
            moments=tuple(self._moments),
            pods=pods,
            events=self._recent.events,
            error=error,
            no_events=self._recent.none,
            detail=None if detail_of is None else self.detail(detail_of, at_ns),
        )

    def detail(self, key: CgroupId, at_ns: int) -> PodDetail | None:
        """Return the details of one pod; None if it is gone."""
        tracked = self.tree.pods.get(key)
        if tracked is None:
            return None
        cgroup = tracked.cgroup
        try:
            processes: int | None = sum(len(cgroup.pids(name)) for name in ("", *tracked.descendants(at_ns)))
        except CgpauseError:
            processes, tracked.list_at_ns = None, 0  # probably a container has ended
        return PodDetail(
            key=key,
            values=pod_values(tracked),
            oom_kills=_oom_kills(cgroup),
            pressure=read_pressure(cgroup),
            processes=processes,
            events=self._recent.of(tracked.pod.uid),
        )

    def _refresh(self, at_ns: int) -> str | None:
        """Refresh pods and daemon if that is due, and the CPU rates; return the error of the refresh, or None."""
        error = None
        if at_ns >= self._refresh_at_ns:
            self._refresh_at_ns = at_ns + _REFRESH_NS
            self._daemon = find_daemon(self.tree.root)
            facts = at_ns >= self._facts_at_ns
            if facts:
                self._facts_at_ns = at_ns + _FACTS_NS
            try:
                self.tree.refresh(at_ns, facts=facts)
            except CgpauseError as e:
                error = str(e)
                self._refresh_at_ns = 0
        before, self._cpus = self._cpus, {}
        for key, tracked in self.tree.pods.items():
            with suppress(CgpauseError):
                stat, known = parse_cpu_stat(tracked.cgroup.read("cpu.stat")), before.get(key)
                self._cpus[key] = _CpuUse(at_ns, stat) if known is None else known.next(at_ns, stat)
        return error

    def _add_moment(self, at_ns: int, sample: Sample | None, pressure: Pressure | None) -> None:
        at_s = at_ns / NS_PER_S
        some_pct = full_pct = None
        if self._pressure is not None and at_ns - self._pressure[0] < _SHORTEST_NS:
            return
        if pressure is not None:
            some_pct, full_pct = pressure.some_avg10, pressure.full_avg10
            if self._pressure is not None:  # the totals are exact; avg10 is a mean over ten seconds
                then_ns, then = self._pressure
                elapsed_us = (at_ns - then_ns) / 1000
                some_pct = min(100 * max(pressure.some_total_us - then.some_total_us, 0) / elapsed_us, 100.0)
                full_pct = min(100 * max(pressure.full_total_us - then.full_total_us, 0) / elapsed_us, 100.0)
            self._pressure = (at_ns, pressure)
        available = None if sample is None else max(sample.headroom.available_bytes, 0)
        self._moments.append(GraphPoint(at_s, some_pct, full_pct, available))

    def _judge(self, sample: Sample | None, at_ns: int) -> tuple[tuple[SeenPod, ...], Levels | None]:
        """Ask the policy for a decision; return the pods with their verdicts, and the levels of headroom."""
        if sample is None:
            return tuple(self._see(tracked, None, None, PodState.RUNNING) for tracked in self.tree.pods.values()), None
        # As if the daemon's next check were due, as in `cgpause explain`.
        checked = WatermarkState(checked_at_ns=0, used_pct=sample.headroom.used_pct)
        # Most resumes are the daemon's own, for headroom: it may pause such a pod again at once.
        stretches = {key: replace(one, resumed_by_policy=True) for key, one in self._state.stretches.items()}
        self._state = self._state._replace(watermark=checked, stretches=stretches)
        decision, verdicts = explain(self._state, sample, self.tree.config)
        self._state, self._tight = decision.state, decision.tight
        # The watermark policy learns no growth, but the dashboard shows it.
        learned = self._state.reserve.growths
        self._growths = learn(self._growths, sample) if self.tree.config.policy is Policy.WATERMARK else learned
        # Beside a running daemon this is no decision, only a forecast: the daemon has watched the pods for longer.
        decides = self._daemon.state is not DaemonState.RUNNING
        paused = {action.pod.cgroup for action in decision.actions if decides and isinstance(action, Pause)}
        first = next_in_line(verdicts, paused)
        known = {verdict.usage.pod.cgroup: verdict for verdict in verdicts}
        pods = []
        for key, tracked in self.tree.pods.items():
            verdict = known.get(key)
            if verdict is None and not tracked.cgroup.exists():
                self._refresh_at_ns = 0  # the pod has ended since the refresh
                continue
            state = PodState.RUNNING
            if key in paused:
                state = PodState.WOULD_PAUSE
            elif verdict is not None and verdict is first:
                state = PodState.NEXT
            pods.append(self._see(tracked, verdict, at_ns, state))
        return tuple(pods), levels(sample, decision, verdicts, self.tree.config)

    def _see(self, tracked: TrackedPod, verdict: Verdict | None, at_ns: int | None, state: PodState) -> SeenPod:
        pod = tracked.pod
        growth = None if at_ns is None else self._growths.pods.get(pod.cgroup)
        cpu = self._cpus.get(pod.cgroup)
        error = tracked.error
        if verdict is None and error is None and at_ns is not None:
            error = "its memory.current cannot be read"
        if not _is_in_force(tracked):
            state, error = PodState.ERROR, "its pause is not in force: another program has written since; resume it"
        elif pod.paused is not None:
            state = PodState.PAUSED
        elif error is not None:
            state = PodState.ERROR
        elif pod.protected is not None:
            state = PodState.PROTECTED
        return SeenPod(
            pod=pod,
            verdict=verdict or Verdict(PodUsage(0, pod), None, ""),
            state=state,
            current_bytes=None if verdict is None else verdict.usage.memory_current_bytes,
            growth=None if growth is None else growth.rate,
            cpu_millicores=None if cpu is None else cpu.millicores,
            throttled_ms=None if cpu is None else cpu.throttled_ms,
            error=error,
        )

    def _read_kubepods(self) -> Kubepods | None:
        cgroup, current = self.tree.kubepods, self._sampler.kubepods.current_bytes
        if cgroup is None or current is None:
            return None
        high_bytes, ours = None, False
        with suppress(CgpauseError):
            high_bytes = parse_limit(cgroup.read(high.FILE), high.FILE)
            data = cgroup.get_xattr(high.XATTR)
            ours = data is not None and high.decode_record(data).holds(high_bytes)
        return Kubepods(current, high_bytes, high_is_ours=ours, oom_kills=_oom_kills(cgroup))


def _oom_kills(cgroup: Cgroup) -> int | None:
    with suppress(CgpauseError):
        return count_oom_kills(cgroup)
    return None


def _is_in_force(tracked: TrackedPod) -> bool:
    """Return False if another program has written to a paused pod since, so that it runs; True if that is unknown."""
    record = tracked.pod.paused
    with suppress(CgpauseError):
        return record is None or is_in_force(tracked.cgroup, record)
    return True
