"""The command line: the arguments, options and help of each command; the module of its name does the work.

`pause` and `resume` are in `acting`. A command imports what it needs when it runs, so that `--help` and the Tab key
need not wait for it.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, TextIO, cast

import typer

from cgpause import __version__
from cgpause.cli.completion import AnyPod, OnePod, PausablePods, PausedPods, Pods, offer_namespaces
from cgpause.cli.context import Globals
from cgpause.cli.exits import exits, fail, seconds
from cgpause.cli.stream import Stream
from cgpause.cli.usage import Command, Format, Group, JsonOutput, Output
from cgpause.core.errors import Exit, printable
from cgpause.core.model import Mechanism
from cgpause.core.paths import DEFAULT_CONFIG, DEFAULT_LISTEN, DEFAULT_LOG_DIR, DEFAULT_RUN_DIR, DEFAULT_STATE_DIR
from cgpause.offline.simulate import Arm

app = typer.Typer(
    cls=Group,
    help="Pause Kubernetes pods through cgroup v2 before the OOM killer kills them: no CRI, no API server.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    # Plain text, as in man pages: with rich, typer shows a flag as <bool> and reads [words] of a help text as markup.
    rich_markup_mode=None,
)
_SEE = "See what happens"
_ACT = "Act by hand"
_NODE = "The node and the daemon"
_OF_PODS = ("status", "explain", "history", "pause", "resume")
"""The commands that --namespace limits."""
_option = partial(typer.Option, show_default=False)
"""Makes an option without typer's note of the default: its help text has the default, in our words."""
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the changes; write nothing.")]


def _command(panel: str, example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds a command to a panel of the help, with an example."""
    return app.command(cls=Command, rich_help_panel=panel, epilog=f"Example: {example}")


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"cgpause {__version__}")
        raise typer.Exit


@app.callback()
def main_options(
    context: typer.Context,
    cgroup_root: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="cgroup v2 mount, or a folder with the same layout (default: found automatically)."
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help=f"Configuration (default: {DEFAULT_CONFIG}).")
    ] = None,
    log_dir: Annotated[
        str,
        _option(
            metavar="DIR",
            help=f"Parent of the kubelet's pods/ and containers/ log folders (default: {DEFAULT_LOG_DIR}).",
        ),
    ] = DEFAULT_LOG_DIR,
    state_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help=f"Folder of the history and the learnt peaks (default: {DEFAULT_STATE_DIR}; none with --cgroup-root).",
        ),
    ] = None,
    run_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help=f"Folder of the published metrics (default: {DEFAULT_RUN_DIR}; none with --cgroup-root).",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAMESPACE",
            help=f"Only pods of this namespace ({', '.join(_OF_PODS)}).",
            autocompletion=offer_namespaces,
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001 - acted on by its callback
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options common to all commands, before or after the command."""
    for name, value in context.params.items():
        if value == "":
            what = "name" if name == "namespace" else "path"
            fail(f"--{name.replace('_', '-')} is empty: give it a {what}, or leave it out", Exit.USAGE)
    if namespace is not None and context.invoked_subcommand not in _OF_PODS:
        fail(f"--namespace is for {', '.join(_OF_PODS)}, not for {context.invoked_subcommand}", Exit.USAGE)
    context.obj = Globals(cgroup_root, config, log_dir, state_dir, run_dir, namespace)


@_command(_SEE, "cgpause status -n batch 'job-*'")
def status(context: typer.Context, refs: Pods = None, output: Output = None) -> None:
    """Show the node's memory, limits and pauses, pod by pod.

    Paused pods come first, then the largest. It also shows which pods are protected, and why.
    """
    from cgpause.cli.status import show

    show(context.obj, refs, output)


@_command(_SEE, "cgpause top")
def top(
    context: typer.Context,
    interval: Annotated[str, _option(metavar="TIME", help="Time between two refreshes (default: 1s).")] = "1s",
) -> None:
    """Show the node live; pause and resume pods with a key.

    It shows headroom and pressure, every pod, which pods are paused or next and why, and the last decisions. The key ?
    shows the keys.
    """
    from cgpause.cli.top.app import show

    show(context.obj, interval)


@_command(_SEE, "cgpause explain default/batch-7")
def explain(
    context: typer.Context,
    ref: OnePod = None,
    output: Output = None,
    watch: Annotated[
        str, _option("--for", metavar="TIME", help="Watch the pods grow for this long first (default: 1s).")
    ] = "1s",
) -> None:
    """Show which pods the policy would pause now, and why.

    The pods come in the policy's order. For one pod it shows everything: its state, the rule that applies, its earlier
    pauses and its limits.

    It writes nothing. The reserve policy needs growth rates, so this command first watches the pods for a while; the
    daemon has watched them for longer, so it may decide otherwise.
    """
    from cgpause.cli.explain import show

    show(context.obj, ref, watch, output)


@_command(_SEE, "cgpause history --since 1h")
def history(
    context: typer.Context,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only pauses that had not ended by then: 1h, 2d, today, 2026-11-22, 2026-11-22 10:00."
        ),
    ] = None,
    pod: AnyPod = None,
    output: Output = None,
) -> None:
    """Show each pause of a pod: when, for how long, and why.

    It also shows how each pause ended, and the total time for which each pod was paused.

    Pods that no longer exist are included. The option max_mib (section history) limits the size of the history.
    """
    from cgpause.cli.history import show

    show(context.obj, since, pod, output)


@_command(_ACT, "cgpause pause 'batch/*' --for 10m")
def pause(
    context: typer.Context,
    refs: PausablePods,
    mechanism: Annotated[
        Mechanism | None, _option(metavar="|".join(Mechanism), help="How to pause the pods (default: as configured).")
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="Resume after this time (90s, 10m, 1h30m, 2d); the daemon does it."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Pause protected pods too.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Pause pods until they are resumed.

    The daemon leaves them alone until then. A pod that the daemon has paused stays paused without a gap. For a pod that
    is paused by hand, --for sets a new end.
    """
    from cgpause.cli import acting

    given: Globals = context.obj
    for_s = None if duration is None else seconds(duration, "--for")
    with exits():
        code = acting.pause_each(given, refs, mechanism=mechanism, for_s=for_s, force=force, dry_run=dry_run)
    raise typer.Exit(code)


@_command(_ACT, "cgpause resume --all")
def resume(
    context: typer.Context,
    refs: PausedPods = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Resume every paused pod, also those that an operator paused.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Resume pods: restore the values from before the pause.

    The daemon may pause them again, unless a rule in the configuration protects them (protect = true).
    """
    from cgpause.cli import acting

    given: Globals = context.obj
    if everything == bool(refs):
        fail("give either pods or --all; cgpause status shows the paused pods first", Exit.USAGE)
    with exits():
        if everything and given.namespace is None:
            code = acting.resume_all(given, dry_run=dry_run)
        else:
            code = acting.resume_each(given, refs or None, dry_run=dry_run)
    raise typer.Exit(code)


@_command(_NODE, "cgpause check")
def check(context: typer.Context, output: JsonOutput = None) -> None:
    """Check whether cgpause can work on this node.

    Each problem comes with the way to repair it.
    """
    from cgpause.cli.check import show

    show(context.obj, as_json=output is not None)


@_command(_NODE, "cgpause config --check")
def config(
    context: typer.Context,
    only_check: Annotated[bool, typer.Option("--check", help="Only say whether the file is valid.")] = False,
) -> None:
    """Print the effective configuration, or the file's mistakes."""
    from cgpause.config.render import render_config

    given: Globals = context.obj
    path = given.config_file
    with exits():
        effective = given.config()
    name = printable(path)
    found = name if os.path.exists(path) else f"{name} does not exist: these are the defaults"
    if only_check:
        typer.echo(f"{name}: valid" if os.path.exists(path) else found)
    else:
        typer.echo(f"# {found}\n{render_config(effective)}", nl=False)


@_command(_NODE, "cgpause metrics --once")
def metrics(
    context: typer.Context,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS:PORT", help=f"Serve them there (default: {DEFAULT_LISTEN}; :PORT: on all addresses)."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print them once and end.")] = False,
) -> None:
    """Serve the daemon's metrics to Prometheus.

    The command runs until a signal ends it.

    The daemon publishes metrics if the configuration says so (section metrics).
    """
    given: Globals = context.obj
    with exits():
        from cgpause.cli.metrics import show

        show(given.metrics_path, listen=listen, once=once)


@_command(_NODE, "cgpause bug-report")
def bug_report(
    context: typer.Context,
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE.tar.gz]", help="File or folder for it (default: a new file here).")
    ] = None,
    keep_names: Annotated[bool, typer.Option("--keep-names", help="Leave names as they are.")] = False,
) -> None:
    """Write a file to attach to an issue.

    The file contains the setup of this node, the pauses, and the log of the daemon.

    Hashes replace the names of pods, namespaces, users and the host. Read the file before you post it.
    """
    with exits():
        from cgpause.cli import bugreport

        file = bugreport.name_file(file)
        for line in bugreport.write(context.obj, _global_options(context), file, keep_names=keep_names):
            typer.echo(line)


@_command(_NODE, "cgpause run --dry-run")
def run(
    context: typer.Context,
    dry_run: DryRun = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log debug messages too.")] = False,
) -> None:
    """Run the daemon in the foreground, as the systemd unit does."""
    options = _global_options(context) + ["--dry-run"] * dry_run + ["--verbose"] * verbose
    # A new process image keeps typer and rich out of the daemon's memory. -P stops root from importing modules from the
    # current folder, which may belong to another user.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "cgpause.daemon", *options])


def _global_options(context: typer.Context) -> list[str]:
    """Return the given options that are common to all commands, for another process."""
    given = {name: value for name, value in context.find_root().params.items() if isinstance(value, str)}
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]


@_command("Try policies without a daemon", "cgpause simulate --preset paper-2g-150")
def simulate(
    context: typer.Context,
    workload: Annotated[
        list[str] | None, typer.Argument(metavar="[WORKLOAD.toml]...", help="The nodes and jobs to simulate.")
    ] = None,
    preset: Annotated[
        list[str] | None,
        _option(
            metavar="NAME",
            help="A built-in workload (repeat for several); --list shows them, and * and ? stand for any letters.",
        ),
    ] = None,
    policy: Annotated[
        list[Arm] | None, _option(metavar="|".join(Arm), help="Only this policy (repeat for several; default: all).")
    ] = None,
    seed: Annotated[int, _option(metavar="N", min=0, help="Seed of all random choices (default: 1).")] = 1,
    seeds: Annotated[
        int,
        _option(
            metavar="N",
            min=1,
            max=10_000,
            help="Number of seeds, from --seed on: mean, lowest and highest (default: 1).",
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


def main() -> None:
    """Run the `cgpause` command; exit with REFUSED or worse if stdout cannot be written."""
    out, errors = Stream(sys.stdout), Stream(sys.stderr)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, errors)
    try:
        app(prog_name="cgpause")
    except SystemExit as e:
        out.flush()
        # EPIPE is not an error here: the reader of the pipe may end first (`cgpause status | head -1`).
        if out.failure is None or out.failure.errno == errno.EPIPE:
            raise
        typer.echo(f"cgpause: cannot write the output: {out.failure.strerror}", err=True)
        sys.exit(max(e.code, Exit.REFUSED) if isinstance(e.code, int) else Exit.REFUSED)


if __name__ == "__main__":
    main()
