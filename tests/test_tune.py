"""Tuning: intervals are those of the tables, verdicts are careful, and the search repeats itself."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from cgpause.config import Config, Policy, WatermarkConfig, parse_config
from cgpause.model import Mechanism
from cgpause.options import entries
from cgpause.simulate.recorded import AS_RECORDED
from cgpause.tune import plot, report, study
from cgpause.tune.command import changed_options
from cgpause.tune.gain import Gain, Interval, Verdict, gain, mean_interval, t_quantile, t_within
from cgpause.tune.space import SPACES, with_values
from cgpause.tune.study import NONE, RESERVE, TUNED, UNTUNED, Plan
from cgpause.tune.subject import Cost, number
from cgpause.tune.workers import Run, workers


@pytest.mark.parametrize(
    ("share", "freedom", "quantile"),
    [  # any statistics text: the 0.975 column of Student's t, and some others
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 3, 3.182),
        (0.975, 4, 2.776),
        (0.975, 7, 2.365),
        (0.975, 10, 2.228),
        (0.975, 15, 2.131),
        (0.975, 30, 2.042),
        (0.975, 120, 1.980),
        (0.95, 9, 1.833),
        (0.995, 5, 4.032),
    ],
)
def test_the_quantiles_of_students_t_are_those_of_the_tables(share: float, freedom: int, quantile: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(quantile, abs=0.0005)


@given(st.integers(1, 400), st.floats(0, 50))
def test_students_t_is_a_probability_that_grows(freedom: int, t: float) -> None:
    assert 0 <= t_within(t, freedom) <= t_within(t + 0.1, freedom) + 1e-12 <= 1 + 2e-12


def test_an_interval_is_that_of_a_worked_example() -> None:
    """By hand: the mean of 1, 2, 3, 4 is 2.5, s = 1.29099, s / 2 = 0.6455, and t of 3 degrees 3.18245."""
    assert mean_interval([1, 2, 3, 4]) == pytest.approx((2.5, 2.5 - 2.05426, 2.5 + 2.05426), abs=1e-4)


def test_what_never_differs_has_an_interval_without_width() -> None:
    assert mean_interval([0.0] * 8) == (0, 0, 0)


def test_a_single_value_has_no_interval() -> None:
    with pytest.raises(ValueError, match="needs two"):
        mean_interval([1.0])


NOTHING = Interval(0, 0, 0)


@pytest.mark.parametrize(
    ("unfinished", "restarts", "time_pct", "verdict"),
    [
        pytest.param(NOTHING, NOTHING, Interval(-3, -5, -1), Verdict.BETTER, id="time decides between equals"),
        pytest.param(NOTHING, NOTHING, Interval(-3, -7, 1), Verdict.OPEN, id="with zero in it it may be chance"),
        pytest.param(NOTHING, Interval(-2, -3, -1), Interval(40, 30, 50), Verdict.BETTER, id="restarts before time"),
        pytest.param(
            NOTHING, Interval(2, 1, 3), Interval(-40, -50, -30), Verdict.WORSE, id="no time makes up for them"
        ),
        pytest.param(
            NOTHING, Interval(0.2, -0.1, 0.5), Interval(-9, -10, -8), Verdict.OPEN, id="perhaps more restarts"
        ),
        pytest.param(NOTHING, Interval(-0.2, -0.5, 0.1), Interval(-9, -10, -8), Verdict.BETTER, id="perhaps fewer"),
        pytest.param(Interval(1, 0.5, 1.5), Interval(-9, -10, -8), NOTHING, Verdict.WORSE, id="jobs that never end"),
    ],
)
def test_the_first_figure_that_differs_for_sure_decides(
    unfinished: Interval, restarts: Interval, time_pct: Interval, verdict: Verdict
) -> None:
    assert Gain(unfinished, restarts, time_pct).verdict == verdict


def test_runs_are_compared_in_pairs() -> None:
    """Every run gains a tenth of its time, however long it is: that is no matter of chance."""
    others = [Cost(0, 3, 10.0), Cost(0, 30, 1000.0), Cost(0, 7, 100.0)]
    gained = gain([Cost(0, cost.restarts, 0.9 * cost.total_s) for cost in others], others)
    assert gained.time_pct == pytest.approx((-10, -10, -10))
    assert gained.restarts == NOTHING
    assert gained.verdict is Verdict.BETTER


costs = st.lists(
    st.builds(Cost, st.integers(0, 50), st.integers(0, 2000), st.floats(1, 20_000)), min_size=3, max_size=3
)


@given(costs, costs)
def test_the_number_keeps_the_order_of_what_counts(mine: list[Cost], others: list[Cost]) -> None:
    """Jobs left over, then restarts, then time: all runs together, by the yardstick."""
    yardstick = [Cost(0, 5, 100.0)] * 3

    def order(runs: Sequence[Cost]) -> tuple[int, int, float]:
        return sum(r.unfinished for r in runs), sum(r.restarts for r in runs), sum(r.total_s for r in runs) / 300

    a, b = number(mine, yardstick), number(others, yardstick)
    x, y = order(mine), order(others)
    if x[:2] != y[:2] or abs(x[2] - y[2]) > 1e-3:  # what is nearer is left to the precision of floats
        assert (a < b) == (x < y)


def points(policy: Policy) -> st.SearchStrategy[dict[str, float]]:
    return st.fixed_dictionaries({one.name: st.floats(one.low, one.high) for one in SPACES[policy].dimensions})


@pytest.mark.parametrize("policy", list(Policy))
def test_every_point_is_a_valid_configuration(policy: Policy) -> None:
    @settings(max_examples=200, deadline=None)
    @given(points(policy))
    def check(point: dict[str, float]) -> None:
        values = SPACES[policy].values(point)
        text = f"policy = '{policy}'\n[{policy}]\n" + "".join(f"{name} = {value!r}\n" for name, value in values.items())
        assert parse_config(text, "point") == with_values(Config(), policy, values)

    check()


@pytest.mark.parametrize("policy", list(Policy))
def test_the_search_begins_with_what_is_configured(policy: Policy) -> None:
    space = SPACES[policy]
    assert with_values(Config(), policy, space.values(space.start(Config()))) == Config(policy=policy)


def test_coordinates_have_the_limits_of_the_options() -> None:
    limits = {one.name: one for one in SPACES[Policy.WATERMARK].dimensions}
    described = {entry.name: entry.option for entry in entries(WatermarkConfig)}
    assert set(limits) & set(described) == {"interval_s", "patience", "batch"}
    for name in set(limits) & set(described):
        assert (limits[name].low, limits[name].high) == (described[name].low, described[name].high)


class Hill:
    """Costs restarts by how far upper_pct is from 70; under the reserve, always two."""

    name = "a hill"

    def cost(self, config: Config | None, seed: int) -> Cost:
        if config is None:
            return Cost(0, 40, 50.0)
        if config.policy is Policy.RESERVE:
            return Cost(0, 2, 60.0 + seed % 3)
        return Cost(0, round(abs(config.watermark.upper_pct - 70)) + seed % 2, 50.0 + config.watermark.interval_s)


PLAN = Plan(Policy.WATERMARK, trials=40, seeds=3, seed=5)


def tuned(plan: Plan = PLAN, jobs: int = 1, base: Config | None = None) -> dict[str, Any]:
    told: list[None] = []
    with workers([Hill()], jobs, lambda: told.append(None)) as run_all:
        values = study.tune("a hill", base or Config(), plan, run_all)
    assert len(told) == plan.runs, "the progress ends where it should"
    return values | {"config": None, "preset": False, "trace": None, "configured": changed_options(base or Config())}


def test_the_search_finds_what_is_there_to_find() -> None:
    values = tuned()
    assert values["values"]["upper_pct"] == pytest.approx(70, abs=6)
    assert [one["verdict"] for one in (values["gains"][arm] for arm in (NONE, UNTUNED))] == ["better"] * 2
    assert values["search"][0]["values"] == values["untuned_values"]
    assert len(values["search"]) == PLAN.trials


def test_the_same_plan_gives_the_same_with_any_number_of_processes() -> None:
    few = replace(PLAN, trials=5)
    assert tuned(few) == tuned(few, jobs=2)
    assert tuned(few) != tuned(replace(few, seed=6))


def test_seeds_that_judge_are_none_of_those_tuned_on() -> None:
    plans = [Plan(Policy.RESERVE, 1, seeds, seed) for seeds in (2, study.MAX_SEEDS) for seed in (0, 1, 2)]
    for plan in plans:
        assert not set(plan.training) & set(plan.held_out)
        assert plan.training[0] % AS_RECORDED == 0, "a recording is tuned on as it was"
        assert not [seed for seed in plan.held_out if seed % AS_RECORDED == 0]
    used = [{*plan.training, *plan.held_out} for plan in plans[3:]]
    assert not used[0] & used[1] | used[1] & used[2]


def test_results_come_in_the_order_asked_for() -> None:
    runs = [Run(0, Config(policy=Policy.WATERMARK), seed) for seed in range(20)]
    with workers([Hill()], 3) as run_all:
        assert run_all(runs) == [Hill().cost(run.config, run.seed) for run in runs]


def with_gains(**gains: Interval) -> dict[str, Any]:
    """What was found, with other figures in place of those to untuned."""
    values = tuned(replace(PLAN, trials=3))
    gained = Gain(NOTHING, gains["restarts"], gains["time_pct"])
    return values | {"gains": {**values["gains"], UNTUNED: study.gain_values(gained)}}


def test_where_the_gain_may_be_chance_it_says_to_keep_what_there_is() -> None:
    values = with_gains(restarts=Interval(-0.5, -1.5, 0.5), time_pct=Interval(-1, -3, 1))
    first = report.config_file(values).splitlines()[0]
    assert first.startswith("# Keep what you have: on jobs it was not tuned on the difference may be chance")
    assert "**Keep what you have" in report.markdown(values, "p.png")


def test_what_changes_nothing_is_said_to() -> None:
    values = with_gains(restarts=NOTHING, time_pct=Interval(-1e-9, -1e-9, 1e-9))
    assert "there is no difference." in report.advice(values)
    assert "\N{MINUS SIGN}0.00" not in report.markdown(values, "p.png")


def test_what_is_worse_is_said_to_be() -> None:
    values = with_gains(restarts=Interval(2, 1, 3), time_pct=Interval(-1, -3, 1))
    assert "tuned is worse" in report.advice(values)


def test_the_configuration_has_the_tuned_options_alone_and_its_evidence() -> None:
    values = tuned()
    text = report.config_file(values)
    assert tomllib.loads(text) == {"policy": "watermark", "watermark": values["values"]}
    assert parse_config(text, "tuned") == with_values(Config(), Policy.WATERMARK, values["values"])
    for said in ("cgpause tune 'a hill' --policy=watermark --trials=40 --seeds=3 --seed=5", "Optuna", "5000 to 5002"):
        assert said in text
    assert report.interval(values["gains"][RESERVE]["restarts"]) in " ".join(text.replace("#", "").split())


def test_whatever_the_file_was_called_the_configuration_is_one() -> None:
    values = tuned(replace(PLAN, trials=2)) | {"workload": "x\n[bad]\x1b\udcff" + "y" * 3000, "config": "a b"}
    text = report.config_file(values)
    assert parse_config(text, "tuned").policy is Policy.WATERMARK
    assert "--config 'a b'" in text
    report.markdown(values, "p.png").encode()


def test_a_configuration_that_is_not_the_default_is_part_of_the_evidence() -> None:
    base = Config(mechanism=Mechanism.FREEZE, policy=Policy.WATERMARK)
    assert changed_options(Config()) == {}
    assert changed_options(base) == {"mechanism": "freeze"}
    assert "mechanism = freeze" in report.config_file(tuned(replace(PLAN, trials=2), base=base))


def test_arms_differ_in_what_their_names_say() -> None:
    values: dict[str, float] = {"batch": 5}
    assert study.config_of(NONE, Config(), PLAN, values) is None
    assert study.config_of(UNTUNED, Config(), PLAN, values) == Config(policy=Policy.WATERMARK)
    assert study.config_of(RESERVE, Config(policy=Policy.WATERMARK), PLAN, values) == Config(policy=Policy.RESERVE)
    assert study.config_of(TUNED, Config(), PLAN, values) == with_values(Config(), Policy.WATERMARK, values)


@pytest.mark.parametrize("times_s", [(50, 70000), (61, 68)], ids=["decades", "within-one"])
def test_the_numbers_of_the_picture_are_numbers(times_s: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Log scales write powers as mathematics, and in our pictures a $ is a $."""
    shown: list[str] = []

    def png(figure: Figure) -> bytes:
        figure.draw_without_rendering()
        for axes in figure.axes:
            shown.extend(label.get_text() for label in axes.get_yticklabels(which="both"))
            shown.extend(label.get_text() for label in axes.get_xticklabels(which="both"))
        return b""

    monkeypatch.setattr(plot, "png", png)
    values = tuned(replace(PLAN, trials=2)) | {"workload": "a $\\frac$.toml"}
    for one, total_s in zip(values["search"], times_s, strict=True):
        one.update(total_s=total_s, restarts=total_s / 100)
    assert plot.draw(values) == b""
    assert TUNED in shown
    assert any(label.isdecimal() for label in shown)
    assert not any("$" in label for label in shown)
