"""The daemon as a process: start, reload of the configuration, and a stop that ends its pauses.

    python -m cgpause.daemon [--config FILE] [--cgroup-root DIR] [--log-dir DIR] [--state-dir DIR] [--run-dir DIR]
        [--dry-run] [--verbose] [--version]

The systemd unit starts it. It stays small and imports neither typer nor rich.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from dataclasses import replace

from cgpause import __version__
from cgpause.config.arguments import Options, parse_options
from cgpause.config.load import load_config
from cgpause.config.settings import Config, HowPaused
from cgpause.core.clock import now_ns
from cgpause.core.errors import (
    BusyError,
    CgpauseError,
    CgroupGoneError,
    ConfigError,
    ConfigUnreadableError,
    Exit,
    HostError,
)
from cgpause.core.model import Mechanism, Owner, PauseRecord, Policy, Result
from cgpause.daemon.actuate import Actuator
from cgpause.daemon.brake import Brake
from cgpause.daemon.distress import Distress
from cgpause.daemon.intake import Intake
from cgpause.daemon.loop import Loop
from cgpause.daemon.publisher import Publisher
from cgpause.daemon.status import Status
from cgpause.kernel import logfmt
from cgpause.kernel.cgroupfs import Cgroup, find_cgroup_root
from cgpause.kernel.inotify import Watch
from cgpause.kernel.logfmt import fields
from cgpause.kernel.notify import Notifier
from cgpause.kernel.process import lock_memory, raise_descriptor_limit
from cgpause.kernel.psi import PsiTriggers
from cgpause.ledger import ledger
from cgpause.ledger.plan import tighter
from cgpause.pods.follow import Follower
from cgpause.pods.names import names_thread
from cgpause.pods.own_pod import POD_UID, own_pod_uid
from cgpause.pods.own_words import OwnWordsThread
from cgpause.pods.sampler import Sampler
from cgpause.pods.tracked import TrackedPod
from cgpause.pods.tree import PodTree
from cgpause.policy.decide import State
from cgpause.policy.kinds import Kinds
from cgpause.policy.limits import must_end, paused_by_daemon
from cgpause.policy.peaks import Peaks
from cgpause.policy.reserve import with_peaks
from cgpause.telemetry import saver
from cgpause.telemetry.learned import Learned
from cgpause.telemetry.recorder import StateDirThread

log = logging.getLogger(__name__)


class Daemon:
    """One run of the daemon, from start to the last resume."""

    def __init__(self, options: Options) -> None:
        """Read the configuration and open the cgroup tree, epoll, inotify, PSI triggers and state files.

        Raises:
            HostError: the host lacks something that the daemon needs, or another daemon works on the tree.
            ConfigError: the configuration is missing or invalid.
        """
        self._options = options
        config = load_config(options.config_file, must_exist=options.config_path is not None)
        root = options.cgroup_root or find_cgroup_root()
        dry_run = options.dry_run
        try:
            self._root = root_cgroup = Cgroup(root, "")
        except CgpauseError as e:
            raise HostError(f"the cgroup root cannot be opened: {e}") from e
        if not dry_run:
            root_cgroup.lock_for_daemon()
        saved = saver.load(options.learned_path)
        known = saved or Learned()
        names = names_thread(options.log_dir)
        kinds, words = Kinds(known.kinds), OwnWordsThread(root)
        self._tree = tree = PodTree(root, options.log_dir, config, kinds, words, names, dry_run=dry_run)
        sampler = Sampler(tree)
        epoll = select.epoll()
        watch = Watch(epoll)
        follower = Follower(tree, root_cgroup, watch)
        self._history: StateDirThread | None = None
        if options.history_path is not None and not dry_run:
            self._history = StateDirThread.start(options.history_path, config.history.max_mib)
        keep = None if self._history is None else self._history.keep
        self._actuator = actuator = Actuator(tree, watch, keep)
        self._brake = brake = Brake(tree, watch)
        self._notifier = Notifier()
        psi = PsiTriggers(epoll)
        intake = Intake(tree, follower, watch, psi, actuator, brake, Distress(tree, actuator))
        self._signals, self._signals_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._loop = Loop(
            epoll,
            self._signals,
            intake,
            sampler,
            Status(self._notifier, tree, actuator.counts),
            # A dry run may share the tree with a real daemon: it must not overwrite that daemon's metrics.
            Publisher(None if dry_run else options.metrics_path, intake, sampler),
            saver.Saver(options.learned_path, self._history, saved),
            State(reserve=with_peaks(Peaks(known.peaks))),
            release=lambda: self._resume_all("memory cannot be read", Result.BLIND),
        )
        self._stop = self._reload = False
        self._left_outdated = False
        """Whether `_end_outdated` has left a pause because another process works on its pod."""

    def run(self) -> int:
        """Run until a signal stops the daemon; return 0, 1 after a failure, or 6 if something was not restored."""
        failed = False
        try:
            self._set_up()
            while not self._stop:
                changes, urgent = self._loop.wait()
                if self._reload:
                    self._reload = False
                    self._load_config()
                    urgent = True
                elif self._left_outdated:
                    self._end_outdated()
                    urgent = True
                self._loop.tick(changes, urgent=urgent, stopping=self._stop)
        except Exception:  # a bug, or a node without resources: in any case the daemon must not leave a pod paused
            log.exception("failed")
            failed = True
        left = self._shut_down(failed=failed)
        if left:
            return Exit.NOT_RESTORED
        return Exit.CHECK_FAILED if failed else Exit.DONE

    def _set_up(self) -> None:
        loop, tree, config = self._loop, self._tree, self._tree.config
        raise_descriptor_limit()
        reason = lock_memory()
        if reason is not None:
            advice = "grant CAP_IPC_LOCK or LimitMEMLOCK=infinity"
            log.warning("memory not locked %s", fields(error=reason, advice=advice))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(self._signals_in, warn_on_full_buffer=False)
        loop.epoll.register(self._signals, select.EPOLLIN)
        loop.publisher.configure(config.metrics)
        loop.schedule = loop.intake.refresh(loop.schedule, None, now_ns())
        for tracked in tree.pods.values():
            self._actuator.log_adopted(tracked)
        self._end_outdated()
        own_pod, own_uid = tree.own_pod, own_pod_uid()
        if own_pod is None and own_uid is not None and tree.pods:
            advice = "is --cgroup-root the host's cgroup tree?"
            log.warning("own pod not found %s", fields(uid=own_uid, variable=POD_UID, advice=advice))
        log.info(
            "started %s",
            fields(
                version=__version__,
                cgroup_root=tree.root,
                driver=tree.driver or "none yet",
                pods=len(tree.pods),
                own_pod=None if own_pod is None else own_pod.pod.label,
                config=self._options.config_shown,
                policy=config.policy,
                mechanism=config.mechanism,
                dry_run="yes" if self._options.dry_run else None,
            ),
        )
        self._notifier.send("READY=1")

    def _on_signal(self, number: int, _frame: object) -> None:
        # Set flags only: a handler that logs can interrupt the write of another log line, and that raises.
        if number == signal.SIGHUP:
            self._reload = True
        else:
            self._stop = True

    def _load_config(self) -> None:
        self._notifier.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            config = load_config(self._options.config_file, must_exist=self._options.config_path is not None)
        except ConfigError as e:
            self._actuator.counts.reload_succeeded = False
            for problem in str(e).splitlines():
                log.error("configuration not reloaded, the old one stays: %s", problem)
        else:
            loop = self._loop
            self._actuator.counts.reload_succeeded = True
            self._tree.config = config
            if self._history is not None:
                self._history.limit(config.history.max_mib)
            loop.intake.follower.times.expire_facts()
            loop.publisher.configure(config.metrics)
            if any(map(self._is_outdated, self._tree.pods.values())):
                # Before the pods run: the refresh that is due now may wait for a disk.
                loop.schedule = loop.intake.refresh(loop.schedule, loop.headroom, now_ns())
            self._end_outdated()
            log.info("configuration reloaded %s", fields(file=self._options.config_shown))
        self._notifier.send("READY=1")

    def _end_outdated(self) -> None:
        """End the daemon's pauses that the configuration would not make like this; a decision follows at once.

        The policies compute with the mechanism and the quota of the configuration.
        """
        stretches, self._left_outdated = dict(self._loop.state.stretches), False
        for tracked in filter(self._is_outdated, self._tree.pods.values()):
            key = tracked.pod.cgroup
            try:
                self._actuator.resume(tracked, "the configuration has changed", Result.OPERATOR)
                if key in stretches:  # as by the policy, or it could not be paused again for min_run_s
                    stretches[key] = replace(stretches[key], resumed_by_policy=True)
            except CgroupGoneError:
                pass
            except BusyError:
                self._left_outdated = True
        self._loop.state = self._loop.state._replace(stretches=stretches)

    def _is_outdated(self, tracked: TrackedPod) -> bool:
        """Return whether the configuration would not make a pod's pause like this, and the policy would pause it again.

        `watermark` knows no quota, and pauses few pods at a time.
        """
        pod, config = tracked.pod, self._tree.config
        if pod.paused is None or must_end(pod, now_ns()) or config.policy is Policy.WATERMARK:
            return False
        return is_outdated(pod.paused, config)

    def _resume_all(self, reason: str, result: Result, *, wait_s: float = ledger.LOOP_LOCK_WAIT_S) -> int:
        """End the daemon's pauses and expired ones, and restore memory.high; return how many were not restored."""
        left = 0
        for tracked in list(self._tree.pods.values()):
            pod = tracked.pod
            why = (result, reason) if paused_by_daemon(pod) else must_end(pod, now_ns())
            if why is None:
                left += tracked.damaged
                continue
            try:
                left += not self._actuator.resume(tracked, why[1], why[0], wait_s=wait_s)
            except CgroupGoneError:
                continue
            except BusyError as e:
                log.error("could not resume %s", fields(pod=tracked.pod.label, error=e))
                left += 1
        # memory.high comes last: meanwhile it keeps the resumed pods from filling the node at once.
        with self._actuator.spare.lent():
            return left + (not self._brake.release(reason, wait_s=wait_s))

    def _shut_down(self, *, failed: bool) -> int:
        log.info("stopping")
        self._notifier.send("STOPPING=1")
        left = self._resume_all("cgpause stops", Result.STOPPED, wait_s=ledger.LOCK_WAIT_S)
        self._loop.publisher.close()  # before the unlock: this removes the file, and the next daemon may publish
        # Unlock before anything waits for a disk: a disk that hangs keeps this process and would block the next daemon.
        self._root.unlock_for_daemon()
        # Wait for disks only now, after the daemon's pauses have ended.
        if not failed:
            self._loop.saver.save(self._loop.state.reserve.growths.peaks.known, self._tree.classifier.kinds)
        if self._history is not None:
            self._history.close()
        records = [tracked.pod.paused for tracked in self._tree.pods.values()]
        by_hand = sum(record is not None and record.owner is Owner.MANUAL for record in records)
        log.info("stopped %s", fields(not_resumed=left, paused_by_hand=by_hand))
        return left


def is_outdated(paused: PauseRecord, config: Config) -> bool:
    """Return True if the daemon made a pause, and would make it in another way, or with another quota, by `config`."""
    if paused.owner is not Owner.DAEMON:
        return False
    is_frozen = paused.mechanism is Mechanism.FREEZE
    if config.mechanism is HowPaused.FREEZE:
        return not is_frozen
    # `auto` freezes only a pod that it has throttled.
    quota_differs = paused.written != tighter(config.throttle.cpu_max, paused.original)
    return quota_differs or (is_frozen and not config.mechanism.freezes)


def main(argv: list[str] | None = None) -> int:
    """Run the daemon and return its exit code.

    It is 0 after a stop, 1 after a failure, on a host that cannot run the daemon or if the configuration could not be
    read, 2 for a bad or absent configuration, and 6 if something was not restored.
    """
    options = parse_options(argv)
    logfmt.set_up(verbose=options.verbose)
    try:
        daemon = Daemon(options)
    except ConfigError as e:
        for line in str(e).splitlines():
            log.error("%s", line)
        # systemd does not start the daemon again after USAGE.
        return Exit.CHECK_FAILED if isinstance(e, ConfigUnreadableError) else Exit.USAGE
    except HostError as e:
        log.error("%s", e)
        return Exit.CHECK_FAILED
    return daemon.run()
