"""`cgpause lab`: the commands that try policies on simulated or recorded nodes, with no daemon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from cgpause.cli.context import Globals
from cgpause.cli.exits import exits, fail, seconds
from cgpause.cli.usage import Command, Format, Group, JsonOutput, Output
from cgpause.core.errors import Exit, printable
from cgpause.core.model import Policy
from cgpause.offline.simulate import Arm

app = typer.Typer(
    cls=Group,
    help="Try policies on simulated and recorded nodes.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_MOST_SEEDS = 10_000


def _command(example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return app.command(cls=Command, rich_help_panel="Commands", epilog=f"Example: {example}")


@_command("cgpause lab simulate --preset paper-2g-150")
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


@_command("cgpause lab record --for 1h node.jsonl.gz")
def record(
    context: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]", help="Trace file, gzip if it ends in .gz (default: a new file in this folder)."
        ),
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="End after this time (default: when interrupted).")
    ] = None,
    interval: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Between two samples (default: 1s); a fifth of it while memory is tight."),
    ] = None,
    max_size: Annotated[
        int,
        typer.Option(
            "--max-size",
            metavar="MIB",
            min=1,
            max=128,
            help="Largest size in MiB (default: 64, at most 128); then the oldest quarter is deleted.",
            show_default=False,
        ),
    ] = 64,
    hash_names: Annotated[bool, typer.Option("--hash-names", help="Write hashes for names and UIDs.")] = False,
) -> None:
    """Record the memory of this node and its pods into a file.

    It needs no daemon and writes only that file, which cgpause lab replay reads.
    """
    from cgpause.cli import trace as command
    from cgpause.telemetry.trace.values import LONGEST_INTERVAL_S

    given: Globals = context.obj
    for_s, interval_s = seconds(duration, "--for"), seconds(interval, "--interval")
    if interval_s is not None and interval_s > LONGEST_INTERVAL_S:
        fail(f"--interval {printable(interval or '')}: longer than a day", Exit.USAGE)
    with exits():
        for line in command.record(
            given.root(),
            given.log_dir,
            given.config(),
            path=file,
            interval_s=interval_s,
            for_s=for_s,
            max_mib=max_size,
            hash_names=hash_names,
        ):
            typer.echo(line)


@_command("cgpause lab replay node.jsonl.gz")
def replay(
    context: typer.Context,
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A file of cgpause lab record.")],
    policy: Annotated[
        list[Policy] | None,
        typer.Option(
            metavar="|".join(Policy), help="Only this policy (repeat for several; default: all).", show_default=False
        ),
    ] = None,
    output: JsonOutput = None,
) -> None:
    """Show what each policy would have decided on a recorded node.

    It shows the pods that a policy would have paused, how long before each OOM kill, and an estimate of the memory that
    this would have saved. The policies are those of the daemon, with the options of the configuration. The growth of a
    pod that a policy would have paused is unknown from then on.
    """
    from cgpause.cli import trace as command
    from cgpause.cli.output import print_json

    given: Globals = context.obj
    with exits():
        policies = list(dict.fromkeys(policy or Policy))
        values = command.replayed(trace, policies, given.config())
    if output is not None:
        print_json(values)
    else:
        command.show(values)
