"""Output for operators: one pod per line in a pipe, no terminal control sequence, never a crash."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from helpers.commandline import GIB, MIB
from helpers.fixtures import Capture, Patch
from helpers.nodes import pod
from rich.console import Console

from cgpause.cli import explain, output, status
from cgpause.cli.check import Finding, Level, print_findings
from cgpause.config.settings import Config
from cgpause.core.errors import printable
from cgpause.core.model import CpuMax, Headroom, Mechanism, Owner, PauseRecord, PodUsage, Policy, Sample
from cgpause.kernel.find_daemon import DaemonState
from cgpause.policy.demand import Basis
from cgpause.policy.explain import Verdict
from cgpause.policy.serving import Place

FIRST = 7
"""Line of the first pod of a status."""
LONGEST_NAMESPACE = "n" * 63
LONGEST_NAME = "p" * 253
HOSTILE = "a\x1b[31m\n\r\t\x00\x7f\u202e\udcff[bold]:smile:b"
ESCAPED = r"a\x1b[31m\n\r\t\x00\x7f\u202e\udcff[bold]:smile:b"


def pod_values(**changes: object) -> dict[str, Any]:
    values: dict[str, Any] = {
        "uid": "00000001-0000-4000-8000-000000000001",
        "namespace": "default",
        "name": "web",
        "qos": "Burstable",
        "cgroup": "kubepods/burstable/pod00000001-0000-4000-8000-000000000001",
        "memory_current_bytes": 100 * MIB,
        "memory_max_bytes": 200 * MIB,
        "cpu_max": "max 100000",
        "cpu_stat": {"nr_periods": 200, "nr_throttled": 24, "throttled_usec": 5},
        "class": "service",
        "priority": 0,
        "protected": None,
        "paused": None,
        "error": None,
    }
    return values | changes


def paused_values(**changes: object) -> dict[str, Any]:
    values: dict[str, Any] = {
        "mechanism": "throttle",
        "owner": "daemon",
        "reason": "memory use 91.0 % >= upper 90 %",
        "since_s": 3.5,
        "expires_in_s": None,
        "original_cpu_max": "50000 100000",
        "written_cpu_max": "1001 100000",
        "in_force": True,
    }
    return values | changes


def status_values(*pods: dict[str, Any], **changes: object) -> dict[str, Any]:
    values: dict[str, Any] = {
        "schema": 1,
        "node": {
            "memory_total_bytes": 8 * GIB,
            "memory_available_bytes": 6 * GIB,
            "headroom_bytes": 512 * MIB,
            "used_pct": 50.0,
            "pressure": {"some_avg10": 1.25, "some_total_us": 62, "full_avg10": 0.5, "full_total_us": 41},
        },
        "daemon": {"state": "running", "pid": 812},
        "kubepods": {
            "cgroup": "kubepods",
            "driver": "cgroupfs",
            "memory_current_bytes": 600 * MIB,
            "memory_used_bytes": 512 * MIB,
            "memory_max_bytes": GIB,
            "pressure": None,
        },
        "totals": status.totals(pods),
        "pods": list(pods),
    }
    return values | changes


def shown(values: dict[str, Any], capsys: Capture) -> list[str]:
    output.console().print(status.text(values, output.console().width, wide=False))
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("default/web-0.a", "default/web-0.a"),
        ("übergröße 鯨", "übergröße 鯨"),
        (HOSTILE, ESCAPED),
        ("\x9b31m", r"\x9b31m"),
        ("\u2028", r"\u2028"),
        ("\ue000", r"\ue000"),
        ("\U000e0001", r"\U000e0001"),
        ("\ud800\udc00", r"\ud800\udc00"),
    ],
    ids=ascii,
)
def test_plain_keeps_what_prints_and_escapes_the_rest(text: str, expected: str) -> None:
    assert printable(text) == expected
    assert printable(text).isprintable()
    printable(text).encode()


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (None, "max"),
        (0, "0.0Mi"),
        (MIB, "1.0Mi"),
        (-MIB, "-1.0Mi"),
        (GIB - 1, "1.00Gi"),
        (GIB - MIB, "1023.0Mi"),
        (10**20, "93132257461.55Gi"),
        (1572864, "1.5Mi"),
    ],
)
def test_memory_is_in_gi_where_it_is_gi(count: int | None, expected: str) -> None:
    assert output.memory(count) == expected


@pytest.mark.parametrize(
    ("cpu_max", "expected"),
    [
        ("max 100000", "none"),
        ("50000 100000", "500m"),
        ("1001 100000", "10m"),
        ("1000 100000", "10m"),
        ("150000 100000", "1500m"),
        ("5000 10000", "500m"),
        ("1000 1000000", "1m"),
        ("5 0", "5000m"),
    ],
)
def test_a_cpu_limit_is_in_millicores(cpu_max: str, expected: str) -> None:
    assert output.cpu_limit(cpu_max) == expected


@pytest.mark.parametrize(
    ("nr_throttled", "nr_periods", "expected"),
    [(0, 0, "-"), (0, 10, "-"), (1, 8, "12%"), (10, 10, "100%"), (1, 1000, "<1%")],
)
def test_the_share_of_throttled_periods_is_in_percent(nr_throttled: int, nr_periods: int, expected: str) -> None:
    assert output.throttled({"nr_throttled": nr_throttled, "nr_periods": nr_periods}) == expected


@pytest.mark.parametrize("state", DaemonState)
def test_the_status_says_whether_a_daemon_runs(state: DaemonState, capsys: Capture) -> None:
    """Without a daemon, all pods may run only because nothing pauses them."""
    line = shown(status_values(daemon={"state": state, "pid": None}), capsys)[2]

    assert line.startswith("daemon    ")
    assert ("not running" in line) == (state is DaemonState.STOPPED)
    assert line.endswith("    running") == (state is DaemonState.RUNNING)


def test_the_status_of_a_node_reads_like_this(capsys: Capture) -> None:
    lines = shown(
        status_values(
            pod_values(),
            pod_values(name=None, namespace=None, memory_max_bytes=None, protected="its name is unknown"),
            pod_values(name="db", namespace="prod", paused=paused_values()),
            pod_values(
                name="job",
                paused=paused_values(mechanism="freeze", written_cpu_max=None, owner="manual", expires_in_s=59.6),
                **{"class": "batch"},
                priority=-5,
            ),
            pod_values(name="late", paused=paused_values(expires_in_s=-5.0), priority=10),
            pod_values(name="over", cpu_max="200000 100000", paused=paused_values(in_force=False)),
            pod_values(name="thawed", paused=paused_values(mechanism="freeze", in_force=False)),
            pod_values(name="bad", memory_current_bytes=None, cpu_max=None, cpu_stat=None, error="malformed cpu.max"),
        ),
        capsys,
    )

    why = "memory use 91.0 % >= upper 90 %"
    assert [re.sub(r"  +", "  ", line) for line in lines] == [
        "node  25.0 % of 8.00Gi used, 512.0Mi headroom",
        "pressure  some 1.25 %, full 0.50 %",
        "daemon  running (pid 812)",
        "kubepods  512.0Mi of 1.00Gi, +88.0Mi cache, kubepods",
        "pods  8: 5 paused, 1 protected, 1 with an error; 700.0Mi used",
        "",
        "POD  QOS  CLASS  MEMORY  LIMIT  CPU LIM  THR  STATE",
        "default/web  Burstable  service  100.0Mi  200.0Mi  none  12%  running",
        (
            "00000001-0000-4000-8000-000000000001  Burstable  service  100.0Mi  max  none  12%  "
            "protected: its name is unknown"
        ),
        (
            "prod/db  Burstable  service  100.0Mi  200.0Mi  500m  12%  "
            f"paused (throttle to 10m, by the daemon) for 3s: {why}"
        ),
        (
            "default/job  Burstable  batch -5  100.0Mi  200.0Mi  500m  12%  "
            f"paused (freeze, by hand) for 3s, 59s left: {why}"
        ),
        (
            "default/late  Burstable  service +10  100.0Mi  200.0Mi  500m  12%  "
            f"paused (throttle to 10m, by the daemon) for 3s, its time is over: {why}"
        ),
        (
            "default/over  Burstable  service  100.0Mi  200.0Mi  2000m  12%  not paused any more: another program "
            f"wrote cpu.max 200000 100000; paused (throttle to 10m) by the daemon for 3s: {why}"
        ),
        (
            "default/thawed  Burstable  service  100.0Mi  200.0Mi  none  12%  not paused any more: another program "
            f"thawed it; paused (freeze and throttle to 10m) by the daemon for 3s: {why}"
        ),
        "default/bad  Burstable  service  ?  200.0Mi  ?  ?  error: malformed cpu.max",
    ]


@pytest.mark.parametrize("width", [60, 80, 99, 100, 110, 200])
def test_a_long_name_leaves_room_for_what_is_said_of_the_pod(width: int, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr(output, "console", lambda: Console(width=width, highlight=False, markup=False))
    pods = [pod_values(namespace=LONGEST_NAMESPACE, name=LONGEST_NAME), pod_values(paused=paused_values())]

    lines = shown(status_values(*pods), capsys)

    assert max(map(len, lines)) <= width
    assert [line for line in lines if line.endswith(" ")] == []
    first = next(line for line in lines if line.startswith(LONGEST_NAMESPACE[:10]))
    numbers = " 200.0Mi none" if width >= 100 else " 200.0Mi"
    assert f" 100.0Mi{numbers} " in " ".join(first.split())
    assert first.endswith(" running")
    folded = "".join(line.split(" ")[0] for line in lines[lines.index(first) :])
    assert f"{LONGEST_NAMESPACE}/{LONGEST_NAME}" in folded


def test_a_node_without_kubepods_and_psi_reads_like_this(capsys: Capture) -> None:
    values = status_values(kubepods=None)
    values["node"]["pressure"] = None

    lines = shown(values, capsys)

    assert lines[1] == "pressure  unknown (psi=0)"
    assert lines[3:] == ["kubepods  none on this node (yet)"]


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(pod_values(namespace=LONGEST_NAMESPACE, name=LONGEST_NAME, error="x" * 180), id="longest-name"),
        pytest.param(pod_values(protected=f"rule 1 ([[pods]] match = '{'a*' * 400}')"), id="long-rule"),
        pytest.param(pod_values(paused=paused_values(reason="because " * 200)), id="long-reason"),
        pytest.param(pod_values(name=HOSTILE, paused=paused_values(reason=HOSTILE)), id="hostile-name-and-reason"),
        pytest.param(pod_values(error=HOSTILE), id="hostile-error"),
    ],
)
def test_each_pod_is_one_whole_line_in_a_pipe(pod: dict[str, Any], capsys: Capture) -> None:
    lines = shown(status_values(pod, pod_values()), capsys)

    assert len(lines) == FIRST + 2
    assert all(line.isprintable() for line in lines)
    label = printable(f"{pod['namespace']}/{pod['name']}")
    assert lines[FIRST].startswith(f"{label} ")
    for text in (pod["error"], pod["protected"], (pod["paused"] or {}).get("reason")):
        # Fails for a cell that was cut with an ellipsis.
        assert printable(text or "").rstrip() in lines[FIRST]


SAMPLE = Sample(5, Headroom(8 * GIB, 6 * GIB, GIB, 950 * MIB), ())
BIG = PodUsage(30 * MIB, pod("big"))
SMALL = PodUsage(10 * MIB, pod("small"))
SAFE = PodUsage(20 * MIB, pod("safe", protected="a rule"))


def columns(capsys: Capture) -> list[str]:
    """Return the printed lines, with two blanks between columns."""
    return [re.sub(r"  +", "  ", line).rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_decision_reads_like_this(capsys: Capture) -> None:
    verdicts = (
        Verdict(SMALL, 1, "would pause (throttle): why"),
        Verdict(SAFE, None, "runs: protected: a rule"),
    )
    explain.print_explain(SAMPLE, verdicts, Config(policy=Policy.WATERMARK), wide=False)

    assert columns(capsys) == [
        "policy watermark: memory 92.8 % used, 74.0Mi of headroom; pauses at 90 %, resumes at 80 %",
        "RANK  POD  QOS  CLASS  MEMORY  VERDICT",
        "  1  default/small  Burstable  service  10.0Mi  would pause (throttle): why",
        "  -  default/safe  Burstable  service  20.0Mi  runs: protected: a rule",
    ]


def test_a_decision_of_the_reserve_policy_shows_its_numbers(capsys: Capture) -> None:
    first = Place(BIG, 40.0 * MIB, 100.0 * MIB, 40.0 * MIB, 64.0 * MIB, Basis.LIMIT, 0.0, runs=True, first=True)
    second = Place(SMALL, math.inf, 50.0 * MIB, 5.0 * MIB, 4.0 * MIB, Basis.GROWTH, 2.5, runs=False)
    verdicts = (
        Verdict(BIG, 1, "runs first", "numbers", first),
        Verdict(SMALL, 2, "would pause (throttle)", "numbers", second),
    )
    explain.print_explain(SAMPLE, verdicts, Config(), wide=False)

    assert columns(capsys) == [
        "policy reserve: memory 92.8 % used, 74.0Mi of headroom, 63.8Mi of it to give away",
        "RANK  POD  QOS  CLASS  MEMORY  CLAIM  RATE/s  DEMAND  AVAILABLE  VERDICT",
        "  1  default/big  Burstable  service  30.0Mi  40.0Mi  100.0Mi  40.0Mi  64.0Mi  runs first",
        "  2  default/small  Burstable  service  10.0Mi  no limit  50.0Mi  5.0Mi  4.0Mi  would pause (throttle)",
    ]
    values = explain.explain_values(SAMPLE, verdicts, Config())
    assert [pod["reserve"] for pod in values["pods"]] == [
        {
            "claim_bytes": 40 * MIB,
            "rate_bytes_per_s": 100 * MIB,
            "demand_bytes": 40 * MIB,
            "available_bytes": 64 * MIB,
            "based_on": "limit",
            "pause_cost_s": 0.0,
            "first": True,
        },
        {
            "claim_bytes": None,
            "rate_bytes_per_s": 50 * MIB,
            "demand_bytes": 5 * MIB,
            "available_bytes": 4 * MIB,
            "based_on": "as much again as it uses, for it has no limit below the node's memory",
            "pause_cost_s": 2.5,
            "first": False,
        },
    ]


def test_each_verdict_is_one_whole_line_in_a_pipe(capsys: Capture) -> None:
    record = PauseRecord(Mechanism.THROTTLE, Owner.MANUAL, HOSTILE, 0, None, CpuMax(None, 100_000), 0, None)
    text = f"stays paused by hand: {HOSTILE} {'because ' * 100}end"
    verdict = Verdict(PodUsage(MIB, pod("web", paused=record)), None, text)
    explain.print_explain(SAMPLE, (verdict,), Config(), wide=False)

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert ESCAPED in lines[2]
    assert lines[2].rstrip().endswith("because end")


def test_findings_are_printed_with_what_to_do_below(capsys: Capture) -> None:
    print_findings(
        [
            Finding("kernel", Level.OK, "6.18.0"),
            Finding("swap", Level.WARN, "[bold]on[/bold]", "turn it off"),
            Finding("xattr", Level.FAIL, f"cannot {HOSTILE} {'x' * 600}", f"write {HOSTILE}"),
        ]
    )

    assert capsys.readouterr().out.splitlines() == [
        "ok   kernel      6.18.0",
        "warn swap        [bold]on[/bold]",
        "                 -> turn it off",
        f"fail xattr       cannot {ESCAPED} {'x' * 600}",
        f"                 -> write {ESCAPED}",
    ]


@pytest.mark.parametrize(("value", "is_set"), [("", False), ("1", True)])
def test_no_color_leaves_colours_out(value: str, is_set: bool, monkeypatch: Patch) -> None:
    monkeypatch.setenv("NO_COLOR", value)

    assert output.console().no_color is is_set
