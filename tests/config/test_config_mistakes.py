"""Errors in configuration text: each is reported with its option, all at once, for any text."""

from __future__ import annotations

import fnmatch

import pytest
from helpers.configs import all_problems, only_message, problems
from hypothesis import given
from hypothesis import strategies as st

from cgpause.config.load import parse_config
from cgpause.config.settings import Config
from cgpause.core.errors import ConfigError

NO_NUMBERS = ['"90"', "true", "[]", "[90]", "{}", "1979-05-27", "nan", "+nan", "inf", "-inf", "''"]
NO_SWITCHES = ["0", "1", '"true"', "[true]"]
WRONG = {
    "watermark.upper_pct": NO_NUMBERS,
    "watermark.batch": [*NO_NUMBERS, "1.0", "1e0", "0.5"],
    "watermark.sacrifice": NO_SWITCHES,
    "protect.static_pods": NO_SWITCHES,
    "mechanism": ['"Throttle"', '""', '"pause"', "1", "true", '["throttle"]', '"throttle "'],
}


@pytest.mark.parametrize(("option", "value"), [(option, value) for option, values in WRONG.items() for value in values])
def test_a_value_of_another_type_is_refused(option: str, value: str) -> None:
    assert problems(f"{option} = {value}\n") == [option]


@pytest.mark.parametrize(
    "glob", ["*/*", "a/b", "kube-system/*", "team-?/*", "*/db-[0-9]", "*/[!a]*", "a/10.0.0.1-pod.x"]
)
def test_a_pod_glob_may_be(glob: str) -> None:
    assert problems(f"[[pods]]\nmatch = '{glob}'\nprotect = true\n") == []


@pytest.mark.parametrize(
    "glob",
    [
        *("", "batch", "a/b/c", "/", "/b", "a/"),  # not one slash between two names
        *("a[/]b", "a/[b", "a/b]", "!a/*", "shop/db-[9-0]"),  # brackets
        *("Batch/*", "a/b ", "a_b/c", "\N{LATIN SMALL LETTER A WITH DIAERESIS}/b"),  # in no Kubernetes name
    ],
)
def test_a_pod_glob_that_matches_no_pod_is_refused(glob: str) -> None:
    assert problems(f"[[pods]]\nmatch = '{glob}'\nprotect = true\n") == ["pods[1].match"]


@given(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True), st.data())
def test_every_kubernetes_name_is_a_glob_that_matches_itself(name: str, data: st.DataObject) -> None:
    pod = data.draw(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,8}[a-z0-9])?", fullmatch=True))
    config = parse_config(f"[[pods]]\nmatch = '{name}/{pod}'\nprotect = true\n", "test.toml")

    assert fnmatch.fnmatchcase(f"{name}/{pod}", config.pods[0].match)


@pytest.mark.parametrize("value", ['"kube-system"', '["a/b"]', '[""]', "[1]", '["Kube"]', "[[]]", "{}"])
def test_namespaces_are_a_list_of_globs(value: str) -> None:
    (key,) = problems(f"[protect]\nnamespaces = {value}\n")

    assert key.startswith("protect.namespaces")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("[[pods]]\n", ["pods[1].match"], id="empty-rule"),
        pytest.param("[[pods]]\nmatch='a/b'\n", ["pods[1].protect"], id="decides-nothing"),
        pytest.param("[[pods]]\nmatch='a/b'\nqos=['Burstable']\n", ["pods[1].protect"], id="only-whom"),
        pytest.param("[[pods]]\nmatch='a/b'\nprotect=1\n", ["pods[1].protect"], id="decides-wrongly"),
        pytest.param("[[pods]]\nmatch='a/b'\nclass='Batch'\n", ["pods[1].class"], id="unknown-class"),
        pytest.param("[[pods]]\nmatch='a/b'\nclass_='batch'\npriority=1\n", ["pods[1].class_"], id="underscore"),
        pytest.param("[[pods]]\nprotect=true\n", ["pods[1].match"], id="no-match"),
        pytest.param("[pods]\nmatch='a/b'\nprotect=true\n", ["pods"], id="section-instead-of-list"),
        pytest.param("pods = 1\n", ["pods"], id="number"),
        pytest.param("pods = ['a/b']\n", ["pods[1]"], id="list-of-strings"),
        pytest.param(
            "[[pods]]\nmatch='a/b'\nprotect=true\n[[pods]]\nmatch='c/d'\nprotect=true\nqos=['burstable']\n",
            ["pods[2].qos[1]"],
            id="second-rule",
        ),
    ],
)
def test_a_broken_rule_is_reported_with_its_place(text: str, expected: list[str]) -> None:
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
            "policy, mechanism, reserve, watermark, throttle, pause, memory_high, history, "
            "metrics, protect, pods",
            id="section",
        ),
        pytest.param(
            "[protect]\nstatic-pods = true\n",
            'unknown option; did you mean "static_pods"?; known here: all, namespaces, static_pods, guaranteed, '
            "own_word",
            id="hyphen",
        ),
        pytest.param("[reserve]\nzzz = true\n", "unknown option; known here: sacrifice", id="nothing-near"),
        pytest.param("upper_pct = 1\n", "unknown option here; it belongs in [watermark]", id="no-section"),
        pytest.param(
            "[watermark]\nmechanism = 'freeze'\n",
            "unknown option here; it belongs in the part above all sections",
            id="below-a-section",
        ),
        pytest.param("[protect]\nmatch = 'a/b'\n", "unknown option here; it belongs in [[pods]]", id="rule"),
        pytest.param(
            'mechanism = "Freeze"\n',
            'found "Freeze"; allowed: "auto" or "throttle" or "freeze"; did you mean "freeze"?',
            id="choice",
        ),
        pytest.param(
            "[throttle]\nquota_us = 999\n", "found 999; allowed: a whole number from 1000 to 1000000", id="value"
        ),
        pytest.param("watermark = 3\n", "found 3; allowed: a section with options in it", id="value-for-a-section"),
        pytest.param(
            "[[pods]]\nmatch = 'a/b'\n",
            "the rule decides nothing; allowed: at least one of protect, class, priority and own_word",
            id="rule-without-effect",
        ),
        pytest.param(
            "[watermark]\nlower_pct = 95\n",
            "found lower_pct = 95.0 and upper_pct = 90.0; allowed: lower_pct below upper_pct; "
            "upper_pct is not set here",
            id="conflict-with-a-default",
        ),
    ],
)
def test_a_message_says_what_was_found_and_what_is_allowed(text: str, message: str) -> None:
    assert message == only_message(text)


def test_all_problems_are_reported_at_once_each_with_its_option() -> None:
    text = """
        polcy = "watermark"
        mechanism = 3
        [watermark]
        upper_pct = 101
        patience = true
        note = "batch = 0"
        batch = 0
        [throttle]
        quota_us = 100
        period_us = 1_000_000
        [protect]
        namespaces = ["fine", "Not Fine", 7]
        [[pods]]
        match = "a/b"
        protect = true
        [[pods]]
        match = "nowhere"
        qos = ["Burstable", "Best"]
        protect = "yes"
        [pause]
        settle_s = -1
    """

    said = """
        polcy mechanism watermark.note watermark.upper_pct watermark.patience watermark.batch throttle.period_us
        throttle.quota_us pause.settle_s protect.namespaces[2] protect.namespaces[3] pods[2].match pods[2].protect
        pods[2].qos[2]
    """
    assert problems(text) == said.split()


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        pytest.param("a = \n", 1, "Invalid value", id="no-value"),
        pytest.param("\n\npolicy = watermark\n", 3, "strings need double quotes", id="no-quotes"),
        pytest.param("[watermark\n", 1, "Expected", id="open-header"),
        pytest.param("\n[protect]\nnamespaces = [\n'a',\n", 4, "Invalid value", id="list-never-closed"),
        pytest.param("policy = 'watermark'\n\npolicy = 'watermark'\n", 3, "set twice", id="duplicate-option"),
        pytest.param("[pause]\n[metrics]\n[pause]\n", 3, "opened twice", id="duplicate-section"),
        pytest.param("pause.settle_s = 1\n[pause]\n", 2, "opened twice", id="dotted-then-section"),
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


@pytest.mark.parametrize("text", ["x = " + "\n".join(["[" * 500] * 10), "x = " + "{a=" * 250], ids=["list", "table"])
def test_nesting_without_end_is_refused_without_a_traceback(text: str) -> None:
    (problem,) = all_problems(text)

    assert problem.message


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


@pytest.mark.parametrize(("name", "message"), Config.GONE.items(), ids=list(Config.GONE))
def test_what_earlier_versions_had_is_refused_with_what_became_of_it(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(f"{name} = {{}}\n", "test.toml")

    assert str(caught.value) == f"test.toml: {name}: {message}"
