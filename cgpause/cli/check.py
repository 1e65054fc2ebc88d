"""`cgpause check`: tests of kernel, cgroups and unit that show whether this node can run cgpause."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum

import psutil
import typer
from rich.text import Text

from cgpause.cli.context import Globals
from cgpause.cli.exits import exits
from cgpause.cli.output import console, print_json
from cgpause.config.settings import Config
from cgpause.core.errors import CgpauseError, Exit, HostError, printable
from cgpause.kernel.cgroupfs import Cgroup, find_cgroup_root, read_controllers
from cgpause.kernel.journal import UNIT
from cgpause.kernel.psi import NODE_PRESSURE
from cgpause.pods.tree import PodTree

_OLDEST_KERNEL = (5, 14)
"""First kernel with cgroup.kill (commit 661ee6280931) and cpu.max.burst (f4183717b370); user.* xattrs on cgroups need
5.7 ("cgroupfs: Support user xattrs"), cgroup.freeze 5.2 (76f969e8948d)."""
_DEFERRED_THROTTLE_KERNEL = (6, 18)
"""First kernel that throttles a task on its return to user space (sched/fair: Switch to task based throttle model)."""
_PAGE_BYTES = 4096
"""The page size of every kernel on which the policy was measured."""
_OTHER_WRITERS = ("koordlet", "crane-agent", "katalyst-agent")
_PROBE_XATTR = "user.cgpause_check"
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


class Level(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `advice` is the operator's next step, or a note."""

    name: str
    level: Level
    message: str
    advice: str | None = None


def show(given: Globals, *, as_json: bool) -> None:
    """Print the findings of all checks; exit with CHECK_FAILED if one failed."""
    with exits():
        findings = run_checks(given.cgroup_root, given.log_dir, given.config())
    if as_json:
        print_json({"schema": 1, "checks": [asdict(finding) for finding in findings]})
    else:
        print_findings(findings)
    if any(finding.level is Level.FAIL for finding in findings):
        raise typer.Exit(Exit.CHECK_FAILED)


def print_findings(findings: list[Finding]) -> None:
    """Print one line per check, and its advice on the next."""
    to = console()
    for finding in findings:
        level = f"{finding.level:<5}", _STYLES[finding.level]
        to.print(Text.assemble(level, f"{finding.name:<12}", printable(finding.message)), soft_wrap=True)
        if finding.advice is not None:
            to.print(Text(f"{'':17}-> {printable(finding.advice)}"), soft_wrap=True)


def run_checks(root: str | None, log_dir: str, config: Config) -> list[Finding]:
    """Return the finding of each check, and raise no error. It briefly locks kubepods and sets an xattr on it."""
    findings = [_kernel(), _permissions()]
    try:
        root = root or find_cgroup_root()
    except HostError as e:
        advice = "boot with cgroup v2 only, or name a tree with --cgroup-root"
        return [*findings, Finding("cgroup", Level.FAIL, str(e), advice), _psi(), _swap(), _unit()]
    findings += [_controllers(root), _psi()]
    with contextlib.closing(PodTree(root, log_dir, config)) as tree:
        try:
            tree.refresh(0)
            findings += list(_kubepods(tree, log_dir, config))
        except CgpauseError as e:
            advice = "run as root, and name the cgroup v2 mount with --cgroup-root"
            findings.append(Finding("kubepods", Level.FAIL, str(e), advice))
        return [*findings, _swap(), _processes(tree), _other_writers(), _unit()]


def _kernel() -> Finding:
    release = platform.release()
    match = re.match(r"(\d+)\.(\d+)", release)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version < _OLDEST_KERNEL:
        return Finding("kernel", Level.FAIL, f"{release} is older than 5.14", "upgrade: cgroup.kill is missing")
    if os.sysconf("SC_PAGE_SIZE") != _PAGE_BYTES:
        advice = "the policy was measured with pages of 4 KiB only: try it on one node first"
        return Finding("kernel", Level.WARN, f"{release} has pages of {os.sysconf('SC_PAGE_SIZE') >> 10} KiB", advice)
    if version < _DEFERRED_THROTTLE_KERNEL:
        advice = (
            "before 6.18 a throttled task may stop inside the kernel with a lock held, for longer the smaller the quota"
        )
        return Finding("kernel", Level.OK, f"{release} ({advice})")
    return Finding("kernel", Level.OK, release)


def _permissions() -> Finding:
    if os.geteuid() == 0:
        return Finding("permissions", Level.OK, "running as root")
    return Finding("permissions", Level.WARN, f"running as uid {os.geteuid()}", "run as root to pause and resume")


def _controllers(root: str) -> Finding:
    controllers = read_controllers(root)
    missing = [name for name in ("cpu", "memory") if name not in controllers]
    if not os.path.isdir(root):
        advice = "name the cgroup v2 mount with --cgroup-root"
        return Finding("cgroup", Level.FAIL, f"{root} is not a directory", advice)
    if missing:
        advice = "boot with systemd.unified_cgroup_hierarchy=1; name the right tree with --cgroup-root"
        return Finding("cgroup", Level.FAIL, f"{root} lacks the controllers {', '.join(missing)}", advice)
    return Finding("cgroup", Level.OK, f"cgroup v2 at {root} with {', '.join(controllers)}")


def _psi() -> Finding:
    try:
        with open(NODE_PRESSURE, "rb") as file:
            file.read(1)
    except OSError as e:
        advice = "boot with psi=1; until then cgpause works from headroom alone"
        return Finding("psi", Level.WARN, f"{NODE_PRESSURE}: {e.strerror}", advice)
    return Finding("psi", Level.OK, f"{NODE_PRESSURE} is there")


def _kubepods(tree: PodTree, log_dir: str, config: Config) -> Iterator[Finding]:
    kubepods = tree.kubepods
    if kubepods is None:
        advice = "start kubelet, or name the tree that holds kubepods with --cgroup-root; the daemon waits for it"
        yield Finding("kubepods", Level.WARN, f"no kubepods cgroup below {tree.root}", advice)
        return
    yield Finding("kubepods", Level.OK, f"{kubepods.path} ({tree.driver} driver), {len(tree.pods)} pods")
    try:
        kubepods.set_xattr(_PROBE_XATTR, b"1")
        kubepods.remove_xattr(_PROBE_XATTR)
        yield Finding("xattr", Level.OK, "user.* extended attributes work")
    except CgpauseError as e:
        advice = "the record of a pause cannot be written: run as root, on kernel 5.7 or later"
        yield Finding("xattr", Level.FAIL, str(e), advice)
    try:
        with kubepods.locked(wait_s=1):
            yield Finding("flock", Level.OK, "cgroups can be locked")
    except CgpauseError as e:
        yield Finding("flock", Level.FAIL, str(e), "see who holds it: fuser -v on its cgroup.kill")
    unnamed = sum(tracked.pod.name is None for tracked in tree.pods.values())
    if unnamed:
        advice = (
            "point --log-dir at the parent of the kubelet's pods/ and containers/ folders; "
            "if kubelet has podLogsDir, at a folder with a link pods to that, and containers to /var/log/containers"
        )
        yield Finding("names", Level.WARN, f"{unnamed} pods have no name in {log_dir}/pods", advice)
    else:
        yield Finding("names", Level.OK, f"all pods have names in {log_dir}/pods")
    yield _memory_high(kubepods, config)


def _memory_high(kubepods: Cgroup, config: Config) -> Finding:
    if not config.memory_high.enabled:
        return Finding("memory.high", Level.OK, "left alone: memory_high.enabled is false")
    try:
        os.close(kubepods.open("memory.high", os.O_WRONLY))
        now = kubepods.read("memory.high").decode("ascii", "replace").strip()
    except CgpauseError as e:
        advice = "cgpause works without: it samples more often, and bursts have no brake"
        return Finding("memory.high", Level.WARN, str(e), advice)
    return Finding("memory.high", Level.OK, f"memory.high of kubepods can be written (now {now})")


def _swap() -> Finding:
    try:
        total = psutil.swap_memory().total
    except (OSError, psutil.Error, RuntimeError) as e:
        return Finding("swap", Level.WARN, f"cannot be told: {e}", "look at it by hand: swapon --show")
    if total:
        advice = "cgpause works, but does not count swap as headroom"
        return Finding("swap", Level.WARN, f"{total // 2**20}Mi of swap are on", advice)
    return Finding("swap", Level.OK, "off")


def _has_processes_without_ids(tree: PodTree) -> bool:
    """Whether a pod has a process outside our PID namespace, which `cgroup.procs` lists as 0."""
    for tracked in tree.pods.values():
        with contextlib.suppress(CgpauseError):
            if any(0 in tracked.cgroup.pids(name) for name in ("", *tracked.cgroup.descendants())):
                return True
    return False


def _processes(tree: PodTree) -> Finding:
    """Check that pods' processes can be seen; with hidepid=, assume that the daemon has CAP_SYS_PTRACE."""
    if _has_processes_without_ids(tree):
        told = "processes of pods have no ids in the PID namespace this runs in"
        advice = "every pod counts as a service then; in a container: hostPID: true (docs/deploy/base/daemonset.yaml)"
        return Finding("proc", Level.WARN, told, advice)
    try:
        found = [part.opts.split(",") for part in psutil.disk_partitions(all=True) if part.mountpoint == "/proc"]
    except (OSError, psutil.Error) as e:
        return Finding("proc", Level.WARN, f"mounts cannot be listed: {e}", "look at it by hand: findmnt /proc")
    options = dict(option.partition("=")[::2] for option in (found[-1] if found else []))
    hidden = options.get("hidepid", "off")
    if hidden in ("off", "0"):
        return Finding("proc", Level.OK, "processes of pods can be seen")
    advice = "the daemon needs CAP_SYS_PTRACE to see processes; its unit and the DaemonSet grant it, so leave it there"
    return Finding("proc", Level.OK, f"/proc is mounted with hidepid={hidden}", advice)


def _other_writers() -> Finding:
    try:
        names = {str(process.info["name"]) for process in psutil.process_iter(["name"])}
    except (OSError, psutil.Error) as e:
        return Finding("writers", Level.WARN, f"processes cannot be listed: {e}", "run as root")
    found = sorted(names & set(_OTHER_WRITERS))
    if found:
        advice = "it writes cpu.max too; switch its CPU suppression off, or protect the pods it manages"
        return Finding("writers", Level.WARN, f"{', '.join(found)} runs here", advice)
    return Finding("writers", Level.OK, "no other known writer of cpu.max")


def _unit() -> Finding:
    try:
        shown = subprocess.run(
            ["systemctl", "show", "--property=LoadState,ActiveState,SubState", UNIT],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,
            check=False,
        ).stdout
    except (OSError, subprocess.SubprocessError) as e:
        advice = "the daemon can be run by hand: cgpause run"
        return Finding("unit", Level.WARN, f"systemctl cannot be run: {e}", advice)
    values = dict(line.partition("=")[::2] for line in shown.splitlines())
    if values.get("LoadState") != "loaded":
        advice = "install it: scripts/install, or the Debian package"
        return Finding("unit", Level.WARN, f"{UNIT} is not installed", advice)
    state = f"{values.get('ActiveState')} ({values.get('SubState')})"
    if values.get("ActiveState") in ("active", "reloading"):
        return Finding("unit", Level.OK, f"{UNIT} is {state}")
    return Finding("unit", Level.WARN, f"{UNIT} is {state}", "start it: systemctl enable --now cgpause")
