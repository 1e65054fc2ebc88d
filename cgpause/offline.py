"""The commands that need no node: they try policies on simulated ones."""

from __future__ import annotations

from typing import Annotated

import typer

from cgpause import output
from cgpause.exits import Exit, exits, fail
from cgpause.given import Globals
from cgpause.simulate import Arm
from cgpause.usage import Json

_MOST_SEEDS = 10_000


def simulate(
    context: typer.Context,
    workload: Annotated[
        list[str] | None, typer.Argument(metavar="[WORKLOAD.toml]...", help="The nodes and jobs to simulate.")
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A built-in workload, again for more; --list shows them, and * and ? stand for any letters.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        list[Arm] | None,
        typer.Option(
            metavar="|".join(Arm), help="Only under this one, again for more (default: all).", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Which memory the jobs take (default: 1).", show_default=False)
    ] = 1,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=_MOST_SEEDS,
            help="With so many seeds, from --seed on: mean, lowest and highest (default: 1).",
            show_default=False,
        ),
    ] = 1,
    to: Annotated[
        str | None,
        typer.Option("--output", metavar="DIR", help="Write simulation.json, .md and .png there, too."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", min=1, help="Simulations at a time (default: one for each CPU)."),
    ] = None,
    list_presets: Annotated[bool, typer.Option("--list", help="Print the names of the built-in workloads.")] = False,
    as_json: Json = False,
) -> None:
    """Simulate workloads under each policy, without a node.

    What comes out are restarts, times, memory use and pauses. It needs no cgroups and touches none. The policies are
    the daemon's own, as the configuration has them.
    """
    from cgpause.simulate import command, files, runs  # noqa: PLC0415 - no other command needs it
    from cgpause.simulate.workload import PRESETS  # noqa: PLC0415

    if list_presets:
        typer.echo("\n".join(PRESETS))
        return
    given: Globals = context.obj
    with exits():
        try:
            loads = command.choose(workload or [], preset or [])
        except ValueError as e:
            fail(str(e), Exit.USAGE)
        if to is not None:
            files.prepare(to)
        arms = list(dict.fromkeys(policy or Arm))
        values = command.compare(
            loads, arms, given.config(), range(seed, seed + seeds), runs.cpus() if processes is None else processes
        )
        if to is not None:
            typer.echo(files.write(values, to), err=True)
    if as_json:
        output.print_json(values)
    else:
        output.print_simulation(values)
