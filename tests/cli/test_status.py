"""`cgpause status`: its JSON, a public contract, so keys and values are written here by hand; and its table."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.commandline import ABSENT, CONTENTS, GIB, MIB, Patch, S, argv, overwrite, run
from helpers.terminals import TerminalProgram
from helpers.trees import CAPTURED, CAPTURES, FakeTree, damage, lay_out_capture, load_capture, make_uid, pause_pod

from cgpause.cli.status import read_status
from cgpause.config.settings import Config, PodClass, PodRule
from cgpause.core.model import Mechanism, Owner
from cgpause.core.parse import parse_meminfo
from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import PodTree


@pytest.fixture(autouse=True)
def bare_node(monkeypatch: Patch) -> None:
    """Fake a node without a pressure file and a configuration."""
    set_pressure(monkeypatch, None)
    monkeypatch.setattr("cgpause.core.paths.DEFAULT_CONFIG", ABSENT)


def set_pressure(monkeypatch: Patch, text: bytes | None) -> None:
    def fake_open(path: str, _: str) -> io.BytesIO:
        assert path == "/proc/pressure/memory"
        if text is None:
            raise FileNotFoundError(path)
        return io.BytesIO(text)

    monkeypatch.setattr("cgpause.kernel.psi.open", fake_open, raising=False)


@contextmanager
def refreshed(root: Path, log_dir: Path, config: Config | None = None) -> Iterator[tuple[PodTree, Sampler]]:
    with closing(PodTree(str(root), str(log_dir), config or Config())) as tree, Sampler(tree) as sampler:
        tree.refresh(0)
        yield tree, sampler


def status(root: Path, log_dir: Path, config: Config | None = None) -> dict[str, Any]:
    with refreshed(root, log_dir, config) as (tree, sampler):
        shown: dict[str, Any] = json.loads(json.dumps(read_status(tree, sampler, tree.pods)))
    return shown


def pods_of(tree: FakeTree) -> dict[str, dict[str, Any]]:
    return {pod["name"]: pod for pod in status(tree.root, tree.log_dir)["pods"]}


def test_the_contract_of_the_json(tree: FakeTree, monkeypatch: Patch) -> None:
    """Check every key, in order, and every value, computed by hand."""
    set_pressure(
        monkeypatch,
        b"some avg10=1.25 avg60=0.10 avg300=0.00 total=62\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=41\n",
    )
    tree.set_used(256 * MIB, reclaimable_bytes=64 * MIB)
    (tree.kubepods / "memory.pressure").write_text(
        "some avg10=3.00 avg60=0.00 avg300=0.00 total=7\nfull avg10=2.00 avg60=0.00 avg300=0.00 total=5\n"
    )
    web = tree.add_pod("web", 100 * MIB, cpu_max="50000 100000", memory_max=str(200 * MIB))
    (web / "cpu.stat").write_text("usage_usec 9\nnr_periods 7\nnr_throttled 3\nthrottled_usec 41\n")
    tree.add_pod("db", 50 * MIB, tier="", namespace="prod")
    rule = PodRule(match="default/web", class_=PodClass.BATCH, priority=-7)

    shown = status(tree.root, tree.log_dir, Config(pods=(rule,)))

    expected = {
        "schema": 1,
        "node": {
            "memory_total_bytes": 8589934592,
            "memory_available_bytes": 6442450944,
            "headroom_bytes": 805306368,  # 1 GiB - 256 MiB, tighter than the node's 6 GiB
            "used_pct": 25.0,
            "pressure": {"some_avg10": 1.25, "some_total_us": 62, "full_avg10": 0.5, "full_total_us": 41},
        },
        "daemon": {"state": "unknown", "pid": None},
        "kubepods": {
            "cgroup": "kubepods.slice",
            "driver": "systemd",
            "memory_current_bytes": 335544320,
            "memory_used_bytes": 268435456,
            "memory_max_bytes": 1073741824,
            "pressure": {"some_avg10": 3.0, "some_total_us": 7, "full_avg10": 2.0, "full_total_us": 5},
        },
        "totals": {"pods": 2, "paused": 0, "protected": 1, "errors": 0, "memory_current_bytes": 157286400},
        "pods": [  # the largest first
            {
                "uid": make_uid(1),
                "namespace": "default",
                "name": "web",
                "qos": "Burstable",
                "cgroup": str(web.relative_to(tree.root)),
                "memory_current_bytes": 104857600,
                "memory_max_bytes": 209715200,
                "cpu_max": "50000 100000",
                "cpu_stat": {"nr_periods": 7, "nr_throttled": 3, "throttled_usec": 41},
                "class": "batch",
                "priority": -7,
                "own_word": None,
                "protected": None,
                "paused": None,
                "error": None,
            },
            {
                "uid": make_uid(2),
                "namespace": "prod",
                "name": "db",
                "qos": "Guaranteed",
                "cgroup": "kubepods.slice/kubepods-pod00000002_0000_4000_8000_000000000002.slice",
                "memory_current_bytes": 52428800,
                "memory_max_bytes": None,
                "cpu_max": "max 100000",
                "cpu_stat": None,
                "class": "service",
                "priority": 0,
                "own_word": None,
                "protected": "QoS class Guaranteed (protect.guaranteed)",
                "paused": None,
                "error": None,
            },
        ],
    }
    assert shown == expected
    assert json.dumps(shown) == json.dumps(expected), "the keys have this order"


MEMORY = {"systemd": (2527031984, 14.0, 71540048), "cgroupfs": (2527608144, 14.17, 70963888)}
"""Headroom in bytes, use in per cent, and bytes used by kubepods, computed by hand."""


@pytest.mark.parametrize("driver", CAPTURES)
def test_captured_nodes_show_what_was_captured(driver: str, tmp_path: Path, monkeypatch: Patch) -> None:
    capture = load_capture(driver)
    monkeypatch.setattr("cgpause.pods.sampler.parse_meminfo", lambda _: parse_meminfo(capture["meminfo"].encode()))
    set_pressure(monkeypatch, capture["pressure"].encode())
    root, log_dir = lay_out_capture(driver, tmp_path)

    shown = status(root, log_dir)

    node, kubepods = shown["node"], shown["kubepods"]
    assert (node["headroom_bytes"], node["used_pct"], kubepods["memory_used_bytes"]) == MEMORY[driver]
    assert (kubepods["driver"], kubepods["memory_max_bytes"]) == (driver, 2598572032)
    assert {(pod["uid"], pod["error"]) for pod in shown["pods"]} == {(uid, None) for uid in CAPTURED}


@pytest.mark.parametrize(
    ("mechanism", "expires_in_s", "cpu_max"),
    [(Mechanism.THROTTLE, 600, "1001 100000"), (Mechanism.FREEZE, None, "50000 100000")],
)
def test_a_paused_pod_shows_who_holds_it_and_its_original(
    mechanism: Mechanism, expires_in_s: int | None, cpu_max: str, tree: FakeTree, web: Path, monkeypatch: Patch
) -> None:
    at_ns = 1000 * S
    monkeypatch.setattr("cgpause.cli.status.now_ns", lambda: at_ns)
    expires_ns = None if expires_in_s is None else at_ns + expires_in_s * S
    since_ns = at_ns - 12_345_678_901
    pause_pod(tree.root, web, mechanism=mechanism, reason="why", since_ns=since_ns, expires_ns=expires_ns)

    pod = pods_of(tree)["web"]

    expected = {
        "mechanism": str(mechanism),
        "owner": "daemon",
        "reason": "why",
        "since_s": 12.346,
        "expires_in_s": None if expires_in_s is None else float(expires_in_s),
        "original_cpu_max": "50000 100000",
        "written_cpu_max": "1001 100000" if mechanism is Mechanism.THROTTLE else None,
        "in_force": True,
    }
    assert pod["paused"] == expected
    assert list(pod["paused"]) == list(expected)
    assert pod["cpu_max"] == cpu_max
    assert pod["error"] is None


def test_without_kubepods_only_the_node_is_shown(tree: FakeTree) -> None:
    shutil.rmtree(tree.kubepods)

    shown = status(tree.root, tree.log_dir)

    assert (shown["kubepods"], shown["pods"]) == (None, [])
    assert shown["node"]["headroom_bytes"] == 6 * GIB
    assert shown["node"]["used_pct"] == 25.0


@pytest.mark.parametrize("pressure", [None, b"", b"rubbish", b"\xff" * 5000], ids=["none", "empty", "bad", "binary"])
def test_without_psi_pressure_is_null(pressure: bytes | None, tree: FakeTree, monkeypatch: Patch) -> None:
    set_pressure(monkeypatch, pressure)
    if pressure is not None:
        (tree.kubepods / "memory.pressure").write_bytes(pressure)

    shown = status(tree.root, tree.log_dir)

    assert shown["node"]["pressure"] is None
    assert shown["kubepods"]["pressure"] is None


@pytest.mark.parametrize("content", sorted(CONTENTS.keys() - {"biggest"}))  # which is a number
@pytest.mark.parametrize("file", ["memory.current", "memory.max", "cpu.max"])
def test_a_bad_file_is_that_pods_error_and_nobody_elses(file: str, content: str, tree: FakeTree) -> None:
    """An operator looks for the pod that cannot be read, so the output has the pod with its error."""
    tree.add_pod("good", 5 * MIB, memory_max=str(9 * MIB))
    bad = tree.add_pod("bad", 4 * MIB)
    overwrite(bad / file, CONTENTS[content])

    pods = pods_of(tree)

    assert pods.keys() == {"good", "bad"}
    assert list(pods["bad"]) == list(pods["good"])
    assert file in pods["bad"]["error"]
    assert pods["good"]["error"] is None
    assert pods["good"]["memory_current_bytes"] == 5 * MIB


def test_a_damaged_record_is_that_pods_error(tree: FakeTree) -> None:
    tree.add_pod("good")
    damage(tree.add_pod("bad"))

    pods = pods_of(tree)

    assert "user.cgpause" in pods["bad"]["error"]
    assert pods["bad"]["memory_current_bytes"] == MIB
    assert pods["good"]["error"] is None


def test_what_vanishes_meanwhile_does_not_hide_the_rest(tree: FakeTree) -> None:
    tree.add_pod("good")
    gone = tree.add_pod("gone")

    with refreshed(tree.root, tree.log_dir) as (pod_tree, sampler):
        shutil.rmtree(gone)
        pods = {pod["name"]: pod for pod in read_status(pod_tree, sampler, pod_tree.pods)["pods"]}
        shutil.rmtree(tree.kubepods)
        without = read_status(pod_tree, sampler, pod_tree.pods)

    assert pods.keys() == {"good"}, "pods end at any time: that is no error"
    assert pods["good"]["error"] is None
    assert without["kubepods"] is None


# --- the table --------------------------------------------------------------------------------------------------------


def test_paused_pods_come_first_and_then_the_largest(tree: FakeTree) -> None:
    for name, size in (("small", 1), ("large", 300), ("middle", 20)):
        tree.add_pod(name, size * MIB)
    pause_pod(tree.root, tree.add_pod("paused", 5 * MIB), Owner.DAEMON)

    lines = run(tree, "status").stdout.splitlines()

    assert [line.split()[0] for line in lines[7:]] == [
        f"default/{name}" for name in ("paused", "large", "middle", "small")
    ]
    assert lines[4] == "pods      4: 1 paused, 0 protected; 326.0Mi used"


def test_a_namespace_without_a_pod_is_named(tree: FakeTree) -> None:
    """As kubectl does: an empty table looks like a node without pods."""
    tree.add_pod("web")

    assert run(tree, "status", "-n", "default").stderr == ""
    nowhere = run(tree, "status", "-n", "nowhere")

    assert (nowhere.exit_code, nowhere.stderr) == (0, "cgpause: no pod in namespace 'nowhere'\n")


def test_a_wide_status_has_all_columns_on_any_terminal(tree: FakeTree) -> None:
    tree.add_pod("web")
    with TerminalProgram(argv(tree, "status", "-o", "wide")) as shown:
        assert "QOS" in shown.wait_for("running")
    with TerminalProgram(argv(tree, "status")) as shown:
        assert "QOS" not in shown.wait_for("running")
