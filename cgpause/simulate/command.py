"""`cgpause simulate`: one workload under several policies, as values and with its progress."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from cgpause.config import Config, Policy
from cgpause.simulate import Arm
from cgpause.simulate.load import Load
from cgpause.simulate.run import simulate
from cgpause.simulate.workload import PRESETS, load_workload, make_load


def choose(path: str | None, preset: str | None) -> Load:
    """The workload asked for: a file, or a preset.

    Raises:
        ConfigError: what is wrong in the file.
        ValueError: neither, both, or no such preset.
    """
    if (path is None) == (preset is None):
        raise ValueError(f"give either a WORKLOAD.toml or --preset, one of {', '.join(PRESETS)}")
    if path is not None:
        return load_workload(path)
    assert preset is not None
    if preset not in PRESETS:
        near = difflib.get_close_matches(preset[:60], PRESETS, n=1)
        meant = f"; did you mean {near[0]}?" if near else "."
        raise ValueError(f"--preset {preset!r}: there is no such preset{meant} There are {', '.join(PRESETS)}")
    return make_load(preset, PRESETS[preset])


def compare(load: Load, arms: Sequence[Arm], config: Config, seed: int) -> dict[str, Any]:
    """Run it under each; the same load, seed and configuration give the same values, JSON-ready."""
    found = []
    with _progress(load.count) as begin:
        for arm in arms:
            chosen = None if arm is Arm.NONE else replace(config, policy=Policy(arm))
            outcome = asdict(simulate(load, chosen, seed, begin(arm)))
            found.append(
                {"policy": arm}
                | {name: round(value, 3) if isinstance(value, float) else value for name, value in outcome.items()}
            )
    return {
        "schema": 1,
        "workload": load.name,
        "seed": seed,
        "nodes": load.nodes,
        "memory_bytes": load.machine.capacity_bytes,
        "oversubscription_pct": round(100 * load.oversubscription, 3),
        "jobs": load.count,
        "mechanism": config.mechanism,
        "policies": found,
    }


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Arm], Callable[[int], None]]]:
    """Bars on stderr where that is a terminal: what is yielded begins one, and returns what moves it."""
    if not sys.stderr.isatty():
        yield lambda _: lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        def begin(arm: Arm) -> Callable[[int], None]:
            task = progress.add_task(arm, total=total)
            return lambda finished: progress.update(task, completed=finished)

        yield begin
