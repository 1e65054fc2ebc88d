"""`cgpause explain`: the facts of one pod, its JSON as documented in docs/cli.md, rates and learned peaks."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.commandline import GIB, MIB, Patch, argv, json_of, place, record_of, run, snapshot, with_config
from helpers.nodes import S
from helpers.terminals import TerminalProgram
from helpers.trees import FakeTree, damage, pause_pod, rewrite

from cgpause.core.clock import now_ns
from cgpause.core.model import CpuMax, Mechanism, Owner
from cgpause.core.paths import LEARNED_FILE
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.telemetry import learned
from cgpause.telemetry.learned import Learned

WATERMARK = 'policy = "watermark"\n'


def told(tree: FakeTree, *args: str, config: str = WATERMARK) -> dict[str, Any]:
    return json_of(*place(tree), *with_config(tree, config), *args)


def facts(tree: FakeTree, *args: str, config: str = WATERMARK) -> dict[str, list[str]]:
    """Return the printed facts by topic."""
    result = run(tree, *with_config(tree, config), *args)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    found: dict[str, list[str]] = {}
    about = ""
    for line in result.stdout.splitlines():
        about = line[:9].strip() or about
        found.setdefault(about, []).append(line[11:].rstrip())
    return found


def state_dir(tree: FakeTree) -> list[str]:
    (tree.folder / "state").mkdir(exist_ok=True)
    return ["--state-dir", str(tree.folder / "state")]


def busy_pod(tree: FakeTree) -> Path:
    web = tree.add_pod("web", 64 * MIB, cpu_max="50000 100000", memory_max=str(128 * MIB))
    (web / "cpu.stat").write_text(
        "usage_usec 9\nuser_usec 5\nsystem_usec 4\nnr_periods 100\nnr_throttled 12\nthrottled_usec 90000000\n"
    )
    return web


def test_the_contract_of_the_json(tree: FakeTree) -> None:
    tree.set_used(GIB // 2)
    busy_pod(tree)
    tree.add_pod("other", 99 * MIB)

    assert told(tree, *state_dir(tree), "explain", "web") == {
        "schema": 1,
        "policy": "watermark",
        "used_pct": 50.0,
        "headroom_bytes": GIB // 2,
        "pod": next(pod for pod in told(tree, "status")["pods"] if pod["name"] == "web"),
        "decision": {
            "verdict": "runs: memory use 50.0 % is below upper 90 %",
            "what": "runs",
            "acts": False,
            "rule": "from 90 % of memory use on (50.0 % now) the 2 that use the least are paused",
            "rank": 1,
            "candidates": 2,
            "reserve": None,
        },
        "history": {
            "file": f"{tree.folder}/state/history.jsonl",
            "error": None,
            "pauses": 0,
            "paused_s": 0.0,
            "longest_s": 0.0,
            "unknown": 0,
            "first": None,
            "last": None,
        },
    }


def test_limits_are_told_in_the_terms_of_kubernetes(tree: FakeTree) -> None:
    busy_pod(tree)

    shown = facts(tree, "explain", "web")

    assert shown["state"] == ["running"]
    assert shown["protected"] == ["no"]
    assert shown["memory"] == ["64.0Mi of 128.0Mi (50 %)"]
    assert shown["cpu"] == [
        "limit 500m (cpu.max 50000 100000)",
        "throttled in 12% of its periods, 12 times, 1m30s in all",
    ]
    assert shown["history"] == ["none is kept for another tree without --state-dir"]


def test_a_pod_that_would_be_paused_says_by_which_rule_and_numbers(tree: FakeTree) -> None:
    tree.set_used(GIB * 95 // 100)
    for number in range(3):
        tree.add_pod(f"pod-{number}", (number + 1) * MIB)

    shown = facts(tree, "explain", "pod-0")

    assert shown["now"][1].startswith("would pause (throttle): memory use 95.0 % >= upper 90 %, rank 1 of 3")
    assert shown["rule"] == ["from 90 % of memory use on (95.0 % now) the 2 that use the least are paused"]
    assert shown["numbers"] == ["rank 1 of the 3 that may be paused"]
    third = facts(tree, "explain", "pod-2")["now"][1]
    assert third == "runs: rank 3; 2 are paused at a time, and more after 3 intervals of 1 s without improvement"


def test_the_numbers_of_the_reserve_policy(tree: FakeTree) -> None:
    tree.set_used(GIB // 2)
    busy_pod(tree)

    shown = facts(tree, "explain", "web", config="")

    assert re.fullmatch(r"0.0Mi, \d+.\dMi left for it", shown["demand"][0])
    assert shown["demand"][1:] == ["based on nothing: it does not grow", "claim 64.0Mi, has not grown lately"]
    assert shown["rule"] == ["runs: it does not grow, so that a pause would free nothing"]
    assert told(tree, "explain", "web", config="")["decision"]["reserve"]["claim_bytes"] == 64 * MIB


def test_a_paused_pod_says_since_when_by_whom_and_what_comes_back(tree: FakeTree) -> None:
    web = busy_pod(tree)
    options = state_dir(tree)
    assert run(tree, *options, "pause", "web", "--for", "2d").exit_code == 0

    shown = facts(tree, *options, "explain", "web")

    since, by, until, wrote = shown["state"]
    assert re.fullmatch(r"paused since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, for \d+s", since)
    assert by == "by hand: cgpause pause by tester"
    assert re.fullmatch(r"until its time is over, in 1d23h", until)
    assert wrote == "cpu.max 1001 100000 (10m) written; the original is cpu.max 50000 100000 (500m)"
    assert shown["rule"][0].startswith("paused by hand: the daemon leaves it alone until an operator resumes it")
    assert shown["cpu"][0] == "limit 500m, while it runs (cpu.max 50000 100000)"
    assert shown["history"][0].startswith("paused once: ")
    assert record_of(tree, web).original == CpuMax(50_000, 100_000), "it wrote nothing"


def test_a_pod_whose_pause_is_not_in_force_shows_the_limit_in_force(tree: FakeTree) -> None:
    web = busy_pod(tree)
    assert run(tree, *state_dir(tree), "pause", "web").exit_code == 0
    (web / "cpu.max").write_text("70000 100000\n")
    shown = facts(tree, "explain", "web")
    assert shown["cpu"][0] == "limit 700m (cpu.max 70000 100000)"
    assert any(text.startswith("not in force") for text in shown["state"])


def test_a_pod_that_was_throttled_and_then_frozen_shows_both_writes(tree: FakeTree) -> None:
    web = busy_pod(tree)
    pause_pod(tree.root, web)
    with Cgroup(str(tree.root), str(web.relative_to(tree.root))) as cgroup:
        ledger.freeze(cgroup, "more")
    assert facts(tree, "explain", "web")["state"][-1] == (
        "cpu.max 1001 100000 (10m) and cgroup.freeze 1 written; the original is cpu.max 50000 100000 (500m)"
    )


def test_a_frozen_pod_and_a_protected_one(tree: FakeTree) -> None:
    web = busy_pod(tree)
    tree.add_pod("db", tier="")
    pause_pod(tree.root, web, mechanism=Mechanism.FREEZE, reason="why")

    state = facts(tree, "explain", "web")["state"]
    assert state[0].startswith("frozen since ")
    assert state[1:] == ["by the daemon: why", "cgroup.freeze 1 written; the original is cpu.max 50000 100000 (500m)"]
    shown = facts(tree, "explain", "db")
    assert shown["protected"] == ["yes, QoS class Guaranteed (protect.guaranteed)"]
    assert shown["rule"] == ["not a candidate: it may not be paused now"]


def test_the_history_is_that_of_this_pod_alone(tree: FakeTree) -> None:
    options = state_dir(tree)
    for name in ("web", "job"):
        tree.add_pod(name)
    for names in (["web"], ["web", "job"]):
        assert run(tree, *options, "pause", *names).exit_code == run(tree, *options, "resume", *names).exit_code == 0

    found = told(tree, *options, "explain", "web")["history"]

    assert (found["pauses"], found["unknown"], found["error"]) == (2, 0, None)
    assert found["first"] <= found["last"]
    assert facts(tree, *options, "explain", "web")["history"][0].startswith("paused 2 times: ")
    assert told(tree, *options, "explain", "job")["history"]["pauses"] == 1


def test_a_history_without_the_pause_that_runs_does_not_say_it_was_never_paused(tree: FakeTree) -> None:
    tree.add_pod("web")
    assert run(tree, "pause", "web").exit_code == 0

    shown = facts(tree, *state_dir(tree), "explain", "web")

    assert shown["state"][0].startswith("paused since")
    assert shown["history"] == [f"{tree.folder}/state/history.jsonl has no pause of it, not even this one"]


@pytest.mark.parametrize("policy", ["reserve", "watermark"])
@pytest.mark.parametrize(
    ("rule", "paused_s", "reason"),
    [
        ('class = "service"', 30, "paused for the longest time allowed (9 s)"),
        ('class = "batch"', 700, "paused for the longest time allowed (600 s)"),
        ("protect = true", 5, "now protected: rule 1 ([[pods]] match = 'default/web')"),
    ],
    ids=["service", "batch", "protected"],
)
def test_the_rule_of_a_pause_that_must_end_is_its_reason(
    tree: FakeTree, rule: str, paused_s: int, reason: str, policy: str
) -> None:
    tree.set_used(GIB * 99 // 100)
    pause_pod(tree.root, tree.add_pod("web", 64 * MIB), since_ns=now_ns() - paused_s * S)
    config = f"policy = '{policy}'\n[[pods]]\nmatch = 'default/web'\n{rule}\n"

    decision = told(tree, "explain", "web", "--for", "1s", config=config)["decision"]

    assert decision["what"] == "would resume"
    assert decision["rule"].startswith(f"its pause ends now: {reason}")
    table = run(tree, *with_config(tree, config), "explain", "--for", "1s", "-owide").stdout
    assert f"would resume: {reason}"[:40] in " ".join(table.split())


def test_a_history_that_cannot_be_read_is_no_error(tree: FakeTree) -> None:
    tree.add_pod("web")
    options = state_dir(tree)
    (tree.folder / "state/history.jsonl").mkdir()

    (said,) = facts(tree, *options, "explain", "web")["history"]
    assert said.startswith(f"cannot read {tree.folder}/state/history.jsonl: ")


def test_what_is_wrong_with_a_pod_is_part_of_its_story(tree: FakeTree) -> None:
    damage(tree.add_pod("damaged"))
    (busy_pod(tree) / "cpu.max").write_text("nonsense\n")
    blind = tree.add_pod("blind")
    (blind / "memory.current").write_text("nonsense\n")

    assert "its record cannot be read" in " ".join(facts(tree, "explain", "damaged")["now"])
    assert facts(tree, "explain", "web")["state"] == ["error: malformed cpu.max: b'nonsense\\n'"]
    assert facts(tree, "explain", "blind")["memory"] == ["? used, no limit"]
    assert told(tree, "explain", "blind")["pod"]["cpu_max"] is None


def test_a_pod_that_goes_meanwhile_is_no_such_pod(tree: FakeTree, web: Path, monkeypatch: Patch) -> None:
    real = ledger.read_record

    def read_and_go(cgroup: Cgroup) -> object:
        found = real(cgroup)
        if web.exists():
            web.rename(tree.folder / "gone")
        return found

    monkeypatch.setattr("cgpause.pods.tracked.read_record", read_and_go)

    result = run(tree, *with_config(tree, WATERMARK), "explain", "web")

    assert result.exit_code == 3
    assert "cgroup is gone" in result.stderr


def test_what_the_daemon_does_meanwhile_counts(tree: FakeTree, monkeypatch: Patch) -> None:
    web, db = tree.add_pod("web", 64 * MIB), tree.add_pod("db", 64 * MIB)
    pause_pod(tree.root, web, Owner.DAEMON)
    real = time.sleep

    def sleep_and_act(seconds: float) -> None:
        real(seconds)
        if "new" not in tree.uids:
            with Cgroup(str(tree.root), str(web.relative_to(tree.root))) as cgroup:
                ledger.resume(cgroup)
            pause_pod(tree.root, db, Owner.DAEMON)
            tree.add_pod("new")

    monkeypatch.setattr(time, "sleep", sleep_and_act)
    pods = {pod["name"]: pod["verdict"] for pod in told(tree, "explain", "--for", "1s", config="")["pods"]}
    assert pods.keys() == {"web", "db", "new"}
    assert ["paused" in pods[name] or "resume" in pods[name] for name in ("web", "db")] == [False, True]


def test_page_cache_that_a_pod_takes_meanwhile_is_no_growth(tree: FakeTree, monkeypatch: Patch) -> None:
    tree.set_used(500 * MIB)
    reads, grows = (tree.add_pod(name, 100 * MIB, memory_max=str(300 * MIB)) for name in ("reads", "grows"))
    real, begun = time.sleep, time.monotonic()

    def sleep_and_take(seconds: float) -> None:
        real(seconds)
        taken = int((time.monotonic() - begun) * 50) * MIB
        for pod, cache in ((reads, taken), (grows, 0)):
            stat = f"anon 1\nshmem 0\ninactive_file {cache:020}\nactive_file 0\nslab_reclaimable 0\n"
            rewrite(pod / "memory.stat", stat)
            rewrite(pod / "memory.current", f"{100 * MIB + taken:020}\n")

    monkeypatch.setattr(time, "sleep", sleep_and_take)
    pods = told(tree, "explain", "--for", "2s", config="")["pods"]

    found = {pod["name"]: pod["reserve"]["rate_bytes_per_s"] for pod in pods}
    assert found["reads"] < found["grows"] / 10


# --- what the daemon has learned -------------------------------------------------------------------------------------


@pytest.fixture
def learned_dir(tree: FakeTree) -> list[str]:
    """Pause a pod without a limit, and keep a peak of its workload; return the option that names the folder."""
    pause_pod(tree.root, tree.add_pod("job-x7k2p", 100 * MIB))
    options = state_dir(tree)
    learned.write(str(tree.folder / "state" / LEARNED_FILE), Learned({"default/job": (300 * MIB,)}, {}))
    return options


@pytest.mark.parametrize("args", [[], ["job-x7k2p"]], ids=["all", "one"])
def test_the_peaks_that_the_daemon_has_learned_count(tree: FakeTree, learned_dir: list[str], args: list[str]) -> None:
    before = snapshot(tree.folder / "state")

    both = [told(tree, *options, "explain", *args, config="") for options in (learned_dir, [])]

    known, unknown = ((found.get("decision") or found["pods"][0])["reserve"] for found in both)
    assert known["based_on"] == "peaks of its workload"
    assert known["demand_bytes"] >= 200 * MIB, "the peak less what it uses"
    # The node's daemon has learned only about the node's own tree.
    assert unknown["based_on"] == "as much again as it uses, for it has no limit below the node's memory"
    assert snapshot(tree.folder / "state") == before


def test_peaks_that_cannot_be_read_are_said_not_to_count(tree: FakeTree, learned_dir: list[str]) -> None:
    path = tree.folder / "state" / LEARNED_FILE
    path.write_text("{")

    result = run(tree, *with_config(tree, ""), *learned_dir, "explain")

    assert result.exit_code == 0
    assert result.stderr.startswith(f"cgpause: peaks that the daemon has seen are not counted: {path}: not JSON: ")
    assert result.stderr.count("\n") == 1
    told(tree, *learned_dir, "explain", config=WATERMARK)  # says nothing on stderr: that policy asks for none


@pytest.mark.parametrize(("knows", "demand"), [(True, "200Mi"), (False, "100Mi")])
def test_the_dashboard_counts_them_too(tree: FakeTree, learned_dir: list[str], knows: bool, demand: str) -> None:
    """100 MiB is as much again as it uses, 200 MiB the rest up to the peak."""
    options = [*with_config(tree, ""), *(learned_dir if knows else [])]
    with TerminalProgram(argv(tree, *options, "top"), columns=120, lines=40) as program:
        program.wait_for("default/job-x7k2p")
        program.wait_for(lambda _: demand in program.line_with("default/job-x7k2p").split()[4:])
