"""The commands that need no node: they try policies on simulated ones."""

from __future__ import annotations

from typing import Annotated

import typer

from cgpause import output
from cgpause.exits import Exit, exits, fail
from cgpause.given import Globals
from cgpause.simulate import Arm
from cgpause.usage import Json


def simulate(
    context: typer.Context,
    workload: Annotated[
        str | None, typer.Argument(metavar="[WORKLOAD.toml]", help="The nodes and jobs to simulate.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="A built-in workload instead; --list shows them.")
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
    list_presets: Annotated[bool, typer.Option("--list", help="Print the names of the built-in workloads.")] = False,
    as_json: Json = False,
) -> None:
    """Simulate a workload under each policy, without a node.

    What comes out are restarts, times and pauses. It needs no cgroups and touches none. The policies are the daemon's
    own, as the configuration has them.
    """
    from cgpause.simulate import command  # noqa: PLC0415 - no other command needs it
    from cgpause.simulate.workload import PRESETS  # noqa: PLC0415

    if list_presets:
        typer.echo("\n".join(PRESETS))
        return
    given: Globals = context.obj
    with exits():
        try:
            load = command.choose(workload, preset)
        except ValueError as e:
            fail(str(e), Exit.USAGE)
        values = command.compare(load, list(dict.fromkeys(policy or Arm)), given.config(), seed)
    if as_json:
        output.print_json(values)
    else:
        output.print_simulation(values)
