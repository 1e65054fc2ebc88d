"""The loads of the stock bed match its page, and each problem is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab.bed.arms import cgpause_config
from lab.bed.kubelet import JobTimes, Outcome
from lab.bed.kubepods import Tier, make_uid
from lab.measure import stock
from lab.measure.stock_loads import LOADS, PROGRAMS, Load, Tools, programs
from lab.pages.stock_report import LOADS as DESCRIBED
from lab.pages.stock_report import merge, where_worse
from lab.vm.host import LabError

from cgpause.config.load import parse_config
from cgpause.config.settings import Config
from cgpause.core.model import QosClass
from cgpause.core.pod_names import PodName
from cgpause.policy.rules import protection

TOOLS = Tools(Path("worker"), 1000)
PEAKS = {name: (20 + number) << 20 for number, name in enumerate(PROGRAMS)}


def all_loads(seed: int) -> dict[str, Load]:
    found = {name: make(seed, TOOLS) for name, make in LOADS.items()}
    return found | {"programs": programs(seed, PEAKS, Path("inputs"))}


def test_a_seed_decides_sizes_and_starts() -> None:
    assert all_loads(1) == all_loads(1)
    first, second = all_loads(1), all_loads(2)
    assert all(first[name] != second[name] for name in first)


def test_no_pod_is_protected_by_the_stock_configuration() -> None:
    config = parse_config(cgpause_config("stock"), "config.toml")
    assert config == Config()
    for load in all_loads(1).values():
        for job in (*load.jobs, *load.followers.values(), *load.lasting):
            qos = QosClass.BEST_EFFORT if job.tier is Tier.BEST_EFFORT else QosClass.BURSTABLE
            uid, name = make_uid(job.name), PodName("demo", job.name)
            assert protection(uid=uid, qos=qos, name=name, opt_outs=(), holds_us=False, config=config) is None


def test_pauses_of_jobs_and_of_other_pods_are_counted_apart() -> None:
    load = LOADS["idle"](1, TOOLS)
    trial = stock.Trial("idle", stock.STOCK, 1, load)
    names = {"uid-job": load.jobs[0].name, "uid-idle": load.lasting[0].name}
    outcome = Outcome(2, 240.0, 1, 1, 1.5, {load.jobs[0].name: JobTimes(restarts=1)})
    ended_pauses = [("uid-job", 5.0), ("uid-job", 9.0), ("uid-idle", 20.0), ("uid-of-a-service", 3.0)]
    result = stock.summarize(trial, outcome, names, ended_pauses)
    assert (result["jobs"], result["finished"], result["all_finished"]) == (3, 2, False)
    assert (result["pauses"], result["paused_s"], result["longest_pause_s"]) == (2, 14.0, 9.0)
    assert result["other_pauses"] == 2


def run(arm: str, **otherwise: object) -> dict[str, Any]:
    """Return the values of a run without problems."""
    values = {"load": "idle", "arm": arm, "seed": 1, "jobs": 3, "finished": 3, "total_s": 30.0, "restarts": 2}
    values |= {"oom_kills": 2, "service_restarts": 0, "probe_restarts": 0, "pauses": 1, "longest_pause_s": 4.0}
    return values | otherwise


@pytest.mark.parametrize(
    ("otherwise", "said"),
    [
        ({"restarts": 1, "total_s": 30.5}, []),
        ({"restarts": 3}, ["`idle`: 3 restarts of containers, 2 without a daemon."]),
        ({"probe_restarts": 1}, ["`idle`: 1 restarts by liveness probes, 0 without a daemon."]),
        ({"total_s": 39.0}, ["`idle`: 30 % longer until all jobs were done."]),
        ({"finished": 1}, ["`idle`: 2 jobs had not finished when the run was given up, 0 without."]),
    ],
)
def test_each_respect_in_which_the_daemon_is_worse_is_reported(otherwise: dict[str, object], said: list[str]) -> None:
    assert where_worse([run("none"), run("stock", **otherwise)]) == said


def test_a_seed_with_restarts_that_no_run_without_a_daemon_has_is_reported() -> None:
    runs = [run("none"), run("none", seed=2, restarts=0), run("stock", restarts=0), run("stock", seed=2, restarts=1)]
    assert where_worse(runs) == ["`idle`, seed 2: 1 restarts of containers, 0 without a daemon."]


def test_loads_that_are_measured_again_take_the_place_of_the_old_ones() -> None:
    old = [run("none"), run("stock"), run("none", load="paper2"), run("stock", load="paper2")]
    machines = [
        {"kernel": "6.1", "machine": "x86_64", "cpus": 2, "peaks_mib": {}},
        {"kernel": "6.1", "machine": "x86_64", "cpus": 1, "peaks_mib": {}},
    ]
    before = {"commit": "1234", "date": "2026-01-01", "runs": [one | {"trials": old} for one in machines]}
    new = [run("none", total_s=20.0), run("stock", total_s=10.0)]
    again = [one | {"trials": new, "peaks_mib": {"xz": 9}} for one in machines]
    after = merge(before, "5678", again)
    assert after["commit"] == "1234"
    for machine in after["runs"]:
        assert [(one["load"], one["total_s"], one.get("again", "")[:11]) for one in machine["trials"]] == [
            ("idle", 20.0, "commit 5678"),
            ("idle", 10.0, "commit 5678"),
            ("paper2", 30.0, ""),
            ("paper2", 30.0, ""),
        ]
        assert machine["peaks_mib"] == {"xz": 9}
    with pytest.raises(LabError, match=r"measured with kernel 6\.12"):
        merge(before, "5678", [again[0] | {"kernel": "6.12"}, again[1]])


def test_a_run_of_all_loads_takes_the_place_of_all_results() -> None:
    every = {"trials": [run(arm, load=load) for load in DESCRIBED for arm in ("none", "stock")]}
    after = merge({"commit": "1234", "runs": []}, "5678", [every, every])
    assert after["runs"] == [every, every]


def test_every_load_is_described() -> None:
    assert list(DESCRIBED) == [*LOADS, stock.REAL_PROGRAMS]
