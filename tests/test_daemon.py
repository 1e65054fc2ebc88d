"""The daemon as a process, on ordinary directory trees: what needs no kernel. tests/vm has the same on a real one."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trees import FakeTree, make_uid, records_left, rewrite, wait_until

from cgpause import account, history, published
from cgpause.cgroupfs import Cgroup
from cgpause.clock import now_ns
from cgpause.errors import HostError
from cgpause.ledger import PauseRequest, pause, resume, take_over
from cgpause.model import CpuMax, Mechanism, Owner
from cgpause.published import PublishedError

MIB, GIB = 1 << 20, 1 << 30
S = 1_000_000_000
HIGH = int(0.95 * GIB)
PAUSED = "1001 100000\n"
QUICK = 'policy = "watermark"\n' + "[sampling]\nfast_ms = 10\n[watermark]\ninterval_s = 0.1\npatience = 1\n"
NO_SACRIFICE = QUICK + "sacrifice = false\n"


class Running:
    """A daemon process with its log."""

    def __init__(
        self, tree: FakeTree, config: str, *options: str, descriptors: int | None = None, before: str = ""
    ) -> None:
        self.tree = tree
        self.config = tree.folder / "config.toml"
        self.config.write_text(config)
        self.log_path = tree.folder / "daemon.log"
        program = f"import sys; from cgpause import daemon; {before}; sys.exit(daemon.main())"
        command = [sys.executable, *(("-c", program) if before else ("-m", "cgpause.daemon"))]
        command += ["--config", str(self.config), "--verbose", *options]
        command += ["--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir)]
        if descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)

    @property
    def log(self) -> str:
        text: str = self.log_path.read_text()
        return text

    def wait_for_log(self, text: str) -> None:
        wait_until(lambda: text in self.log or self.process.poll() is not None, f"{text!r} in the log")
        assert text in self.log, self.log

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def tree(tmp_path: Path) -> FakeTree:
    return FakeTree(tmp_path)


@pytest.fixture
def start(tree: FakeTree) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start_one(config: str = NO_SACRIFICE, *options: str, before: str = "") -> Running:
        daemon = Running(tree, config, *options, before=before)
        running.append(daemon)
        daemon.wait_for_log("started ")
        return daemon

    yield start_one
    for daemon in running:
        daemon.process.kill()
        daemon.process.wait()
        assert "Traceback" not in daemon.log


Start = Callable[..., Running]


def cpu_max(pod: Path) -> str:
    return (pod / "cpu.max").read_text()


@pytest.mark.parametrize(("named", "said"), [("web", "own_pod=default/web"), (None, "own pod not found")])
def test_it_says_which_pod_is_its_own(tree: FakeTree, start: Start, named: str | None, said: str) -> None:
    tree.add_pod("web")
    uid = tree.uids[named] if named else make_uid(99)

    daemon = start(before=f"import os; os.environ['CGPAUSE_POD_UID'] = '{uid}'")

    assert said in daemon.log


def test_pods_are_paused_in_ascending_order_and_restored_to_their_own_values(tree: FakeTree, start: Start) -> None:
    large = tree.add_pod("large", 300 << 20)
    small = tree.add_pod("small", 100 << 20, cpu_max="50000 100000")
    middle = tree.add_pod("middle", 200 << 20, cpu_max="200000 50000")
    daemon = start()

    tree.set_used(HIGH)
    daemon.wait_for_log(" paused pod=default/large")  # said once it is done, after the write
    assert cpu_max(large) == PAUSED

    paused = [line.split("pod=")[1].split()[0] for line in daemon.log.splitlines() if " paused pod=" in line]
    assert paused == ["default/small", "default/middle", "default/large"]
    tree.set_used(0)
    wait_until(lambda: not records_left(tree.root), "all pods to be resumed")
    assert [cpu_max(small), cpu_max(middle), cpu_max(large)] == ["50000 100000\n", "200000 50000\n", "max 100000\n"]


def test_page_cache_is_no_reason_to_pause(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    tree.set_used(int(0.1 * GIB), reclaimable_bytes=int(0.9 * GIB))
    daemon = start()

    # Two walks' worth of decisions, provoked by pods that come and go.
    for number in range(3):
        other = tree.add_pod(f"other-{number}")
        daemon.wait_for_log(f"pod appeared pod=default/other-{number}")
        assert other.exists()

    assert cpu_max(pod) == "max 100000\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "sigint"])
def test_stopping_resumes_what_the_daemon_paused_and_exits_0(
    tree: FakeTree, start: Start, number: signal.Signals
) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    tree.set_used(HIGH)
    daemon = start()
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause")

    assert daemon.stop(number) == 0

    assert cpu_max(pod) == "50000 100000\n"
    assert records_left(tree.root) == []
    assert daemon.log.endswith("stopped not_resumed=0 paused_by_hand=0\n")


def test_a_manual_pause_outlives_the_daemon(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    hold(tree, pod, Owner.MANUAL)
    daemon = start()

    assert daemon.stop() == 0

    assert cpu_max(pod) == PAUSED
    assert records_left(tree.root) == [pod]
    assert daemon.log.endswith("stopped not_resumed=0 paused_by_hand=1\n")


def test_the_daemons_pause_is_taken_over_by_hand_and_outlives_its_reason_and_the_daemon(
    tree: FakeTree, start: Start
) -> None:
    pods = {name: tree.add_pod(name, cpu_max="50000 100000") for name in ("kept", "back")}
    tree.set_used(HIGH)
    daemon = start()
    for pod in pods.values():
        wait_until(lambda pod=pod: cpu_max(pod) == PAUSED, "the pause")  # type: ignore[misc]
    request = PauseRequest(Mechanism.THROTTLE, CpuMax(1001, 100_000), Owner.MANUAL, "by hand", now_ns())
    with Cgroup(str(tree.root), str(pods["kept"].relative_to(tree.root))) as cgroup:
        assert take_over(cgroup, request) is not None

    tree.set_used(0)
    wait_until(lambda: cpu_max(pods["back"]) == "50000 100000\n", "the daemon to resume what it holds")
    tree.add_pod("new")
    daemon.wait_for_log("pod appeared pod=default/new")
    assert cpu_max(pods["kept"]) == PAUSED
    assert daemon.stop() == 0

    assert records_left(tree.root) == [pods["kept"]]
    assert daemon.log.endswith("stopped not_resumed=0 paused_by_hand=1\n")
    with Cgroup(str(tree.root), str(pods["kept"].relative_to(tree.root))) as cgroup:
        resumed = resume(cgroup)
    assert resumed is not None
    assert cpu_max(pods["kept"]) == "50000 100000\n"


def test_what_is_taken_over_for_a_time_ends_with_it(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    tree.set_used(HIGH)
    daemon = start()
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause")
    at_ns = now_ns()
    request = PauseRequest(Mechanism.THROTTLE, CpuMax(1001, 100_000), Owner.MANUAL, "by hand", at_ns, at_ns + S)
    with Cgroup(str(tree.root), str(pod.relative_to(tree.root))) as cgroup:
        assert take_over(cgroup, request) is not None

    tree.set_used(0)
    daemon.wait_for_log(" resumed pod=default/web")
    assert now_ns() >= at_ns + S
    assert "owner=manual" in next(line for line in daemon.log.splitlines() if " resumed pod=" in line)
    assert cpu_max(pod) == "50000 100000\n"


def test_a_manual_pause_ends_when_its_time_is_over(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    start()

    hold(tree, pod, Owner.MANUAL, expires_ns=now_ns() + 1_000_000_000)

    wait_until(lambda: not records_left(tree.root), "the pause to expire")
    assert cpu_max(pod) == "50000 100000\n"


def test_what_a_predecessor_left_paused_is_resumed_when_memory_allows(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    hold(tree, pod, Owner.DAEMON)

    daemon = start()

    wait_until(lambda: not records_left(tree.root), "the adopted pause to end")
    assert "adopted pod=default/web" in daemon.log
    assert cpu_max(pod) == "50000 100000\n"


def test_nobody_is_held_longer_than_allowed_however_full_the_node_stays(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE + "[hold]\nmax_pause_s = 1.5\nmin_run_s = 3600\n")
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause")

    daemon.wait_for_log("held for the longest time allowed (1.5 s)")

    wait_until(lambda: cpu_max(pod) == "max 100000\n", "the restore")


def test_protected_pods_are_left_alone(tree: FakeTree, start: Start) -> None:
    system = tree.add_pod("dns", 1, namespace="kube-system")
    guaranteed = tree.add_pod("db", 1, tier="")
    unnamed = tree.add_pod("unnamed", 1, log=False)
    static = tree.add_pod("static", 1, static=True)
    marked = tree.add_pod("marked", 1)
    os.setxattr(marked, "user.oomd_omit", b"1")
    pausable = tree.add_pod("pausable", 1 << 30)
    tree.set_used(HIGH)
    start()

    wait_until(lambda: cpu_max(pausable) == PAUSED, "the one pod that may be paused")

    assert records_left(tree.root) == [pausable]
    assert {cpu_max(pod) for pod in (system, guaranteed, unnamed, static, marked)} == {"max 100000\n"}


def test_one_pod_that_cannot_be_paused_does_not_stop_the_others(tree: FakeTree, start: Start) -> None:
    bad = tree.add_pod("bad", 1)
    (bad / "cpu.max").write_text("garbage\n")
    blind = tree.add_pod("blind", 2)
    (blind / "memory.current").write_text("garbage\n")
    good = tree.add_pod("good", 3)
    tree.set_used(HIGH)
    daemon = start()

    wait_until(lambda: cpu_max(good) == PAUSED, "the good pod's pause")

    assert daemon.log.count("could not pause pod=default/bad") == 1
    assert records_left(tree.root) == [good]


def test_memory_that_cannot_be_read_ends_all_pauses(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    tree.set_used(HIGH)
    daemon = start()
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause")

    (tree.kubepods / "memory.stat").write_text("garbage\n")

    daemon.wait_for_log("memory cannot be read: pausing nobody")
    wait_until(lambda: not records_left(tree.root), "the resume")
    tree.set_used(0)
    daemon.wait_for_log("memory can be read again")


def test_a_node_without_kubepods_is_waited_for(tree: FakeTree, start: Start) -> None:
    hidden = tree.folder / "hidden"
    tree.kubepods.rename(hidden)
    daemon = start()
    assert 'driver="none yet"' in daemon.log

    hidden.rename(tree.kubepods)
    pod = tree.add_pod("web")
    tree.set_used(HIGH)

    wait_until(lambda: cpu_max(pod) == PAUSED, "a pause in the tree that appeared")


def test_a_tree_that_vanishes_and_comes_back_is_followed(tree: FakeTree, start: Start) -> None:
    tree.add_pod("first")
    daemon = start()
    hidden = tree.folder / "hidden"
    tree.kubepods.rename(hidden)
    daemon.wait_for_log("pod gone pod=default/first")

    tree.kubepods.mkdir()
    for name in ("cgroup.events", "memory.max", "memory.stat", "memory.current"):
        (tree.kubepods / name).write_bytes((hidden / name).read_bytes())
    (tree.kubepods / "kubepods-burstable.slice").mkdir()
    second = tree.add_pod("second")
    tree.set_used(HIGH)

    wait_until(lambda: cpu_max(second) == PAUSED, "a pause in the new tree")


def test_of_two_trees_the_one_that_comes_into_use_is_found(tree: FakeTree, start: Start) -> None:
    """Nothing tells of it: only the tree that is in use is watched."""
    other = tree.root / "kubepods"
    shutil.copytree(tree.kubepods, other)
    for tier in ("burstable", "besteffort"):
        (other / f"kubepods-{tier}.slice").rename(other / tier)
    elsewhere = FakeTree(tree.folder / "elsewhere")
    pod = elsewhere.add_pod("web")
    daemon = start(before=f"from cgpause import walks; walks.WALK_NS = {S // 2}")

    pod.rename(other / "burstable" / f"pod{elsewhere.uids['web']}")

    daemon.wait_for_log(f"pod appeared pod={elsewhere.uids['web']}")


def test_new_pods_are_left_alone_until_they_have_settled(tree: FakeTree, start: Start) -> None:
    old = tree.add_pod("old", 2)
    daemon = start(NO_SACRIFICE + "[hold]\nsettle_s = 3600\n")
    new = tree.add_pod("new", 1)
    daemon.wait_for_log("pod appeared pod=default/new")

    tree.set_used(HIGH)
    wait_until(lambda: cpu_max(old) == PAUSED, "the old pod's pause")

    assert cpu_max(new) == "max 100000\n"


def test_facts_are_read_again_as_soon_as_memory_is_close(tree: FakeTree, start: Start) -> None:
    first = tree.add_pod("large", GIB // 2)
    pod = tree.add_pod("resized", 32 * MIB, memory_max=str(32 * MIB))  # full: it may take no more
    start('[[pods]]\nmatch = "*/*"\nclass = "batch"\n', before=f"from cgpause import walks; walks.WALK_NS = {S // 2}")
    time.sleep(1)  # older than the facts may be now, and the daemon does not walk again for ten minutes
    rewrite(pod / "memory.max", f"{GIB}\n")
    tree.set_used(HIGH)

    def grown_and_paused() -> bool:
        for path in (first, pod):
            current = int((path / "memory.current").read_text())
            rewrite(path / "memory.current", f"{min(current + 8 * MIB, GIB):020}\n")
        return cpu_max(pod) == PAUSED

    wait_until(grown_and_paused, "a pause of what may grow now")


def test_a_container_that_starts_in_a_paused_pod_ends_the_pause(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    tree.set_used(HIGH)
    daemon = start()
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause")

    (pod / f"cri-containerd-{'c' * 64}.scope").mkdir()

    daemon.wait_for_log('reason="its containers changed"')
    assert cpu_max(pod) == "max 100000\n"


def test_an_oom_kill_in_a_paused_pod_ends_the_pause(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    tree.set_used(HIGH)
    daemon = start()
    daemon.wait_for_log("paused pod=default/web")

    (pod / "memory.events").write_text("oom 1\noom_kill 1\n")

    daemon.wait_for_log('reason="a process in it was OOM-killed"')


@pytest.mark.parametrize(
    ("foreign", "held_at"),
    [
        pytest.param("max 100000\n", PAUSED, id="original-again"),
        pytest.param("70000 100000\n", PAUSED, id="resized"),
        pytest.param("1000 100000\n", "1000 100000\n", id="resized-to-10m-which-is-less-than-a-pause-leaves"),
    ],
)
def test_a_foreign_write_is_answered_and_its_value_restored(
    tree: FakeTree, start: Start, foreign: str, held_at: str
) -> None:
    pod = tree.add_pod("web")
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE + "[hold]\nmax_pause_s = 3600\n")
    daemon.wait_for_log("paused pod=default/web")

    (pod / "cpu.max").write_text(foreign)
    daemon.wait_for_log("asserted again pod=default/web")
    wait_until(lambda: cpu_max(pod) == held_at, "the pause to be asserted again")

    assert daemon.stop() == 0
    assert cpu_max(pod) == foreign


def test_a_second_controller_that_never_stops_gets_the_pod(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE + "[hold]\nmax_pause_s = 3600\n")
    daemon.wait_for_log("paused pod=default/web")

    def write_again() -> bool:
        (pod / "cpu.max").write_text("max 100000\n")
        return "another writer keeps changing cpu.max" in daemon.log

    wait_until(write_again, "the daemon to give in")
    wait_until(lambda: not records_left(tree.root), "the record to be removed")


def test_an_operators_resume_lets_the_pod_run(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    other = tree.add_pod("other", 2 << 20)
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE + "[hold]\nmin_run_s = 3600\n")
    wait_until(lambda: cpu_max(other) == PAUSED and cpu_max(pod) == PAUSED, "both pauses")

    command = [sys.executable, "-m", "cgpause", "--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir)]
    subprocess.run([*command, "resume", "default/web"], check=True, capture_output=True)

    tree.set_used(HIGH + 1)
    tree.add_pod("witness")
    daemon.wait_for_log("pod appeared pod=default/witness")
    assert daemon.log.count(" paused pod=default/web") == 1
    assert cpu_max(pod) == "max 100000\n"


def test_reload_takes_a_good_file_and_keeps_the_old_one_for_a_bad_one(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    tree.set_used(int(0.7 * GIB))
    daemon = start()

    daemon.config.write_text("[watermark]\nupper_pct = 60\nlower_pct = 70\nbatch = 0\n")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for_log("configuration not reloaded, the old one stays")
    assert f"{daemon.config}:4: watermark.batch" in daemon.log
    assert cpu_max(pod) == "max 100000\n"

    daemon.config.write_text('policy = "watermark"\n[watermark]\nupper_pct = 60\nlower_pct = 50\n')
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for_log("configuration reloaded")
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause the new file asks for")


def test_dry_run_decides_and_writes_nothing(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    tree.set_used(HIGH)

    daemon = start(NO_SACRIFICE, "--dry-run")

    daemon.wait_for_log("would have paused pod=default/web")
    assert cpu_max(pod) == "max 100000\n"
    assert records_left(tree.root) == []
    tree.set_used(0)
    daemon.wait_for_log("would have resumed pod=default/web")
    assert daemon.log.count("would have paused") == 1


def test_everything_paused_and_no_better_sacrifices_the_last_paused_but_not_its_sandbox(
    tree: FakeTree, start: Start
) -> None:
    tree.add_pod("small", 100 << 20)
    last = tree.add_pod("last", 200 << 20)
    tree.set_used(HIGH)

    daemon = start(QUICK + "batch = 1\n[hold]\nmax_pause_s = 3600\n")

    daemon.wait_for_log("sacrificed pod=default/last")
    killed = sorted((path / "cgroup.kill").read_text() for path in last.glob("*.scope"))
    assert killed == ["", "1\n"]


@pytest.mark.parametrize(
    ("config", "code", "message"),
    [
        pytest.param("", 0, "started", id="an-empty-file"),
        pytest.param("[watermark]\nupper_pct = 'x'\n", 2, "watermark.upper_pct", id="wrong-type"),
        pytest.param("[[[", 2, "config.toml:1", id="no-toml"),
    ],
)
def test_the_configuration_decides_whether_it_starts(tree: FakeTree, config: str, code: int, message: str) -> None:
    daemon = Running(tree, config)
    daemon.wait_for_log(message)

    assert (daemon.stop() if code == 0 else daemon.process.wait(60)) == code


def test_a_cgroup_root_that_is_missing_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cgpause.daemon", "--cgroup-root", str(tmp_path / "none")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert str(tmp_path / "none") in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def braked(tree: FakeTree) -> Path:
    """memory.high of a tree that has one, as real ones do."""
    path = tree.kubepods / "memory.high"
    path.write_text("max\n")
    return path


def is_braked(path: Path) -> bool:
    return path.read_text() not in ("max\n", "") and "user.cgpause.high" in os.listxattr(path.parent)


def is_released(path: Path) -> bool:
    return path.read_text() == "max\n" and "user.cgpause.high" not in os.listxattr(path.parent)


def test_memory_high_is_set_while_it_runs(tree: FakeTree, braked: Path, start: Start) -> None:
    tree.add_pod("web")
    daemon = start()
    daemon.wait_for_log("armed memory.high cgroup=kubepods.slice")
    tripwire = int(braked.read_text())

    tree.set_used(HIGH)
    daemon.wait_for_log("level=airbag")
    wait_until(lambda: int(braked.read_text() or 0) > tripwire, "the airbag")

    assert is_braked(braked)
    assert daemon.stop() == 0
    assert is_released(braked)


def test_memory_high_that_somebody_writes_is_asserted_again(tree: FakeTree, braked: Path, start: Start) -> None:
    daemon = start()
    daemon.wait_for_log("armed memory.high")

    braked.write_text("max\n")

    daemon.wait_for_log("asserted again cgroup=kubepods.slice memory_high_from=max")
    wait_until(lambda: is_braked(braked), "the level to be back")
    assert daemon.stop() == 0
    assert is_released(braked)


def test_memory_that_cannot_be_read_releases_memory_high(tree: FakeTree, braked: Path, start: Start) -> None:
    daemon = start()
    daemon.wait_for_log("armed memory.high")

    (tree.kubepods / "memory.stat").write_text("garbage\n")

    daemon.wait_for_log('released memory.high cgroup=kubepods.slice memory_high_to=max reason="memory cannot be read"')
    assert is_released(braked)
    tree.set_used(0)
    wait_until(lambda: is_braked(braked), "memory.high to be set again")


def test_switching_memory_high_off_puts_the_original_back(tree: FakeTree, braked: Path, start: Start) -> None:
    daemon = start()
    daemon.wait_for_log("armed memory.high")

    daemon.config.write_text("[memory_high]\nenabled = false\n")
    daemon.process.send_signal(signal.SIGHUP)

    daemon.wait_for_log('released memory.high cgroup=kubepods.slice memory_high_to=max reason="switched off"')
    assert is_released(braked)


def test_memory_high_that_cannot_be_put_back_is_an_exit_code(tree: FakeTree, braked: Path, start: Start) -> None:
    daemon = start()
    daemon.wait_for_log("armed memory.high")
    with (tree.kubepods / "cgroup.kill").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert daemon.stop() == 6
    assert "could not release memory.high" in daemon.log


def test_a_damaged_record_of_memory_high_does_not_keep_it_in_force(tree: FakeTree, braked: Path, start: Start) -> None:
    daemon = start()
    daemon.wait_for_log("armed memory.high")
    os.setxattr(tree.kubepods, "user.cgpause.high", b"rubbish")

    assert daemon.stop() == 0
    assert is_released(braked)


def test_dry_run_leaves_memory_high_alone(tree: FakeTree, braked: Path, start: Start) -> None:
    daemon = start(NO_SACRIFICE, "--dry-run")

    daemon.wait_for_log("would have set memory.high cgroup=kubepods.slice")

    assert daemon.stop() == 0
    assert is_released(braked)


def hold(tree: FakeTree, pod: Path, owner: Owner, expires_ns: int | None = None) -> None:
    """Pause a pod as a predecessor or an operator would."""
    request = PauseRequest(Mechanism.THROTTLE, CpuMax(1001, 100_000), owner, "a test", now_ns(), expires_ns)
    with Cgroup(str(tree.root), str(pod.relative_to(tree.root))) as cgroup:
        pause(cgroup, request)


def test_an_operators_mark_protects_a_pod_at_once(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE + "[hold]\nmax_pause_s = 3600\n")
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause")

    os.setxattr(pod, "user.oomd_omit", b"1")

    daemon.wait_for_log('reason="now protected: xattr user.oomd_omit is set on its cgroup"')
    assert cpu_max(pod) == "50000 100000\n"


def test_a_paused_pod_whose_memory_cannot_be_read_is_resumed(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE + "[hold]\nmax_pause_s = 3600\n")
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause")

    (pod / "memory.current").write_text("garbage\n")

    daemon.wait_for_log('reason="its memory.current cannot be read"')
    assert cpu_max(pod) == "max 100000\n"


def test_a_pod_resumed_in_distress_is_not_paused_again_at_once(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE + "[hold]\nmax_pause_s = 3600\nmin_run_s = 3600\n")
    daemon.wait_for_log("paused pod=default/web")

    (pod / "memory.events").write_text("oom 1\noom_kill 1\n")
    daemon.wait_for_log('reason="a process in it was OOM-killed"')

    # A pod that appears makes the daemon walk and decide again.
    tree.add_pod("witness")
    daemon.wait_for_log("pod appeared pod=default/witness")
    assert daemon.log.count(" paused pod=default/web") == 1
    assert cpu_max(pod) == "max 100000\n"


def test_running_out_of_descriptors_leaves_nobody_paused(tree: FakeTree) -> None:
    pods = [tree.add_pod(f"web-{number}") for number in range(4)]
    tree.set_used(HIGH)
    daemon = Running(tree, NO_SACRIFICE + "batch = 10\n", descriptors=60)
    daemon.wait_for_log("paused pod=default/web-3")

    for number in range(60):
        tree.add_pod(f"more-{number}")
    daemon.wait_for_log("Too many open files")

    assert daemon.stop() == 0
    assert {cpu_max(pod) for pod in pods} == {"max 100000\n"}
    assert records_left(tree.root) == []


def test_a_damaged_record_that_nobody_can_replace_is_not_called_resumed(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    os.setxattr(pod, "user.cgpause", b'{"schema": 2}')
    daemon = start()

    assert daemon.stop() == 6
    assert daemon.log.count("could not resume pod=default/web") == 1


# --- history ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def state(tree: FakeTree) -> Path:
    folder = tree.folder / "state"
    folder.mkdir()
    return folder


def noted(state: Path) -> list[tuple[str, str, str | None]]:
    found = history.read(history.path_in(str(state)))
    return [(event.what, event.pod, event.result) for event in found]


def test_the_history_goes_on_over_a_daemon_that_was_killed(tree: FakeTree, start: Start, state: Path) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    tree.set_used(HIGH)
    first = start(NO_SACRIFICE, "--state-dir", str(state))
    wait_until(lambda: len(noted(state)) == 1, "the pause to be noted")
    first.stop(signal.SIGKILL)
    assert cpu_max(pod) == PAUSED
    tree.set_used(0)

    start(NO_SACRIFICE, "--state-dir", str(state))
    wait_until(lambda: len(noted(state)) == 2, "the end to be noted")

    what = [("paused", None), ("resumed", "room")]
    assert noted(state) == [(word, "default/web", result) for word, result in what]
    (pause_found,) = account.pauses(history.read(history.path_in(str(state))))
    assert pause_found.held_s is not None
    assert pause_found.held_s >= 0


def test_daemons_that_start_again_and_again_add_nothing_to_the_history(
    tree: FakeTree, start: Start, state: Path
) -> None:
    pod = tree.add_pod("web")
    with Cgroup(str(tree.root), str(pod.relative_to(tree.root))) as cgroup:
        pause(cgroup, PauseRequest(Mechanism.THROTTLE, CpuMax(1001, 100_000), Owner.MANUAL, "test", now_ns()))
    for _ in range(2):
        daemon = start(NO_SACRIFICE, "--state-dir", str(state))
        assert daemon.stop() == 0
        assert "adopted pod=default/web" in daemon.log

    assert noted(state) == []


def test_what_a_stop_resumed_is_noted_before_the_end(tree: FakeTree, start: Start, state: Path) -> None:
    for name in ("web", "job"):
        tree.add_pod(name)
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE, "--state-dir", str(state))
    wait_until(lambda: len(records_left(tree.root)) == 2, "the pauses")

    assert daemon.stop() == 0

    assert [entry[0] for entry in noted(state)] == ["paused", "paused", "resumed", "resumed"]
    assert {entry[2] for entry in noted(state)[2:]} == {"stopped"}


def test_while_a_stopped_daemon_waits_for_its_disk_the_next_one_has_the_tree(
    tree: FakeTree, start: Start, state: Path
) -> None:
    (tree.root / "memory.reclaim").touch()
    pod = tree.add_pod("web")
    tree.set_used(HIGH)
    hangs = "import threading; from cgpause import history; history.append = lambda *_: threading.Event().wait()"
    first = start(NO_SACRIFICE, "--state-dir", str(state), before=f"{hangs}; daemon.recorder._LAST_WAIT_S = 600")
    first.wait_for_log(" paused pod=default/web")
    tree.set_used(0)
    first.process.terminate()
    first.wait_for_log(" resumed pod=default/web")
    assert cpu_max(pod) == "max 100000\n"

    with Cgroup(str(tree.root), "") as root:
        wait_until(lambda: _is_free(root), "the tree to be free")

    assert first.process.poll() is None, "it still waits"


def _is_free(root: Cgroup) -> bool:
    try:
        free = root.lock_for_daemon()
    except HostError:
        return False
    root.unlock_for_daemon()
    return free


def test_a_pod_that_goes_while_it_is_paused_is_noted(tree: FakeTree, start: Start, state: Path) -> None:
    pod = tree.add_pod("web")
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE, "--state-dir", str(state))
    daemon.wait_for_log(" paused pod=default/web")

    pod.rename(tree.folder / "gone")  # at once: file by file it would be one whose containers change, and resumed

    wait_until(lambda: ("gone", "default/web", "gone") in noted(state), "the end to be noted")


@pytest.mark.parametrize("trouble", ["absent", "symlink", "folder", "fifo"])
def test_a_history_that_cannot_be_written_costs_nothing_else(
    tree: FakeTree, start: Start, state: Path, trouble: str
) -> None:
    file = state / history.FILE
    match trouble:
        case "absent":
            state.rmdir()
        case "symlink":
            file.symlink_to("elsewhere")
        case "folder":
            file.mkdir()
        case "fifo":
            os.mkfifo(file)
    pods = [tree.add_pod(name) for name in ("web", "job")]
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE, "--state-dir", str(state))
    wait_until(lambda: all(cpu_max(pod) == PAUSED for pod in pods), "the pauses")
    tree.set_used(0)
    wait_until(lambda: not records_left(tree.root), "all pods to be resumed")

    assert daemon.stop() == 0
    assert daemon.log.count("history not written") == 1
    assert not (state / "elsewhere").exists()


def test_a_dry_run_keeps_no_history(tree: FakeTree, start: Start, state: Path) -> None:
    tree.add_pod("web")
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE, "--state-dir", str(state), "--dry-run")
    daemon.wait_for_log("would have paused pod=default/web")

    assert daemon.stop() == 0
    assert list(state.iterdir()) == []


def test_a_reload_can_switch_the_history_off(tree: FakeTree, start: Start, state: Path) -> None:
    pod = tree.add_pod("web")
    daemon = start(NO_SACRIFICE, "--state-dir", str(state))
    daemon.config.write_text(f"{NO_SACRIFICE}[history]\nmax_mib = 0\n")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for_log("configuration reloaded")
    tree.set_used(HIGH)
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause")

    assert daemon.stop() == 0
    assert list(state.iterdir()) == []


# --- metrics ---------------------------------------------------------------------------------------------------------


METRICS = "[metrics]\npublish = true\ninterval_s = 1\n"


@pytest.fixture
def run_dir(tree: FakeTree) -> Path:
    folder = tree.folder / "run"
    folder.mkdir()
    return folder


def figures(run_dir: Path) -> dict[tuple[str, ...], float]:
    """What is published now; nothing where nothing is."""
    try:
        values = published.read(published.path_in(str(run_dir))).values
    except PublishedError:
        return {}
    return {(name, *figure.labels): figure.value for name, listed in values.items() for figure in listed}


def test_what_it_does_is_published_and_taken_away_at_the_end(tree: FakeTree, start: Start, run_dir: Path) -> None:
    tree.add_pod("web")
    daemon = start(NO_SACRIFICE + "[hold]\nmax_pause_s = 3600\n" + METRICS, "--run-dir", str(run_dir))
    wait_until(lambda: figures(run_dir).get(("cgpause_pods", "running")) == 1, "the first figures")
    tree.set_used(HIGH)

    held = ("cgpause_pod_paused_seconds_total", "default", "web", "throttle")
    wait_until(lambda: figures(run_dir).get(held, 0) > 0, "time that was held")
    now = figures(run_dir)
    assert now["cgpause_pods", "paused"] == now["cgpause_paused_pods", "daemon", "throttle"] == 1
    assert now["cgpause_pauses_total", "default", "throttle"] == 1
    assert now["cgpause_headroom_bytes",] == GIB - HIGH
    tree.set_used(0)

    wait_until(lambda: figures(run_dir).get(("cgpause_resumes_total", "room")) == 1, "the end of the pause")
    assert daemon.stop() == 0
    assert list(run_dir.iterdir()) == []


def test_nothing_is_published_unless_asked_for_and_a_reload_can_ask(
    tree: FakeTree, start: Start, run_dir: Path
) -> None:
    tree.add_pod("web")
    daemon = start(NO_SACRIFICE, "--run-dir", str(run_dir))
    tree.add_pod("witness")
    daemon.wait_for_log("pod appeared pod=default/witness")
    assert list(run_dir.iterdir()) == []

    daemon.config.write_text(NO_SACRIFICE + METRICS)
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: bool(figures(run_dir)), "what the new file asks for")
    daemon.config.write_text(NO_SACRIFICE)
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: list(run_dir.iterdir()) == [], "nothing to be published any more")


def test_a_dry_run_publishes_nothing(tree: FakeTree, start: Start, run_dir: Path) -> None:
    """It may look on while a daemon that does something publishes."""
    tree.add_pod("web")
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE + METRICS, "--run-dir", str(run_dir), "--dry-run")
    daemon.wait_for_log("would have paused pod=default/web")

    assert daemon.stop() == 0
    assert list(run_dir.iterdir()) == []


@pytest.mark.parametrize("trouble", ["absent", "file", "fifo", "folder"])
def test_figures_that_cannot_be_published_cost_nothing_else(
    tree: FakeTree, start: Start, run_dir: Path, trouble: str
) -> None:
    match trouble:
        case "absent":
            run_dir.rmdir()
        case "file":
            run_dir.rmdir()
            run_dir.touch()
        case "fifo":
            os.mkfifo(run_dir / f"{published.FILE}.new")
        case "folder":
            (run_dir / published.FILE).mkdir()
    pods = [tree.add_pod(name) for name in ("web", "job")]
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE + METRICS, "--run-dir", str(run_dir))
    wait_until(lambda: all(cpu_max(pod) == PAUSED for pod in pods), "the pauses")
    tree.set_used(0)
    wait_until(lambda: not records_left(tree.root), "all pods to be resumed")
    if trouble == "fifo":  # it is in nobody's way
        wait_until(lambda: bool(figures(run_dir)), "the figures")

    assert daemon.stop() == 0
    assert daemon.log.count("metrics not published") == int(trouble != "fifo")


def test_a_bug_in_the_figures_leaves_everybody_alone(tree: FakeTree, start: Start, run_dir: Path) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    broken = "from cgpause import counts, publisher; gone = lambda *_: 1 // 0; publisher.gather = gone"
    # Running, and not `start`, which takes a traceback for a failure: here there is one, in the log.
    daemon = Running(
        tree,
        NO_SACRIFICE + METRICS,
        "--run-dir",
        str(run_dir),
        before=f"{broken}; counts.Counts.keep = gone",
    )
    try:
        daemon.wait_for_log("metrics are not published any more")
        tree.set_used(HIGH)
        wait_until(lambda: cpu_max(pod) == PAUSED, "the pause")
        tree.set_used(0)
        wait_until(lambda: cpu_max(pod) == "50000 100000\n", "the restore")
        assert daemon.stop() == 0
    finally:
        daemon.process.kill()
        daemon.process.wait()
    assert "event not counted" in daemon.log


def test_a_restart_of_a_container_is_counted(tree: FakeTree, start: Start, run_dir: Path) -> None:
    pod = tree.add_pod("web")
    logs = tree.log_dir / "pods" / f"default_web_{tree.uids['web']}" / "app"
    logs.mkdir()
    (logs / "3.log").touch()
    start(NO_SACRIFICE + METRICS, "--run-dir", str(run_dir))
    restarts = ("cgpause_kubepods_container_restarts_total",)
    wait_until(lambda: figures(run_dir).get(restarts) == 0, "the first figures")

    (logs / "4.log").touch()
    (pod / f"cri-containerd-{'c' * 64}.scope").mkdir()

    wait_until(lambda: figures(run_dir).get(restarts) == 1, "the restart")
