"""`cgpause lab`: policies on simulated nodes, with no daemon."""

from __future__ import annotations

from typing import Annotated

import typer

from cgpause.cli.context import Globals
from cgpause.cli.exits import exits
from cgpause.cli.usage import Command, Format, Group, Output
from cgpause.offline.simulate import Arm

app = typer.Typer(
    cls=Group,
    help="Try policies on simulated nodes.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_MOST_SEEDS = 10_000


@app.command(cls=Command, rich_help_panel="Commands", epilog="Example: cgpause lab simulate --preset paper-2g-150")
def simulate(
    context: typer.Context,
    workload: Annotated[
        list[str] | None, typer.Argument(metavar="[WORKLOAD.toml]...", help="The nodes and jobs to simulate.")
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A built-in workload (repeat for several); --list shows them, and * and ? stand for any letters.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        list[Arm] | None,
        typer.Option(
            metavar="|".join(Arm), help="Only this policy (repeat for several; default: all).", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Seed of all random choices (default: 1).", show_default=False)
    ] = 1,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=_MOST_SEEDS,
            help="Number of seeds, from --seed on: mean, lowest and highest (default: 1).",
            show_default=False,
        ),
    ] = 1,
    processes: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", min=1, help="Simulations at a time (default: one for each CPU)."),
    ] = None,
    list_presets: Annotated[bool, typer.Option("--list", help="Print the names of the built-in workloads.")] = False,
    output: Output = None,
) -> None:
    """Simulate workloads under each policy, without a node.

    It shows restarts, times, memory use and pauses. It needs no cgroups and changes none. The policies are those of the
    daemon, with the options of the configuration.
    """
    from cgpause.cli import simulated as table
    from cgpause.cli.output import print_json
    from cgpause.offline import parallel
    from cgpause.offline.simulate import command
    from cgpause.offline.simulate.presets import PRESETS

    if list_presets:
        typer.echo("\n".join(PRESETS))
        return
    given: Globals = context.obj
    with exits():
        loads = command.choose(workload or [], preset or [])
        arms = list(dict.fromkeys(policy or Arm))
        some = range(seed, seed + seeds)
        values = command.compare(loads, arms, given.config(), some, processes or parallel.cpus())
    if output is Format.JSON:
        print_json(values)
    else:
        table.print_simulation(values, wide=output is Format.WIDE)
