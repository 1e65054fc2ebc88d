"""The daemon: one epoll loop that samples, decides and acts. The systemd unit starts it.

    python -m cgpause.daemon --config FILE [--cgroup-root DIR] [--log-dir DIR] [--state-dir DIR] [--run-dir DIR]
        [--dry-run]

It wakes only for PSI triggers, inotify, signals and a timer; the headroom sets the timer's interval. It stays small and
imports neither typer nor rich.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import time
from dataclasses import replace

from cgpause import __version__
from cgpause.config.arguments import Options, parse_options
from cgpause.config.load import load_config
from cgpause.config.settings import Policy
from cgpause.core.clock import NS_PER_S, now_ns
from cgpause.core.errors import BusyError, CgpauseError, CgroupGoneError, ConfigError, HostError
from cgpause.core.exit_codes import Exit
from cgpause.core.model import Owner, Result, Sample
from cgpause.daemon import saver, tracer
from cgpause.daemon.actuate import Actuator, Ledger
from cgpause.daemon.brake import Brake
from cgpause.daemon.distress import Distress
from cgpause.daemon.gauges import Sources
from cgpause.daemon.publisher import Publisher
from cgpause.kernel import logfmt
from cgpause.kernel.cgroupfs import Cgroup, find_cgroup_root
from cgpause.kernel.inotify import Changes, PodChange, Watch
from cgpause.kernel.logfmt import fields
from cgpause.kernel.notify import Notifier
from cgpause.kernel.process import lock_memory, raise_descriptor_limit
from cgpause.kernel.psi import PsiTriggers
from cgpause.ledger import ledger
from cgpause.ledger.dryrun import DryLedger
from cgpause.pods.follow import Follower
from cgpause.pods.own import POD_UID, own_pod_uid
from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import SPARED_S, PodTree
from cgpause.policy import reserve
from cgpause.policy.decide import Decision, Quiet, State, decide
from cgpause.policy.kinds import Kinds
from cgpause.policy.schedule import OWN_SHARE, fast_ns
from cgpause.restore import resume_elsewhere
from cgpause.telemetry import recorder

log = logging.getLogger(__name__)

_DETAILS_NS = NS_PER_S
"""Interval of `PodTree.read_details` while memory is tight."""
_STATUS_NS = 2 * NS_PER_S
_BLIND_NS = NS_PER_S
"""Delay of the next attempt after the node's memory could not be read."""
_PSI_LINGER_NS = NS_PER_S
"""Time of fast sampling after a PSI event: the kernel sends at most one event a window (lmkd does the same)."""


class Daemon:
    """One run of the daemon, from start to the last resume."""

    def __init__(self, options: Options) -> None:
        """Read the configuration and open the cgroup tree, epoll, inotify, PSI triggers and state files.

        Raises:
            HostError: the host lacks something that the daemon needs, such as the cgroup root.
            ConfigError: the configuration is missing or invalid.
        """
        self._options = options
        self.config = load_config(options.config_path, must_exist=options.config_required)
        root = options.cgroup_root or find_cgroup_root()
        try:
            self._root = root_cgroup = Cgroup(root, "")
        except CgpauseError as e:
            raise HostError(f"no such cgroup root: {e}") from e
        if not options.dry_run:
            root_cgroup.lock_for_daemon()
        known = saver.load(options.learned_path)
        self.tree = PodTree(root, options.log_dir, self.config, Kinds(known.kinds))
        self._sampler = Sampler(self.tree)
        self._epoll = select.epoll()
        self._watch = Watch(self._epoll)
        self._follower = Follower(self.tree, root_cgroup, self._watch)
        kept: Ledger = DryLedger() if options.dry_run else ledger
        self._history: recorder.HistoryThread | None = None
        if options.history_path is not None and not options.dry_run:
            self._history = recorder.HistoryThread.start(options.history_path, self.config.history.max_mib)
        self._saver = saver.Saver(options.learned_path, self._history, known.peaks)
        self._actuator = Actuator(kept, self.tree, self._watch, dry_run=options.dry_run, recorder=self._history)
        self._brake = Brake(self.tree, self._watch, dry_run=options.dry_run)
        self._notifier = Notifier()
        self._psi = PsiTriggers(self._epoll, self.config.psi)
        self._counts = self._actuator.counts
        sources = Sources(
            self.tree, self._sampler, self._psi, self._watch, self._brake, self._counts, started_at=time.time()
        )
        # A dry run may share the tree with a real daemon: it must not overwrite that daemon's metrics.
        metrics_path = None if options.dry_run else options.metrics_path
        self._publisher = Publisher(metrics_path, options.log_dir, sources)
        self._distress = Distress(self.tree, self._actuator, self._publisher.containers_changed)
        self._tracer = tracer.Tracer(None if options.dry_run else options.trace_path, self.tree, self._sampler)
        self._signals, self._signals_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stop = self._reload = False
        self._state = State(reserve=reserve.with_peaks(known.peaks))
        self._sample: Sample | None = None
        self._sample_at_ns = 0
        self._status_at_ns = 0
        self._status_old = True
        """Whether anything was sampled or discovered since the last STATUS= message."""
        self._alive_at_ns = 0
        self._linger_until_ns = 0
        self._tight = False
        self._asleep = False
        """Whether the last decision left the wake-up to the kernel (PSI, tripwire); then the daemon samples no pods."""
        self._care_bytes = 0
        self._quiet: Quiet | None = None
        """Bounds of headroom and time within which the last decision stays valid; None if a new one is needed."""
        self._cost_ns = 0
        self._details_at_ns = 0
        self._blind = False

    def run(self) -> int:
        """Run until a signal stops the daemon; return 0, 1 after a failure, or 6 if a pause could not be undone."""
        failed = False
        try:
            self._set_up()
            while not self._stop:
                self._turn()
        except Exception:  # a bug, or a node without resources: in any case the daemon must not leave a pod paused
            log.exception("failed")
            failed = True
        left = self._shut_down(failed=failed)
        if left:
            return Exit.NOT_RESTORED
        return Exit.CHECK_FAILED if failed else Exit.DONE

    def _set_up(self) -> None:
        raise_descriptor_limit()
        reason = lock_memory()
        if reason is not None:
            advice = "grant CAP_IPC_LOCK or LimitMEMLOCK=infinity"
            log.warning("memory not locked %s", fields(error=reason, advice=advice))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(self._signals_in, warn_on_full_buffer=False)
        self._epoll.register(self._signals, select.EPOLLIN)
        self._publisher.configure(self.config.metrics)
        self._tracer.configure(self.config.trace)
        self._refresh(now_ns())
        for tracked in self.tree.pods.values():
            if tracked.pod.paused is not None:
                self._actuator.adopt(tracked)
        own_pod, own_uid = self.tree.own_pod, own_pod_uid()
        if own_pod is None and own_uid is not None and self.tree.pods:
            advice = "is --cgroup-root the host's cgroup tree?"
            log.warning("own pod not found %s", fields(uid=own_uid, variable=POD_UID, advice=advice))
        log.info(
            "started %s",
            fields(
                version=__version__,
                cgroup_root=self.tree.root,
                driver=self.tree.driver or "none yet",
                pods=len(self.tree.pods),
                own_pod=None if own_pod is None else own_pod.pod.label,
                config=self._options.config_shown,
                policy=self.config.policy,
                mechanism=self.config.mechanism,
                dry_run="yes" if self._options.dry_run else None,
            ),
        )
        self._notifier.send("READY=1")

    def _turn(self) -> None:
        """Sleep until an event or the next due time, then handle the events, decide, report, publish and save."""
        timeout_s = max(0, self._next_due_ns() - now_ns()) / NS_PER_S
        events = self._epoll.poll(timeout_s)
        urgent = False
        changes = Changes()
        for fd, mask in events:
            if fd == self._signals:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 64)
            elif fd == self._watch.fileno():
                changes = self._watch.read()
            else:
                urgent = self._psi.on_event(fd, mask) or urgent
        at_ns = now_ns()
        if urgent:
            self._counts.pressure_wakeups += 1
            self._linger_until_ns = at_ns + _PSI_LINGER_NS
        if self._reload:
            self._reload = False
            self._load_config()
            changes.tree = urgent = True
        urgent = self._take_in(changes, at_ns) or urgent
        if not self._stop and (urgent or at_ns >= self._sample_at_ns):
            if urgent or not (self._sleeps_on(at_ns) or self._is_quiet(at_ns)):
                self._decide(at_ns)
            self._counts.ticks.observe((now_ns() - at_ns) / NS_PER_S)
        self._report(at_ns)
        self._publisher.turn(at_ns)
        self._tracer.turn(at_ns, self._sample)
        self._saver.turn(at_ns, self._state.reserve.growths.peaks, self.tree.kinds)

    def _next_due_ns(self) -> int:
        due_ns = min(self._sample_at_ns, self._follower.times.due_ns, self._publisher.due_ns, self._tracer.due_ns)
        due_ns = min(due_ns, self._saver.due_ns)
        if self._notifier.watchdog_s is not None:
            due_ns = min(due_ns, self._alive_at_ns)
        return due_ns

    def _take_in(self, changes: Changes, at_ns: int) -> bool:
        """Refresh the tree and the pods that inotify reports as changed; return whether a decision cannot wait.

        The tree is also refreshed when its timer is due.
        """
        times = self._follower.times
        if changes.tree:
            times.something_came(at_ns)
        elif changes.gone:
            times.something_went(at_ns)
        if times.is_due(at_ns):
            started_ns = time.thread_time_ns()
            self._refresh(at_ns)
            times.rest_until(at_ns + int((time.thread_time_ns() - started_ns) / OWN_SHARE))
        urgent = changes.high and self._brake.answer_drift(at_ns)
        if changes.pods:
            self._quiet = None
        for key, change in changes.pods.items():
            tracked = self.tree.pods.get(key)
            if tracked is None:
                continue
            if PodChange.RECORD in change:
                if self.tree.is_marked_otherwise(tracked):  # otherwise the record changed, usually by the daemon itself
                    self.tree.update_facts(tracked, at_ns)
                self._actuator.read_record(tracked)
                if tracked.pod.paused is not None:  # an operator may have paused it while the daemon slept
                    self._asleep = False
                    self._sample_at_ns = min(self._sample_at_ns, at_ns + self._slow_ns())
            if PodChange.CPU_MAX in change:
                self._actuator.answer_drift(tracked, self.config)
            if PodChange.MEMORY in change:
                self.tree.update_facts(tracked, at_ns)
                urgent = self._distress.check_oom(tracked) or urgent
            if PodChange.CONTAINERS in change:
                urgent = self._distress.on_containers(tracked, at_ns) or urgent
                self._expect_newcomer(at_ns)
        return urgent

    def _sleeps_on(self, at_ns: int) -> bool:
        """Return True if the daemon can stay asleep, and plan the next sample; reads node and kubepods, but no pod."""
        if not self._asleep or self._sample is None:
            return False
        try:
            headroom = self._sampler.headroom()
        except CgpauseError:
            return False
        if headroom.available_bytes < self._care_bytes:
            return False
        current_bytes = self._sampler.kubepods_current_bytes
        self._brake.apply(headroom, current_bytes, at_ns, tight=False, care_bytes=self._care_bytes)
        self._sample = replace(self._sample, headroom=headroom)
        sleep_ns = self._sleep_ns(self._sample)
        if sleep_ns is None:
            return False
        self._status_old = True
        self._sample_at_ns = at_ns + sleep_ns
        return True

    def _is_quiet(self, at_ns: int) -> bool:
        """Return True if the headroom alone shows that the last decision is still valid, and plan the next sample."""
        if self._quiet is None or self._sample is None:
            return False
        try:
            headroom = self._sampler.headroom()
        except CgpauseError:
            return False
        if not self._quiet.holds(headroom.available_bytes, at_ns):
            return False
        current_bytes = self._sampler.kubepods_current_bytes
        self._brake.apply(headroom, current_bytes, at_ns, tight=self._tight, care_bytes=self._care_bytes)
        self._sample = replace(self._sample, headroom=headroom)
        self._status_old = True
        self._sample_at_ns = at_ns + self._quiet.next_sample_ns
        return True

    def _decide(self, at_ns: int) -> None:
        self._status_old = True
        self._quiet = None
        self._distress.scan(at_ns, unwatched=self._follower.unwatched)
        if self._tight:
            self._read_details(at_ns)
            self.tree.spare_unmade(at_ns)
        started_ns = time.thread_time_ns()
        try:
            sample, decision = self._look(at_ns)
            cost_ns = time.thread_time_ns() - started_ns
            if decision.tight and not self._tight and self._read_details(at_ns):
                # A pod's use may be page cache: read how much of it is before the decision pauses a pod for it.
                sample, decision = self._look(at_ns)
        except CgpauseError as e:
            self._go_blind(e, at_ns)
            return
        if self._blind:
            self._blind = False
            log.info("memory can be read again")
        # Details (once a second) and actions are not counted: their cost does not grow with the number of samples.
        self._cost_ns += (cost_ns - self._cost_ns) // 8  # smoothed: one slow sample must not slow sampling down
        self._state = decision.state
        self._sample = sample
        if decision.tight and not self._tight:
            self._follower.times.memory_became_tight(at_ns)
        self._tight = decision.tight
        self._actuator.apply(decision.actions, sample, self.config)
        current_bytes = self._sampler.kubepods_current_bytes
        self._brake.apply(sample.headroom, current_bytes, at_ns, tight=decision.tight, care_bytes=decision.care_bytes)
        next_ns = decision.next_sample_ns
        self._quiet = decision.quiet
        self._care_bytes = decision.care_bytes
        sleep_ns = self._sleep_ns(sample)
        self._asleep = sleep_ns is not None and at_ns >= self._linger_until_ns
        if at_ns < self._linger_until_ns:
            if next_ns < self._slow_ns():
                next_ns = fast_ns(sample, self.config.sampling)
        elif sleep_ns is not None:
            next_ns = sleep_ns
        self._sample_at_ns = at_ns + next_ns

    def _look(self, at_ns: int) -> tuple[Sample, Decision]:
        late_ns = max(0, at_ns - self._sample_at_ns) if self._sample_at_ns else 0  # the first sample is never late
        moving = self._state.reserve.growths.moving if self.config.policy is Policy.RESERVE else None
        sample = self._sampler.sample(at_ns, late_ns=late_ns, cost_ns=self._cost_ns, moving=moving)
        return sample, decide(self._state, sample, self.config)

    def _read_details(self, at_ns: int) -> bool:
        """Read each pod's reclaimable memory, CPU time and listening state if due; return whether it was."""
        is_due = at_ns >= self._details_at_ns
        if is_due:
            self._details_at_ns = at_ns + _DETAILS_NS
            self.tree.read_details(at_ns)
        return is_due

    def _sleep_ns(self, sample: Sample) -> int | None:
        """Return how long the daemon may sleep and rely on the kernel to wake it; None if it cannot rely on that."""
        # No event reports that an operator's pause expires or that a damaged record can be repaired: stay awake.
        if not self._psi.on_kubepods or any(t.pod.paused is not None or t.damaged for t in self.tree.pods.values()):
            return None
        return self._brake.sleep_ns(sample.headroom)

    def _slow_ns(self) -> int:
        return int(self.config.sampling.slow_s * NS_PER_S)

    def _go_blind(self, error: CgpauseError, at_ns: int) -> None:
        """Resume all pods the daemon paused: without a sample it cannot tell when a pause should end."""
        if not self._blind:
            self._blind = True
            log.error("memory cannot be read: no pod is paused %s", fields(error=error))
        self._resume_all("memory cannot be read", Result.BLIND)
        self._sample_at_ns = at_ns + _BLIND_NS

    def _refresh(self, at_ns: int) -> None:
        self._status_old = True
        self._asleep = False
        self._quiet = None
        appeared, gone = self._follower.refresh(at_ns, tight=self._tight)
        for tracked in appeared:
            self._actuator.read_record(tracked)
            self._publisher.containers_changed(tracked.pod.uid)
            self._expect_newcomer(at_ns)
            log.debug("pod appeared %s", fields(pod=tracked.pod.label, cgroup=tracked.cgroup.id.path))
        for pod in gone:
            self._actuator.forget(pod)
            log.debug("pod gone %s", fields(pod=pod.label))
        for tracked in self.tree.pods.values():
            self._actuator.answer_drift(tracked, self.config)  # also a pause that was given up an hour ago
        self._psi.follow(self.tree.kubepods)
        self._brake.follow()
        missed = self._watch.done()
        if missed:
            self._distress.missed(at_ns)
        sample, sleeps = self._sample, self._sample_at_ns > at_ns + self._slow_ns()
        # The tripwire and the PSI trigger of a kubepods root that was left wake the daemon no more.
        if missed or (sleeps and sample is not None and self._sleep_ns(sample) is None):
            self._sample_at_ns = at_ns

    def _expect_newcomer(self, at_ns: int) -> None:
        """Sample as soon as a new container may be paused: it can take gigabytes in its first second."""
        if self._tight:
            self._sample_at_ns = min(self._sample_at_ns, at_ns + int(SPARED_S * NS_PER_S))

    def _on_signal(self, number: int, _frame: object) -> None:
        # Set flags only: a handler that logs can interrupt the write of another log line, and that raises.
        if number == signal.SIGHUP:
            self._reload = True
        else:
            self._stop = True

    def _load_config(self) -> None:
        self._notifier.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            config = load_config(self._options.config_path, must_exist=self._options.config_required)
        except ConfigError as e:
            for problem in str(e).splitlines():
                log.error("configuration not reloaded, the old one stays: %s", problem)
        else:
            self.config = self.tree.config = config
            self._psi.configure(config.psi, self.tree.kubepods)
            self._sampler.read_eviction_threshold()
            if self._history is not None:
                self._history.limit(config.history.max_mib)
            self._follower.times.expire_facts()
            self._publisher.configure(config.metrics)
            self._tracer.configure(config.trace)
            log.info("configuration reloaded %s", fields(file=self._options.config_shown))
        self._notifier.send("READY=1")

    def _report(self, at_ns: int) -> None:
        if not self._notifier.connected:
            return
        watchdog_s = self._notifier.watchdog_s
        if watchdog_s is not None and at_ns >= self._alive_at_ns:
            # A lost WATCHDOG=1 is sent again after 1 s: at the usual time systemd would already kill the daemon.
            heard = self._notifier.send("WATCHDOG=1")
            self._alive_at_ns = at_ns + (int(watchdog_s * NS_PER_S) if heard else NS_PER_S)
        if self._status_old and at_ns >= self._status_at_ns:
            self._status_old = False
            self._status_at_ns = at_ns + _STATUS_NS
            self._notifier.status(self._status_line())

    def _status_line(self) -> str:
        if self._blind or self._sample is None:
            return "Cannot read this node's memory; pausing nobody"
        if self.tree.kubepods is None:
            return f"Waiting for kubepods to appear below {self.tree.root}"
        headroom = self._sample.headroom
        paused = sum(tracked.pod.paused is not None for tracked in self.tree.pods.values())
        counts = self._counts
        return (
            f"{len(self.tree.pods)} pods, {paused} paused; memory {headroom.used_pct:.1f} % used, "
            f"{headroom.available_bytes / 2**20:.0f}Mi left; since start {counts.pauses} pauses, "
            f"{counts.sacrifices} sacrifices"
        )

    def _resume_all(self, reason: str, result: Result, *, wait_s: float = 0.05) -> int:
        """Undo every pause of the daemon and restore memory.high; return how many could not be undone."""
        left = 0
        for tracked in list(self.tree.pods.values()):
            if tracked.pod.paused is None or tracked.pod.paused.owner is not Owner.DAEMON:
                left += tracked.damaged
                continue
            try:
                left += not self._actuator.resume(tracked, reason, result, wait_s=wait_s)
            except CgroupGoneError:
                continue
            except BusyError as e:
                log.error("could not resume %s", fields(pod=tracked.pod.label, error=e))
                left += 1
        # memory.high comes last: meanwhile it keeps the resumed pods from filling the node at once.
        with self._actuator.spare.lent():
            return left + (not self._brake.release(reason, wait_s=wait_s))

    def _resume_elsewhere(self) -> int:
        if self._options.dry_run:
            return 0
        followed = set(self.tree.pods)
        if self.tree.kubepods is not None:
            followed.add(self.tree.kubepods.id)
        with self._actuator.spare.lent():
            return resume_elsewhere(self.tree.root, self._options.log_dir, self._history, followed)

    def _shut_down(self, *, failed: bool) -> int:
        log.info("stopping")
        self._notifier.send("STOPPING=1")
        left = self._resume_all("cgpause stops", Result.STOPPED, wait_s=ledger.LOCK_WAIT_S) + self._resume_elsewhere()
        self._publisher.close()  # before the unlock: this removes the file, and the next daemon may publish after it
        # Unlock before anything waits for a disk: a disk that hangs keeps this process and would block the next daemon.
        self._root.unlock_for_daemon()
        # Wait for disks only now, when no pod is paused any more.
        self._tracer.close()
        if not failed:
            self._saver.close(self._state.reserve.growths.peaks, self.tree.kinds)
        if self._history is not None:
            self._history.close()
        held = [tracked.pod.paused for tracked in self.tree.pods.values()]
        by_hand = sum(record is not None and record.owner is Owner.MANUAL for record in held)
        log.info("stopped %s", fields(not_resumed=left, paused_by_hand=by_hand))
        return left


def main(argv: list[str] | None = None) -> int:
    """Run the daemon and return its exit code.

    It is 0 after a stop, 1 after a failure or on a host that cannot run the daemon, 2 for a bad configuration, and 6 if
    a pause could not be undone.
    """
    options = parse_options(argv)
    logfmt.set_up(verbose=options.verbose)
    try:
        daemon = Daemon(options)
    except ConfigError as e:
        for line in str(e).splitlines():
            log.error("%s", line)
        return Exit.USAGE
    except HostError as e:
        log.error("%s", e)
        return Exit.CHECK_FAILED
    return daemon.run()
