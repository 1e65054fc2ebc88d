"""What configuration text means, what is refused and where, and that everything written from the code is current."""

from __future__ import annotations

import dataclasses
import errno
import fnmatch
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from generated import current
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpause.config import (
    Config,
    HistoryConfig,
    HoldConfig,
    MemoryHighConfig,
    MetricsConfig,
    PodClass,
    PodRule,
    Policy,
    ProtectConfig,
    PsiConfig,
    PsiTriggerConfig,
    ReserveConfig,
    SamplingConfig,
    ThrottleConfig,
    TraceConfig,
    WatermarkConfig,
    load_config,
    options_table,
    parse_config,
    render_config,
)
from cgpause.errors import ConfigError, ConfigProblem
from cgpause.model import CpuMax, Mechanism, PsiKind, PsiTrigger, QosClass
from cgpause.options import walk
from cgpause.tomllines import key_lines, line_of

REPO = Path(__file__).parents[1]
EXAMPLE = REPO / "systemd" / "config.toml"
MANUAL = REPO / "docs" / "configuration.md"


def problems(text: str) -> list[tuple[int | None, str]]:
    """Line and key of each problem in a text; none if it is a valid configuration."""
    return [(p.line, p.key) for p in all_problems(text)]


def all_problems(text: str) -> tuple[ConfigProblem, ...]:
    try:
        parse_config(text, "test.toml")
    except ConfigError as e:
        return e.problems
    return ()


def only_message(text: str) -> str:
    (problem,) = all_problems(text)
    return problem.message


# --- Values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "\n", "# nothing set\n", "\r\n\r\n", "[watermark]\n", "\ufeff"])
def test_text_that_sets_nothing_means_the_defaults(text: str) -> None:
    assert Config() == parse_config(text, "test.toml")


def test_the_defaults_are_the_documented_ones() -> None:
    assert Config() == Config(
        policy=Policy.RESERVE,
        mechanism=Mechanism.THROTTLE,
        reserve=ReserveConfig(
            margin_pct=1.0, horizon_s=10.0, ahead_s=0.5, resume_pct=2.0, freeze_growing=True, sacrifice=False
        ),
        watermark=WatermarkConfig(upper_pct=90.0, lower_pct=80.0, interval_s=1.0, patience=3, batch=2, sacrifice=True),
        throttle=ThrottleConfig(quota_us=1001, period_us=100_000),
        hold=HoldConfig(max_pause_s=9.0, batch_max_pause_s=600.0, min_run_s=12.0, starting_s=30.0, settle_s=5.0),
        sampling=SamplingConfig(fast_ms=50, slow_s=2.0),
        psi=PsiConfig(
            node=PsiTriggerConfig(kind=PsiKind.SOME, stall_us=100_000, window_us=1_000_000),
            kubepods=PsiTriggerConfig(kind=PsiKind.SOME, stall_us=50_000, window_us=500_000),
        ),
        memory_high=MemoryHighConfig(enabled=True, airbag_pct=99.0, sleep_s=30.0),
        history=HistoryConfig(max_mib=16),
        metrics=MetricsConfig(publish=False, interval_s=5.0, max_pods=100),
        trace=TraceConfig(record=False, interval_s=1.0, max_mib=64, hash_names=False),
        protect=ProtectConfig(namespaces=("kube-system",), static_pods=True, guaranteed=True, unnamed=True),
        pods=(),
    )


def test_a_file_sets_what_it_names_and_leaves_the_rest() -> None:
    text = """
        mechanism = "freeze"
        [watermark]
        upper_pct = 95
        [psi.kubepods]
        window_us = 600_000
        [protect]
        namespaces = []
        [[pods]]
        match = "batch/*"
        protect = false
        [[pods]]
        match = "*/db-[0-9]"
        qos = ["Burstable", "BestEffort"]
        protect = true
    """

    parsed = parse_config(text, "test.toml")

    default = Config()
    assert parsed == dataclasses.replace(
        default,
        mechanism=Mechanism.FREEZE,
        watermark=dataclasses.replace(default.watermark, upper_pct=95.0),
        psi=dataclasses.replace(default.psi, kubepods=PsiTriggerConfig(stall_us=50_000, window_us=600_000)),
        protect=dataclasses.replace(default.protect, namespaces=()),
        pods=(
            PodRule(match="batch/*", protect=False),
            PodRule(match="*/db-[0-9]", protect=True, qos=(QosClass.BURSTABLE, QosClass.BEST_EFFORT)),
        ),
    )


def test_a_rule_sets_what_it_names_and_decides_nothing_else() -> None:
    text = """
        [[pods]]
        match = "a/b"
        class = "auto"
        [[pods]]
        match = "a/c"
        class = "service"
        priority = -5
        [[pods]]
        match = "a/d"
        priority = 0
    """

    assert parse_config(text, "test.toml").pods == (
        PodRule(match="a/b", protect=None, class_=PodClass.AUTO, priority=None),
        PodRule(match="a/c", protect=None, class_=PodClass.SERVICE, priority=-5),
        PodRule(match="a/d", protect=None, class_=None, priority=0),
    )


def test_values_have_the_types_their_fields_declare() -> None:
    parsed = parse_config('policy = "watermark"\n[watermark]\nupper_pct = 90\n[psi.node]\nkind = "full"', "test.toml")

    assert type(parsed.policy) is Policy
    assert type(parsed.watermark.upper_pct) is float
    assert type(parsed.psi.node.kind) is PsiKind


def test_sections_give_the_kernel_values_they_stand_for() -> None:
    assert CpuMax(2000, 50_000) == ThrottleConfig(quota_us=2000, period_us=50_000).cpu_max
    assert PsiTrigger(PsiKind.FULL, 7, 500_000) == PsiTriggerConfig(PsiKind.FULL, 7, 500_000).trigger


def test_inline_tables_and_dotted_keys_mean_the_same_as_sections() -> None:
    sections = "[watermark]\nbatch = 5\n[[pods]]\nmatch = 'a/b'\nprotect = true\n"
    inline = "watermark.batch = 5\npods = [{match = 'a/b', protect = true}]\n"

    assert parse_config(sections, "test.toml") == parse_config(inline, "test.toml")


# --- Limits -----------------------------------------------------------------------------------------------------------

LIMITS: list[tuple[str, str, list[str], list[str]]] = [
    # section, option, allowed at and just inside the limits, refused just outside
    ("reserve", "margin_pct", ["0", "50"], ["-0.001", "50.001"]),
    ("reserve", "horizon_s", ["0.1", "3600"], ["0.099", "3600.001"]),
    ("reserve", "ahead_s", ["0", "3600"], ["-0.001", "3600.001"]),
    ("reserve", "resume_pct", ["0", "50"], ["-0.001", "50.001"]),
    ("watermark", "upper_pct", ["80.001", "100", "100.0"], ["0", "0.0", "-1", "100.001", "101"]),
    ("watermark", "lower_pct", ["0", "-0.0", "0.001", "89.999"], ["-0.001", "90", "100", "100.001"]),
    ("watermark", "interval_s", ["0.05", "60"], ["0.0499", "60.001", "0", "-1"]),
    ("watermark", "patience", ["1", "1000"], ["0", "1001", "-1"]),
    ("watermark", "batch", ["1", "1000"], ["0", "1001", "-1"]),
    ("throttle", "quota_us", ["1000", "1_000_000"], ["999", "0", "-1", "1_000_001"]),
    ("throttle", "period_us", ["1000", "100_000"], ["999", "100_101", "1_000_001"]),
    ("hold", "max_pause_s", ["1", "86400"], ["0.999", "86400.001"]),
    ("hold", "batch_max_pause_s", ["1", "86400"], ["0.999", "86400.001"]),
    ("hold", "min_run_s", ["0", "86400"], ["-0.001", "86400.001"]),
    ("hold", "starting_s", ["0", "3600"], ["-0.001", "3600.001"]),
    ("hold", "settle_s", ["0", "3600"], ["-0.001", "3600.001"]),
    ("sampling", "fast_ms", ["5", "1000"], ["4", "1001"]),
    ("sampling", "slow_s", ["1", "60"], ["0.999", "60.001"]),
    ("psi.node", "stall_us", ["1", "1_000_000"], ["0", "1_000_001", "10_000_001"]),
    ("psi.node", "window_us", ["500_000", "10_000_000"], ["499_999", "10_000_001"]),
    ("psi.kubepods", "stall_us", ["1", "500_000"], ["0", "500_001", "10_000_001"]),
    ("psi.kubepods", "window_us", ["500_000", "10_000_000"], ["499_999", "10_000_001"]),
    ("memory_high", "airbag_pct", ["80", "100"], ["79.999", "100.001"]),
    ("memory_high", "sleep_s", ["1", "600"], ["0.999", "600.001"]),
    ("history", "max_mib", ["0", "1024"], ["-1", "1025", "0.5"]),
    ("metrics", "interval_s", ["1", "60"], ["0.9", "60.1"]),
    ("metrics", "max_pods", ["0", "1000"], ["-1", "1001", "0.5"]),
    ("trace", "interval_s", ["0.1", "60"], ["0.09", "60.1"]),
    ("trace", "max_mib", ["1", "65536"], ["0", "65537", "1.5"]),
]


@pytest.mark.parametrize(
    ("section", "option", "value"),
    [
        pytest.param(section, option, value, id=f"{section}.{option}={value}")
        for section, option, allowed, _ in LIMITS
        for value in allowed
    ],
)
def test_a_value_at_or_inside_a_limit_is_taken(section: str, option: str, value: str) -> None:
    parsed: Any = parse_config(f"[{section}]\n{option} = {value}\n", "test.toml")
    for name in [*section.split("."), option]:
        parsed = getattr(parsed, name)

    assert float(value) == parsed


@pytest.mark.parametrize(
    ("section", "option", "value"),
    [
        pytest.param(section, option, value, id=f"{section}.{option}={value}")
        for section, option, _, refused in LIMITS
        for value in refused
    ],
)
def test_a_value_outside_a_limit_is_refused_at_its_line(section: str, option: str, value: str) -> None:
    assert [(2, f"{section}.{option}")] == problems(f"[{section}]\n{option} = {value}\n")


@pytest.mark.parametrize(
    ("value", "accepted"),
    [("-1000", True), ("1000", True), ("0", True), ("-1001", False), ("1001", False), ("1.0", False), ("true", False)],
)
def test_a_priority_is_a_whole_number_up_to_1000_either_way(value: str, accepted: bool) -> None:  # noqa: FBT001
    found = problems(f"[[pods]]\nmatch = 'a/b'\npriority = {value}\n")

    assert ([] if accepted else [(3, "pods[1].priority")]) == found


def test_every_number_has_its_limits_tested() -> None:
    numbers = {path for path, entry in walk(Config, Config()) if entry.kind in (int, float)}

    tested = {(*section.split("."), option) for section, option, _, _ in LIMITS}
    assert numbers == tested | {("pods", "priority")}


@pytest.mark.parametrize(
    ("quota_us", "period_us", "accepted"),
    [
        pytest.param(9_999, 1_000_000, False, id="just-below-1-percent"),
        pytest.param(10_000, 1_000_000, True, id="at-1-percent"),
        pytest.param(10_001, 1_000_000, True, id="just-above-1-percent"),
        pytest.param(1_000, 100_001, False, id="a-hair-below-1-percent"),
        pytest.param(1_000, 1_000, True, id="shortest-period"),
        pytest.param(999, 1_000, False, id="below-what-the-kernel-takes"),
    ],
)
def test_a_quota_is_at_least_1_percent_of_its_period(quota_us: int, period_us: int, accepted: bool) -> None:  # noqa: FBT001
    found = problems(f"[throttle]\nquota_us = {quota_us}\nperiod_us = {period_us}\n")

    assert ([] if accepted else [(2, "throttle.quota_us")]) == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("lower_pct = 60\nupper_pct = 59.9", [(2, "watermark.lower_pct")], id="both-set"),
        pytest.param("upper_pct = 70\nlower_pct = 70", [(3, "watermark.lower_pct")], id="equal"),
        pytest.param("batch = 1\nlower_pct = 90", [(3, "watermark.lower_pct")], id="lower-meets-default-upper"),
        pytest.param("batch = 1\nupper_pct = 80", [(3, "watermark.upper_pct")], id="upper-meets-default-lower"),
        pytest.param("lower_pct = 95\nupper_pct = true", [(3, "watermark.upper_pct")], id="one-is-wrong-anyway"),
    ],
)
def test_crossed_marks_are_one_problem_at_the_line_that_set_them(text: str, expected: list[tuple[int, str]]) -> None:
    assert expected == problems(f"[watermark]\n{text}\n")


def test_a_conflict_says_which_side_is_not_in_the_file() -> None:
    message = only_message("[watermark]\nlower_pct = 95\n")

    assert (
        message == "found lower_pct = 95.0 and upper_pct = 90.0; allowed: lower_pct below upper_pct; "
        "upper_pct is not set here"
    )


# --- Types and names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ['"90"', "true", "[]", "[90]", "{}", "1979-05-27", "nan", "+nan", "inf", "-inf", "''"]
)
@pytest.mark.parametrize("option", ["watermark.upper_pct", "watermark.batch", "psi.node.stall_us"])
def test_a_number_is_nothing_else(option: str, value: str) -> None:
    assert [(1, option)] == problems(f"{option} = {value}\n")


@pytest.mark.parametrize("value", ["1.0", "1e0", "0.5"])
def test_a_whole_number_is_no_float(value: str) -> None:
    assert problems(f"watermark.patience = {value}\n") == [(1, "watermark.patience")]


@pytest.mark.parametrize("value", ["0", "1", '"true"', "[true]"])
@pytest.mark.parametrize("option", ["watermark.sacrifice", "protect.static_pods"])
def test_a_switch_is_true_or_false_only(option: str, value: str) -> None:
    assert [(1, option)] == problems(f"{option} = {value}\n")


@pytest.mark.parametrize("value", ['"Throttle"', '""', '"pause"', "1", "true", '["throttle"]', '"throttle "'])
def test_a_choice_is_one_of_its_names(value: str) -> None:
    assert problems(f"mechanism = {value}\n") == [(1, "mechanism")]


@pytest.mark.parametrize(
    "glob",
    ["*/*", "a/b", "kube-system/*", "team-?/*", "*/db-[0-9]", "*/[!a]*", "a/10.0.0.1-pod.x"],
)
def test_a_pod_glob_may_be(glob: str) -> None:
    assert problems(f"[[pods]]\nmatch = '{glob}'\nprotect = true\n") == []


@pytest.mark.parametrize(
    "glob",
    [
        pytest.param("", id="empty"),
        pytest.param("batch", id="no-slash"),
        pytest.param("a/b/c", id="two-slashes"),
        pytest.param("/", id="slash-only"),
        pytest.param("/b", id="no-namespace"),
        pytest.param("a/", id="no-name"),
        pytest.param("a[/]b", id="slash-in-brackets"),
        pytest.param("Batch/*", id="upper-case"),
        pytest.param("!a/*", id="negation-outside-brackets"),
        pytest.param("a/[b", id="open-bracket"),
        pytest.param("a/b]", id="close-bracket"),
        pytest.param("a/b ", id="trailing-space"),
        pytest.param("a_b/c", id="underscore"),
        pytest.param("ä/b", id="not-ascii"),
    ],
)
def test_a_pod_glob_that_matches_no_pod_is_refused(glob: str) -> None:
    assert problems(f"[[pods]]\nmatch = '{glob}'\nprotect = true\n") == [(2, "pods[1].match")]


@given(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True), st.data())
def test_every_kubernetes_name_is_a_glob_that_matches_itself(name: str, data: st.DataObject) -> None:
    pod = data.draw(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,8}[a-z0-9])?", fullmatch=True))
    config = parse_config(f"[[pods]]\nmatch = '{name}/{pod}'\nprotect = true\n", "test.toml")

    assert fnmatch.fnmatchcase(f"{name}/{pod}", config.pods[0].match)


@pytest.mark.parametrize("value", ['"kube-system"', '["a/b"]', '[""]', "[1]", '["Kube"]', "[[]]", "{}"])
def test_namespaces_are_a_list_of_globs(value: str) -> None:
    ((line, key),) = problems(f"[protect]\nnamespaces = {value}\n")

    assert (line, key.startswith("protect.namespaces")) == (2, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("[[pods]]\n", [(1, "pods[1].match")], id="empty-rule"),
        pytest.param("[[pods]]\nmatch='a/b'\n", [(1, "pods[1].protect")], id="decides-nothing"),
        pytest.param("[[pods]]\nmatch='a/b'\nqos=['Burstable']\n", [(1, "pods[1].protect")], id="only-whom"),
        pytest.param("[[pods]]\nmatch='a/b'\nprotect=1\n", [(3, "pods[1].protect")], id="decides-wrongly"),
        pytest.param("[[pods]]\nmatch='a/b'\nclass='Batch'\n", [(3, "pods[1].class")], id="unknown-class"),
        pytest.param("[[pods]]\nmatch='a/b'\nclass_='batch'\npriority=1\n", [(3, "pods[1].class_")], id="underscore"),
        pytest.param("[[pods]]\nprotect=true\n", [(1, "pods[1].match")], id="no-match"),
        pytest.param("[pods]\nmatch='a/b'\nprotect=true\n", [(1, "pods")], id="section-instead-of-list"),
        pytest.param("pods = 1\n", [(1, "pods")], id="number"),
        pytest.param("pods = ['a/b']\n", [(1, "pods[1]")], id="list-of-strings"),
        pytest.param(
            "[[pods]]\nmatch='a/b'\nprotect=true\n[[pods]]\nmatch='c/d'\nprotect=true\nqos=['burstable']\n",
            [(7, "pods[2].qos[1]")],
            id="second-rule",
        ),
    ],
)
def test_a_broken_rule_is_reported_at_its_own_line(text: str, expected: list[tuple[int, str]]) -> None:
    assert expected == problems(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "[watermark]\nuper_pct = 1\n",
            'unknown option; did you mean "upper_pct"?; known here: '
            "upper_pct, lower_pct, interval_s, patience, batch, sacrifice",
            id="option",
        ),
        pytest.param(
            "[watermrk]\n",
            'unknown section; did you mean "watermark"?; known here: '
            "policy, mechanism, reserve, watermark, throttle, hold, sampling, memory_high, psi, history, "
            "metrics, trace, protect, pods",
            id="section",
        ),
        pytest.param(
            "[protect]\nstatic-pods = true\n",
            'unknown option; did you mean "static_pods"?; known here: namespaces, static_pods, guaranteed, unnamed',
            id="hyphen",
        ),
        pytest.param("[psi]\nzzz = true\n", "unknown option; known here: node, kubepods", id="nothing-near"),
        pytest.param("upper_pct = 1\n", "unknown option here; it belongs in [watermark]", id="no-section"),
        pytest.param(
            "[watermark]\nmechanism = 'freeze'\n",
            "unknown option here; it belongs in the part above all sections",
            id="below-a-section",
        ),
        pytest.param(
            "[psi]\nwindow_us = 500000\n",
            "unknown option here; it belongs in [psi.node] or [psi.kubepods]",
            id="one-level-up",
        ),
        pytest.param("[protect]\nmatch = 'a/b'\n", "unknown option here; it belongs in [[pods]]", id="rule"),
        pytest.param("[node]\n", "unknown section here; it belongs in [psi]", id="inner-section"),
        pytest.param(
            'mechanism = "Freeze"\n',
            'found "Freeze"; allowed: "throttle" or "freeze"; did you mean "freeze"?',
            id="choice",
        ),
        pytest.param(
            "[throttle]\nquota_us = 999\n",
            "found 999; allowed: a whole number from 1000 to 1000000, at least 1 % of period_us",
            id="value",
        ),
        pytest.param("watermark = 3\n", "found 3; allowed: a section with options in it", id="value-for-a-section"),
        pytest.param(
            "[[pods]]\nmatch = 'a/b'\n",
            "the rule decides nothing; allowed: at least one of protect, class and priority",
            id="rule-without-effect",
        ),
        pytest.param(
            "[[pods]]\nmatch = 'a/b'\nclass = 'servce'\n",
            'found "servce"; allowed: "auto" or "batch" or "service"; did you mean "service"?',
            id="class",
        ),
        pytest.param("class = 'batch'\n", "unknown option here; it belongs in [[pods]]", id="class-outside-a-rule"),
    ],
)
def test_a_message_says_what_was_found_and_what_is_allowed(text: str, message: str) -> None:
    assert message == only_message(text)


def test_all_problems_are_reported_at_once_each_with_its_line() -> None:
    text = """\
polcy = "watermark"
mechanism = 3

[watermark]
upper_pct = 101  # too much
patience = true
note = '''
batch = 0
[throttle]
'''
batch = 0

[throttle]
quota_us = 1000
period_us = 1_000_000

[protect]
namespaces = [
    "fine",  # ]
    "Not Fine",

    7,
]

[[pods]]
match = "a/b"
protect = true

[[pods]]
match = "nowhere"
qos = ["Burstable",
       "Best"]
protect = "yes"

[psi]
kubepods = { kind = "some", stall_us = 600_000 }

[psi.node]
"window_us" = 1
"""

    assert problems(text) == [
        (1, "polcy"),
        (2, "mechanism"),
        (5, "watermark.upper_pct"),
        (6, "watermark.patience"),
        (7, "watermark.note"),
        (11, "watermark.batch"),
        (14, "throttle.quota_us"),
        (20, "protect.namespaces[2]"),
        (22, "protect.namespaces[3]"),
        (30, "pods[2].match"),
        (32, "pods[2].qos[2]"),
        (33, "pods[2].protect"),
        (36, "psi.kubepods.stall_us"),
        (39, "psi.node.window_us"),
    ]


def test_an_error_prints_one_line_per_problem_with_source_and_line() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config("x = 1\n[watermark]\nbatch = 0\n", "/etc/x.toml")

    assert [line.split(": ")[:2] for line in str(caught.value).splitlines()] == [
        ["/etc/x.toml:1", "x"],
        ["/etc/x.toml:3", "watermark.batch"],
    ]


# --- Hostile text -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        pytest.param("a = \n", 1, "Invalid value", id="no-value"),
        pytest.param("\n\npolicy = watermark\n", 3, "strings need double quotes", id="no-quotes"),
        pytest.param("[watermark\n", 1, "Expected", id="open-header"),
        pytest.param("\n[protect]\nnamespaces = [\n'a',\n", 4, "Invalid value", id="list-never-closed"),
        pytest.param("policy = 'watermark'\n\npolicy = 'watermark'\n", 3, "set twice", id="duplicate-option"),
        pytest.param("[hold]\n[psi]\n[hold]\n", 3, "opened twice", id="duplicate-section"),
        pytest.param("hold.settle_s = 1\n[hold]\n", 2, "opened twice", id="dotted-then-section"),
        pytest.param("[[pods]]\n[pods]\n", 2, "opened twice", id="array-then-section"),
        pytest.param("\nx = 1\x00\n", 2, "Expected newline", id="nul"),
        pytest.param("['x (at line 9']\n['x (at line 9']\n", 2, "opened twice", id="misleading-name"),
        pytest.param("\x7fELF\x02\x01\x01\n", 1, "Invalid statement", id="binary"),
        pytest.param("x = 1\ry = 2\n", 1, "Expected newline", id="lone-carriage-return"),
        pytest.param("x = " + "9" * 1000 + "_" + "9" * 10 + "\n[", 2, "", id="ends-in-a-header"),
        pytest.param("\ufeff\ufeff", 1, "Invalid statement", id="two-byte-order-marks"),
        pytest.param("# " + "x" * 1023, 1, "1025 characters", id="line-just-too-long"),
        pytest.param("\nx" + ".a" * 500_000 + " = 1", 2, "allowed: up to 1024", id="deep-dotted-key"),
    ],
)
def test_text_that_is_not_toml_is_one_problem_at_its_line(text: str, line: int, part: str) -> None:
    (problem,) = all_problems(text)

    assert line == problem.line
    assert part in problem.message
    assert "\n" not in problem.message


def test_a_line_of_the_longest_length_is_read() -> None:
    assert Config() == parse_config("# " + "x" * 1022, "test.toml")


@pytest.mark.parametrize("opening", ["[", "{a="])
def test_nesting_without_end_is_refused_without_a_traceback(opening: str) -> None:
    text = "x = " + "\n".join(["[" * 500] * 10) if opening == "[" else "x = " + opening * 250
    (problem,) = all_problems(text)

    assert problem.message


def test_nesting_deeper_than_any_option_has_a_line_all_the_same() -> None:
    assert problems("\nx = " + "[" * 60 + "1, {a = '['}" + "]" * 60 + "\n") == [(2, "x")]


@pytest.mark.parametrize("digits", [20, 400, 1000])
@pytest.mark.parametrize("base", ["", "0x"])
@pytest.mark.parametrize("option", ["watermark.upper_pct", "watermark.batch", "mechanism"])
def test_a_huge_number_is_refused_in_a_short_message(option: str, base: str, digits: int) -> None:
    assert "found a number of more than 64 bits" in only_message(f"{option} = {base}{'9' * digits}\n")


def test_what_a_file_says_cannot_write_to_the_terminal_unescaped() -> None:
    text = '"\\u001b[2J\\n" = 1\n[watermark]\nbatch = "\\u001b]0;x\\u0007\\r"\nbatch2 = "' + "y" * 900 + '"\n'

    with pytest.raises(ConfigError) as caught:
        parse_config(text, "test.toml")

    lines = str(caught.value).split("\n")
    assert len(lines) == 3
    assert all(line.isprintable() and len(line) < 300 for line in lines)


def test_windows_line_ends_count_like_others() -> None:
    assert problems("\ufeff# x\r\n\r\n[watermark]\r\nbatch = 0\r\n") == [(4, "watermark.batch")]


def test_line_ends_that_are_none_in_toml_do_not_count() -> None:
    assert problems("# \u2028 \u2029 \x85\nwatermark.batch = 0\n") == [(2, "watermark.batch")]


def test_many_mistakes_are_found_in_reasonable_time() -> None:
    start = time.process_time()

    found = problems("[[pods]]\nmatch = 'a/b'\nprotect = 3\n" * 20_000)

    assert found[-1] == (60_000, "pods[20000].protect")
    assert time.process_time() - start < 20  # measured 1 s; squared growth would take hours


@given(st.text() | st.text(alphabet="[]{}=.,'\"\\#\n ab1"))
def test_any_text_is_either_a_configuration_or_a_config_error(text: str) -> None:
    for problem in all_problems(text):
        assert problem.line is None or 1 <= problem.line <= text.count("\n") + 1


# --- Files ------------------------------------------------------------------------------------------------------------


def file_problem(path: str, *, must_exist: bool = True) -> ConfigProblem:
    with pytest.raises(ConfigError) as caught:
        load_config(path, must_exist=must_exist)
    assert path == caught.value.source
    (problem,) = caught.value.problems
    return problem


def test_a_file_is_read_as_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes("\ufeff# für alle\r\n[watermark]\r\nbatch = 7\r\n".encode())

    assert load_config(str(path), must_exist=True).watermark.batch == 7


def test_a_missing_file_means_the_defaults_unless_it_must_exist(tmp_path: Path) -> None:
    path = str(tmp_path / "config.toml")

    assert Config() == load_config(path, must_exist=False)
    assert ConfigProblem(None, "", "cannot be read: No such file or directory") == file_problem(path)


def test_a_link_to_nothing_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.symlink_to(tmp_path / "gone.toml")

    assert "No such file" in file_problem(str(path), must_exist=False).message


@pytest.mark.parametrize("must_exist", [True, False])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, must_exist: bool) -> None:  # noqa: FBT001
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    file = tmp_path / "file"
    file.touch()
    loop = tmp_path / "loop"
    loop.symlink_to(loop)

    assert "is a directory" in file_problem(str(tmp_path), must_exist=must_exist).message
    assert "not a regular file" in file_problem(str(fifo), must_exist=must_exist).message
    assert "not a regular file" in file_problem("/dev/zero", must_exist=must_exist).message
    assert "Not a directory" in file_problem(f"{file}/config.toml", must_exist=must_exist).message
    assert "Too many levels" in file_problem(str(loop), must_exist=must_exist).message


def test_a_file_we_may_not_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the refusal is acted."""

    def refuse(path: str, *_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "open", refuse)

    assert file_problem(str(tmp_path / "x"), must_exist=False).message == "cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("data", "line", "part"),
    [
        pytest.param(b"# ok\n# \xff\n", 2, "0xff", id="latin-1"),
        pytest.param("batch = 1\n".encode("utf-16"), 1, "not UTF-8", id="utf-16"),
        pytest.param(b"# \xc3", 1, "0xc3", id="truncated"),
        pytest.param(b"# \xed\xa0\x80", 1, "not UTF-8", id="surrogate"),
        pytest.param(b"\x7fELF\x00\xf0\xf1", 1, "0xf0", id="binary"),
    ],
)
def test_a_file_that_is_not_utf_8_is_an_error_at_its_line(tmp_path: Path, data: bytes, line: int, part: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(data)

    problem = file_problem(str(path))

    assert line == problem.line
    assert part in problem.message


@pytest.mark.parametrize(
    ("excess", "accepted"), [pytest.param(0, True, id="at-limit"), pytest.param(1, False, id="just-above")]
)
def test_a_file_has_at_most_1_mib(tmp_path: Path, excess: int, accepted: bool) -> None:  # noqa: FBT001
    path = tmp_path / "config.toml"
    path.write_bytes(b"#\n" * (512 * 1024) + b"\n" * excess)

    if accepted:
        assert Config() == load_config(str(path), must_exist=True)
    else:
        assert file_problem(str(path)).message == "is larger than 1024 KiB, so it is no configuration"


# --- Writing ----------------------------------------------------------------------------------------------------------


def floats(low: float, high: float, *, above: bool = False) -> st.SearchStrategy[float]:
    return st.floats(low, high, exclude_min=above, allow_nan=False)


GLOBS = st.from_regex(r"([a-z0-9.*?-]|\[!?[a-z0-9.-]{1,3}\]){1,6}", fullmatch=True)


@st.composite
def watermarks(draw: st.DrawFn) -> WatermarkConfig:
    upper = draw(floats(0, 100, above=True))
    return WatermarkConfig(
        upper_pct=upper,
        lower_pct=draw(st.floats(0, upper, exclude_max=True)),
        interval_s=draw(floats(0.05, 60)),
        patience=draw(st.integers(1, 1000)),
        batch=draw(st.integers(1, 1000)),
        sacrifice=draw(st.booleans()),
    )


@st.composite
def throttles(draw: st.DrawFn) -> ThrottleConfig:
    period = draw(st.integers(1000, 1_000_000))
    return ThrottleConfig(quota_us=draw(st.integers(max(1000, -(-period // 100)), 1_000_000)), period_us=period)


@st.composite
def triggers(draw: st.DrawFn) -> PsiTriggerConfig:
    window = draw(st.integers(500_000, 10_000_000))
    return PsiTriggerConfig(draw(st.sampled_from(PsiKind)), draw(st.integers(1, window)), window)


CONFIGS = st.builds(
    Config,
    policy=st.sampled_from(Policy),
    mechanism=st.sampled_from(Mechanism),
    reserve=st.builds(
        ReserveConfig,
        margin_pct=floats(0, 50),
        horizon_s=floats(0.1, 3600),
        ahead_s=floats(0, 3600),
        resume_pct=floats(0, 50),
        freeze_growing=st.booleans(),
        sacrifice=st.booleans(),
    ),
    watermark=watermarks(),
    throttle=throttles(),
    hold=st.builds(
        HoldConfig,
        max_pause_s=floats(1, 86400),
        batch_max_pause_s=floats(1, 86400),
        min_run_s=floats(0, 86400),
        starting_s=floats(0, 3600),
        settle_s=floats(0, 3600),
    ),
    sampling=st.builds(SamplingConfig, fast_ms=st.integers(5, 1000), slow_s=floats(1, 60)),
    psi=st.builds(PsiConfig, node=triggers(), kubepods=triggers()),
    memory_high=st.builds(MemoryHighConfig, enabled=st.booleans(), airbag_pct=floats(80, 100), sleep_s=floats(1, 600)),
    protect=st.builds(
        ProtectConfig,
        namespaces=st.lists(GLOBS, max_size=3).map(tuple),
        static_pods=st.booleans(),
        guaranteed=st.booleans(),
        unnamed=st.booleans(),
    ),
    pods=st.lists(
        st.builds(
            PodRule,
            match=st.builds("{}/{}".format, GLOBS, GLOBS),
            protect=st.none() | st.booleans(),
            class_=st.none() | st.sampled_from(PodClass),
            priority=st.none() | st.integers(-1000, 1000),
            qos=st.lists(st.sampled_from(QosClass), max_size=4).map(tuple),
        ).filter(lambda rule: not list(rule.conflicts())),
        max_size=3,
    ).map(tuple),
)


@settings(deadline=None)  # a machine at work on something else is no failure
@given(CONFIGS)
def test_what_is_written_reads_back_the_same(config: Config) -> None:
    assert config == parse_config(render_config(config), "rendered")


def test_a_written_file_names_and_explains_every_option() -> None:
    rule = PodRule(match="a/b", protect=True, class_=PodClass.BATCH, priority=1, qos=(QosClass.BURSTABLE,))
    text = render_config(dataclasses.replace(Config(), pods=(rule,)))
    lines = key_lines(text)
    words = " ".join(line.removeprefix("#").strip() for line in text.splitlines())

    for path, entry in walk(Config):
        assert line_of(lines, path if path[0] != "pods" else ("pods", 0, *path[1:])) is not None
        assert " ".join(entry.option.doc.split()) in " ".join(words.split())
        assert entry.option.paper in words
    assert {"Mupper", "Mlower", "interval", "T", "R", "CPUr", "removeContainer"} == {
        entry.option.paper for _, entry in walk(Config) if entry.option.paper
    }
    assert max(map(len, text.splitlines())) <= 100


def test_the_example_file_is_current() -> None:
    assert current(EXAMPLE, render_config(Config())), "run: CGPAUSE_REGENERATE=1 pytest tests/test_config.py"
    assert Config() == load_config(str(EXAMPLE), must_exist=True)


def test_the_table_in_the_manual_is_current() -> None:
    before, marker, rest = MANUAL.read_text(encoding="utf-8").partition("<!-- options: ")
    comment, _, _ = rest.partition("\n")
    _, end, after = rest.partition("<!-- end of options -->")
    expected = f"{before}{marker}{comment}\n\n{options_table()}\n{end}{after}"

    assert current(MANUAL, expected), "run: CGPAUSE_REGENERATE=1 pytest tests/test_config.py"


def test_the_examples_in_the_manual_are_valid() -> None:
    examples = MANUAL.read_text(encoding="utf-8").split("```toml\n")[1:]

    assert examples
    for example in examples:
        assert parse_config(example.partition("```")[0], "manual").pods


def test_reading_a_configuration_imports_nothing_heavy() -> None:
    code = (
        "import sys; from cgpause.config import Config, parse_config; parse_config('policy = \"watermark\"', ''); "
        "print(*sys.modules.keys() & {'typer', 'rich', 'difflib', 'textwrap', 'json', 'cgpause.optionstext'})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPO)

    assert result.stdout == "\n"
