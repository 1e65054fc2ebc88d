"""`cgpause simulate`: its output, its reproducibility, and its errors for a bad workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.commandline import invoke, json_of

from cgpause.offline.simulate import Arm
from cgpause.offline.simulate.presets import PRESETS
from cgpause.offline.simulate.workload import make_load

WORKLOAD = """\
[nodes]
count = 2
memory_mib = 384
cpus = 1
oversubscription_pct = 150
backoff_scale = 0.2
[[jobs]]
name = "large"
count = 4
limit_mib = 96
unit_cpu_s = 0.2
[[jobs]]
name = "small"
count = 16
limit_mib = 48
unit_mib = 4
rounds = 2
unit_cpu_s = 0.2
"""
SERVICES = """\
[[services]]
name = "web"
count = 2
base_mib = 16
surge_mib = 24
surge_s = 2
rest_s = 4
latency_s = 1
priority = 5
[[daemonsets]]
name = "agent"
base_mib = 8
"""


def save(folder: Path, text: str) -> str:
    path = folder / "workload.toml"
    path.write_text(text)
    return str(path)


@pytest.fixture
def workload(tmp_path: Path) -> str:
    return save(tmp_path, WORKLOAD)


def compared(*args: str) -> dict[str, Any]:
    return json_of("simulate", *args, "--jobs", "1")


def simulated(*args: str) -> dict[str, Any]:
    """Return the only run of each policy, on the only workload."""
    values = compared(*args)
    (load,) = values["workloads"]
    runs = {policy["policy"]: policy["runs"] for policy in load["policies"]}
    assert all(len(each) == 1 for each in runs.values())
    return {policy: run for policy, (run,) in runs.items()}


def test_all_policies_are_compared_on_the_same_jobs(workload: str) -> None:
    runs = simulated(workload)
    assert list(runs) == list(Arm)
    (load,) = compared(workload)["workloads"]
    assert (load["workload"], load["nodes"], load["jobs"]) == (workload, 2, 20)
    assert {run["seed"] for run in runs.values()} == {1}
    assert all(run["finished"] == 20 for run in runs.values())
    assert runs["none"]["restarts"] > runs["reserve"]["restarts"]
    assert runs["none"]["pauses"] == 0 < runs["reserve"]["pauses"]
    # The jobs need the same CPU time under each policy, except for some ms of attempts to reclaim.
    needed = [run["cpu_s"] - run["lost_cpu_s"] for run in runs.values()]
    assert needed == [pytest.approx(needed[0], abs=0.1)] * 3


def test_the_same_seeds_give_the_same_bytes_whatever_runs_at_a_time(workload: str) -> None:
    first, again, other = (
        invoke("simulate", workload, "--seed", seed, "--seeds", "2", "--jobs", jobs, "-ojson").stdout_bytes
        for seed, jobs in (("7", "1"), ("7", "3"), ("8", "1"))
    )
    assert first == again != other


def test_only_the_policies_asked_for_are_run(workload: str) -> None:
    runs = simulated(workload, "--policy", "reserve", "--policy", "none", "--policy", "reserve")
    assert list(runs) == ["reserve", "none"]


def test_the_configuration_is_what_the_policies_are_given(workload: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('policy = "watermark"\nmechanism = "freeze"\n')
    values = json_of("--config", str(config), "simulate", workload, "--policy", "reserve")
    assert values["mechanism"] == "freeze"
    (policy,) = values["workloads"][0]["policies"]
    assert policy["mean"]["freezes"] == 0, "that counts pods frozen because they grew while throttled"
    assert policy["runs"] != [simulated(workload, "--policy", "reserve")["reserve"]]


def test_what_is_given_up_at_once_is_told_all_the_same(tmp_path: Path) -> None:
    path = save(tmp_path, WORKLOAD.replace("[nodes]", "[nodes]\nstart_s = 10\ngive_up_s = 1"))
    for run in simulated(path).values():
        assert (run["finished"], run["total_s"], run["running_max_s"], run["cpu_s"]) == (0, 1, 0, 0)


def test_services_and_daemonsets_are_told_apart_from_jobs(tmp_path: Path) -> None:
    path = save(tmp_path, WORKLOAD + SERVICES)
    values = compared(path, "--policy", "reserve")
    (policy,) = values["workloads"][0]["policies"]
    groups = {group["name"]: group for group in policy["groups"]}
    assert policy["groups"] == policy["runs"][0]["groups"]
    assert [(name, group["kind"], group["pods"]) for name, group in groups.items()] == [
        ("large", "jobs", 4),
        ("small", "jobs", 16),
        ("web", "services", 2),
        ("agent", "daemonsets", 2),
    ]
    assert groups["web"]["late"] is not None
    assert groups["web"]["finished_mean_s"] is groups["agent"]["late"] is groups["large"]["longest_silence_s"] is None
    rows = [line.split() for line in invoke("simulate", path, "--policy", "reserve").stdout.splitlines()[-4:]]
    assert [row[0] for row in rows] == list(groups)
    assert [row.count("-") for row in rows] == [5, 5, 1, 2]


def test_of_several_seeds_a_group_has_means_and_the_longest_of_all(workload: str) -> None:
    (load,) = compared(workload, "--seeds", "3", "--policy", "reserve")["workloads"]
    (policy,) = load["policies"]
    (small,) = (group for group in policy["groups"] if group["name"] == "small")
    runs = [group for run in policy["runs"] for group in run["groups"] if group["name"] == "small"]
    assert small["pauses"] == pytest.approx(sum(run["pauses"] for run in runs) / 3, abs=1e-3)
    assert small["longest_pause_s"] == max(run["longest_pause_s"] for run in runs)
    assert (small["kind"], small["priority"], small["late"]) == ("jobs", 0, None)


def test_several_seeds_give_mean_lowest_and_highest(workload: str) -> None:
    values = compared(workload, "--policy", "none", "--seed", "3", "--seeds", "4")
    (policy,) = values["workloads"][0]["policies"]
    alone = [simulated(workload, "--policy", "none", "--seed", str(seed))["none"] for seed in (3, 4, 5, 6)]
    restarts = [run["restarts"] for run in alone]

    assert values["seeds"] == [3, 4, 5, 6]
    assert policy["runs"] == alone
    assert len(set(restarts)) > 1
    shown = [policy[which]["restarts"] for which in ("mean", "low", "high")]
    assert shown == [sum(restarts) / 4, min(restarts), max(restarts)]
    lines = invoke("simulate", workload, "--policy", "none", "--seed", "3", "--seeds", "4").stdout.splitlines()
    assert "seeds 3 to 6" in lines[0]
    assert f"{sum(restarts) / 4:.1f} ({min(restarts)}-{max(restarts)})" in lines[2]


def test_workloads_and_presets_stand_in_the_order_given(workload: str) -> None:
    values = compared(workload, "--preset", "paper-8g-1?0", "--preset", "paper-8g-150", "--policy", "none")
    names = [load["workload"] for load in values["workloads"]]
    assert names == [workload, *(name for name in PRESETS if name.startswith("paper-8g-"))]


def test_presets_are_listed_and_are_the_papers() -> None:
    assert invoke("simulate", "--list").stdout.split() == list(PRESETS)
    for size, jobs in ((2, 100), (4, 50), (8, 25)):
        for pct in (100, 150):
            load = make_load("x", PRESETS[f"paper-{size}g-{pct}"])
            assert (load.count, load.nodes, load.machine.capacity_bytes) == (jobs, 3, 32 << 30)
            assert load.jobs[0].limit_bytes == size << 30
            assert load.oversubscription == pct / 100


AGENT = SERVICES.removesuffix("8\n")
"""The workload up to the number of base_mib of its DaemonSet."""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[nodes]", "[nodes", ":1: not TOML"),
        ("count = 2", "counts = 2", ': nodes.counts: unknown option; did you mean "count"?'),
        ("count = 2", "count = nan", ": nodes.count: found nan; allowed: a whole number"),
        ("cpus = 1", "cpus = 0", ": nodes.cpus: found 0; allowed: a number from 0.1"),
        ('"large"', '"LARGE"', 'jobs[1].name: found "LARGE"; allowed: up to 63 lower-case'),
        ('"small"', '"large"', 'several sections with the name "large"; allowed: each once'),
        ("count = 4\n", "", "jobs[1].count: missing; allowed: a whole number from 1"),
        ("unit_mib = 4", "unit_mib = 49", "found 49 with limit_mib 48; allowed:"),
        ("limit_mib = 96", "limit_mib = 999", '"large" requests 666 MiB'),
        ("limit_mib = 96", "limit_mib = 96\nrequest_millicpu = 1001", '"large" requests 1001 millicores'),
        ("limit_mib = 96", "limit_mib = 96\nstart_s = 21600", "allowed: before give_up_s of [nodes], 21600"),
        ("count = 16", "count = 999999", "found 1000003 jobs in all; allowed: 1 to 1000000"),
        (WORKLOAD, "", "found 0 jobs in all; allowed: 1 to 1000000, in [[jobs]] sections"),
        (
            "[nodes]",
            "[scheduler]\nstrategy = 'x'\n[nodes]",
            ": scheduler: removed, pods go to the least allocated node",
        ),
        ("", f"{AGENT}380", "they request more than there is; allowed: what fits into memory_mib of [nodes]"),
        ("", f"{AGENT}300", "allowed: up to memory_mib of [nodes] less what services and DaemonSets request"),
        ("", f"{SERVICES}limit_mib = 8", "daemonsets[1].limit_mib: found 8; allowed: from 9, base_mib and surge_mib"),
        ("", f"{SERVICES}request_mib = 99", "daemonsets[1].request_mib: found 99; allowed: up to the limit of 16 MiB"),
        ("", f"{SERVICES}probe_timeout_s = 11", "daemonsets[1].probe_timeout_s: found 11 s; allowed: up to probe_peri"),
    ],
)
def test_a_bad_workload_is_named_with_place_value_and_what_is_allowed(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    path = save(tmp_path, WORKLOAD.replace(old, new) if old else WORKLOAD + new)
    result = invoke("simulate", path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"cgpause: {path}")
    assert said in result.stderr


def test_the_example_in_the_manual_is_valid(tmp_path: Path) -> None:
    manual = (Path(__file__).parents[3] / "docs/simulate.md").read_text(encoding="utf-8")
    example = manual.partition("```toml\n")[2].partition("```")[0]
    assert simulated(save(tmp_path, example), "--policy", "none")["none"]["finished"] > 0
