"""Configuration text: its meaning, the refused values with their places, and the files generated from the code."""

from __future__ import annotations

import dataclasses
import fnmatch
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from helpers.configs import problems
from helpers.generated import current
from hypothesis import example, given
from hypothesis import strategies as st

from cgpause.config.load import load_config, parse_config
from cgpause.config.options import Option, all_entries, entries, header
from cgpause.config.render import render_config, toml
from cgpause.config.settings import Config, HowPaused, PodClass, PodRule, ProtectConfig, ThrottleConfig, WatermarkConfig
from cgpause.core.model import CpuMax, Policy, QosClass

REPO = Path(__file__).parents[2]
EXAMPLE = REPO / "systemd" / "config.toml"
MANUAL = REPO / "docs" / "configuration.md"


# --- Values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "\n", "# nothing set\n", "\r\n\r\n", "[watermark]\n", "\ufeff"])
def test_text_that_sets_nothing_means_the_defaults(text: str) -> None:
    assert Config() == parse_config(text, "test.toml")


def test_a_file_sets_what_it_names_and_leaves_the_rest() -> None:
    text = """
        mechanism = "freeze"
        [watermark]
        upper_pct = 95
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

    assert parsed == Config(
        mechanism=HowPaused.FREEZE,
        watermark=WatermarkConfig(upper_pct=95.0),
        protect=ProtectConfig(namespaces=()),
        pods=(
            PodRule(match="batch/*", protect=False),
            PodRule(match="*/db-[0-9]", protect=True, qos=(QosClass.BURSTABLE, QosClass.BEST_EFFORT)),
        ),
    )


def test_values_have_the_types_their_fields_declare() -> None:
    parsed = parse_config('policy = "watermark"\n[watermark]\nupper_pct = 90', "test.toml")

    assert type(parsed.policy) is Policy
    assert type(parsed.watermark.upper_pct) is float


def test_sections_give_the_kernel_values_they_stand_for() -> None:
    assert CpuMax(2000, 100_000) == ThrottleConfig(quota_us=2000).cpu_max
    assert ThrottleConfig(quota_us=2000).cpus == 0.02


# --- Limits -----------------------------------------------------------------------------------------------------------

LIMITS: list[tuple[str, str, list[str], list[str]]] = [
    # section, option, allowed at and just inside the limits, refused just outside
    ("watermark", "upper_pct", ["80.001", "100", "100.0"], ["0", "0.0", "-1", "100.001", "101"]),
    ("watermark", "lower_pct", ["0", "-0.0", "0.001", "89.999"], ["-0.001", "90", "100", "100.001"]),
    ("watermark", "interval_s", ["0.05", "60"], ["0.0499", "60.001", "0", "-1"]),
    ("watermark", "patience", ["1", "1000"], ["0", "1001", "-1"]),
    ("watermark", "batch", ["1", "1000"], ["0", "1001", "-1"]),
    ("throttle", "quota_us", ["1000", "1_000_000"], ["999", "0", "-1", "1_000_001"]),
    ("pause", "max_pause_s", ["1", "86400"], ["0.999", "86400.001"]),
    ("pause", "batch_max_pause_s", ["1", "86400"], ["0.999", "86400.001"]),
    ("pause", "min_run_s", ["0", "86400"], ["-0.001", "86400.001"]),
    ("pause", "settle_s", ["0", "3600"], ["-0.001", "3600.001"]),
    ("history", "max_mib", ["0", "32"], ["-1", "33", "0.5"]),
]


@pytest.mark.parametrize(
    ("section", "option", "value", "taken"),
    [
        pytest.param(section, option, value, value in allowed, id=f"{section}.{option}={value}")
        for section, option, allowed, refused in LIMITS
        for value in (*allowed, *refused)
    ],
)
def test_a_value_is_taken_at_and_inside_its_limits_alone(section: str, option: str, value: str, taken: bool) -> None:
    text = f"[{section}]\n{option} = {value}\n"

    assert problems(text) == ([] if taken else [f"{section}.{option}"])
    if taken:
        assert getattr(getattr(parse_config(text, "test.toml"), section), option) == float(value)


@pytest.mark.parametrize(
    ("value", "accepted"),
    [("-1000", True), ("1000", True), ("0", True), ("-1001", False), ("1001", False), ("1.0", False), ("true", False)],
)
def test_a_priority_is_a_whole_number_up_to_1000_either_way(value: str, accepted: bool) -> None:
    found = problems(f"[[pods]]\nmatch = 'a/b'\npriority = {value}\n")

    assert ([] if accepted else ["pods[1].priority"]) == found


def test_every_number_has_its_limits_tested() -> None:
    numbers = {path for path, entry in all_entries(Config, Config()) if entry.kind in (int, float)}

    tested = {(*section.split("."), option) for section, option, _, _ in LIMITS}
    assert numbers == tested | {("pods", "priority")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("lower_pct = 60\nupper_pct = 59.9", ["watermark.lower_pct"], id="both-set"),
        pytest.param("upper_pct = 70\nlower_pct = 70", ["watermark.lower_pct"], id="equal"),
        pytest.param("batch = 1\nlower_pct = 90", ["watermark.lower_pct"], id="lower-meets-default-upper"),
        pytest.param("batch = 1\nupper_pct = 80", ["watermark.upper_pct"], id="upper-meets-default-lower"),
        pytest.param("lower_pct = 95\nupper_pct = true", ["watermark.upper_pct"], id="one-is-wrong-anyway"),
    ],
)
def test_crossed_marks_are_one_problem_of_the_option_that_is_set(text: str, expected: list[str]) -> None:
    assert expected == problems(f"[watermark]\n{text}\n")


# --- Writing ----------------------------------------------------------------------------------------------------------


GLOBS = st.from_regex(r"([a-z0-9.*?-]|\[!?[a-z0-9.-]{1,3}\]){1,6}", fullmatch=True).filter(
    lambda glob: "(?!)" not in fnmatch.translate(glob)  # an empty range, which is refused
)


def values(kind: Any, option: Option) -> st.SearchStrategy[Any]:  # noqa: ANN401 - a type, as in `options`
    """Return the values that are allowed for an option, or an item of a list."""
    if kind is float:
        low = option.low if option.above is None else option.above
        return st.floats(low, option.high, exclude_min=option.above is not None)
    if kind is int:
        return st.integers(int(option.low or 0), int(option.high or 0))
    return GLOBS if kind is str else st.sampled_from([False, True] if kind is bool else list(kind))


def sections(kind: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401 - a type, as in `options`
    """Return all values of a dataclass of options."""
    fields = {}
    for entry in entries(kind):
        one = sections(entry.section) if entry.section else values(entry.item or entry.kind, entry.option)
        if entry.name == "match":
            one = st.builds("{}/{}".format, GLOBS, GLOBS)
        one = st.lists(one, max_size=3).map(tuple) if entry.item else one
        fields[entry.field] = st.none() | one if entry.default is None else one
    return st.builds(kind, **fields).filter(lambda made: not list(getattr(made, "conflicts", tuple)()))


@given(sections(Config))
@example(Config(protect=ProtectConfig(namespaces=tuple(f"team-{number:020}" for number in range(60)))))  # a long line
def test_what_is_written_reads_back_the_same(config: Config) -> None:
    assert config == parse_config(render_config(config), "rendered")


def test_a_written_file_names_and_explains_every_option() -> None:
    rule = PodRule("a/b", protect=True, class_=PodClass.BATCH, priority=1, own_word=False, qos=(QosClass.BURSTABLE,))
    text = render_config(Config(pods=(rule,)))
    words = " ".join(line.removeprefix("#").strip() for line in text.splitlines())

    for path, entry in all_entries(Config):
        found: Any = tomllib.loads(text)
        for part in path if path[0] != "pods" or len(path) == 1 else ("pods", 0, *path[1:]):
            found = found[part]
        assert " ".join(entry.option.doc.split()) in " ".join(words.split())
        assert entry.option.paper in words
    assert {"Mupper", "Mlower", "interval", "T", "R", "CPUr", "removeContainer"} == {
        entry.option.paper for _, entry in all_entries(Config) if entry.option.paper
    }
    assert max(map(len, text.splitlines())) <= 100


def test_the_example_file_is_current() -> None:
    assert current(EXAMPLE, render_config(Config())), "run: CGPAUSE_REGENERATE=1 pytest tests/config/test_config.py"
    assert Config() == load_config(str(EXAMPLE), must_exist=True)


def options_table() -> str:
    """Return the Markdown table of all options in the manual."""
    rows = [("Option", "Default", "Allowed", "Paper", "Meaning"), ("---", "---", "---", "---", "---")]
    for path, entry in all_entries(Config, Config()):
        if entry.section is None:
            name = f"{header(path[:-1], Config)} {entry.name}" if path[:-1] else entry.name
            default = "(required)" if entry.default is dataclasses.MISSING else f"`{toml(entry.default)}`"
            default = "(unset)" if entry.default is None else default
            unit = f" ({entry.option.unit})" if entry.option.unit else ""
            paper = f"`{entry.option.paper}`" if entry.option.paper else ""
            meaning = f"{entry.option.doc} {entry.option.empty}".rstrip()
            rows.append((f"`{name}`", default, entry.allowed() + unit, paper, meaning))
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


def test_the_table_in_the_manual_is_current() -> None:
    before, marker, rest = MANUAL.read_text(encoding="utf-8").partition("<!-- options: ")
    comment, _, _ = rest.partition("\n")
    _, end, after = rest.partition("<!-- end of options -->")
    expected = f"{before}{marker}{comment}\n\n{options_table()}\n{end}{after}"

    assert current(MANUAL, expected), "run: CGPAUSE_REGENERATE=1 pytest tests/config/test_config.py"


def test_the_examples_in_the_manual_are_valid() -> None:
    examples = MANUAL.read_text(encoding="utf-8").split("```toml\n")[1:]

    assert examples
    for text in examples:
        assert parse_config(text.partition("```")[0], "manual").pods


def test_reading_a_configuration_imports_nothing_heavy() -> None:
    code = (
        "import sys; from cgpause.config.load import Config, parse_config; parse_config('policy = \"watermark\"', ''); "
        "print(*sys.modules.keys() & {'typer', 'rich', 'difflib', 'textwrap', 'json', 'cgpause.config.render'})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPO)

    assert result.stdout == "\n"
