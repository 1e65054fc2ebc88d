"""`cgpause lab replay`: its output, its reproducibility, and its errors for a file that is no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.commandline import ESCAPED, HOSTILE, MIB, invoke, json_of, run
from helpers.traces import make_pod, moment, written
from helpers.trees import FakeTree


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A trace: pods one and two grow until two is killed at 8 s; three is killed at its own limit at 10 s."""
    names = ("one", HOSTILE, "$three$")
    one, two, three = (make_pod(n, name=name, memory_max_bytes=4000 * MIB) for n, name in enumerate(names, 1))
    moments = [moment(t, {one: 300 + 12 * t, two: 400 + 28 * t, three: 20}) for t in range(8)]
    kills = {two.cgroup: 1}
    moments += [moment(t, {one: 300, two: 10, three: 20}, oom_kills=kills) for t in (8, 9)]
    own = {three.cgroup: 2}
    moments += [moment(10, {one: 300, two: 10, three: 5}, oom_kills=kills | own, own_ooms={three.cgroup: 1})]
    path = tmp_path / "node.trace"
    path.write_text("".join(written(moments)))
    return str(path)


def replayed(*args: str) -> dict[str, Any]:
    return json_of("lab", "replay", *args)


def test_json_has_all_of_it(trace: str) -> None:
    values = replayed(trace)

    assert [policy["policy"] for policy in values["policies"]] == ["reserve", "watermark"]
    assert (values["oom_kills"], values["oom_kills_at_own_limits"]) == (1, 2)
    assert values["trace"]["samples"] == 11
    assert values["trace"]["longest_step_s"] == 1
    for policy in values["policies"]:
        own = [kill for kill in policy["kills"] if kill["at_own_limit"]]
        (kill,) = (kill for kill in policy["kills"] if not kill["at_own_limit"])
        assert kill["first_pause_before_s"] > 0
        assert kill["grew_bytes"] == pytest.approx(196 * MIB, abs=MIB)
        assert (kill["pod"], kill["grew_most"]) == (f"default/{ESCAPED}", f"default/{ESCAPED}")
        assert [one["processes"] for one in own] == [2]
        assert policy["kills_forewarned"] == 1
        assert policy["estimate"]["ends_with_oom_kill"]
    assert any("does not know" in text for text in values["unknown"])


def test_people_get_tables_and_a_word_on_what_is_not_known(trace: str) -> None:
    result = invoke("lab", "replay", trace)

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0].startswith("node.trace: 3 pods, 1000.0Mi, 11 samples in 10s from 2001-09-09T")
    assert "1 OOM kill for lack of headroom, 2 at limits of pods" in result.stdout
    assert "by estimate, reserve: " in result.stdout
    assert "docs/trace.md" in result.stdout
    assert "\x1b" not in result.stdout


def test_only_the_policies_asked_for_are_replayed_as_configured(trace: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('mechanism = "freeze"\n[watermark]\nupper_pct = 99.5\nlower_pct = 99\n')
    config = ["--config", str(tmp_path / "config.toml")]

    (policy,) = json_of(*config, "lab", "replay", trace, "--policy", "watermark")["policies"]
    assert (policy["policy"], policy["mechanism"], policy["kills_forewarned"]) == ("watermark", "freeze", 1)
    assert (
        policy["kills"][0]["first_pause_before_s"] < replayed(trace)["policies"][1]["kills"][0]["first_pause_before_s"]
    )


def test_the_same_trace_gives_the_same_bytes(trace: str) -> None:
    one, two = (invoke("lab", "replay", trace, "-ojson") for _ in range(2))
    assert (one.exit_code, one.stderr) == (0, "")
    assert one.stdout_bytes == two.stdout_bytes


def test_what_is_no_trace_is_said_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"cgpause_trace":1}\n')
    result = invoke("lab", "replay", str(tmp_path / "x"))

    assert (result.exit_code, result.stdout) == (5, "")
    assert result.stderr.startswith(f"cgpause: {tmp_path}/x:1: found hashed None")


def test_what_was_recorded_can_be_replayed(tree: FakeTree) -> None:
    tree.add_pod("web", 100 * MIB)
    tree.set_used(500 * MIB)
    path = str(tree.folder / "x.gz")
    assert run(tree, "lab", "record", "--for", "1s", path).exit_code == 0

    values = replayed(path)
    assert values["trace"]["pods"] == 1
    assert [policy["pauses"] for policy in values["policies"]] == [0, 0]
    assert values["trace"]["lowest_headroom_bytes"] == 524 * MIB
