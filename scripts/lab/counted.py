"""What control costs, counted in instructions: docs/counted.json and docs/counted.md.

    python -m lab.counted run
    python -m lab.counted report

Loads of the experiment, on a machine whose clock counts its own instructions (`vm_qemu.COUNTED`). On the emulated
machine of the experiment itself two runs of one trial differ by more than control costs, and Python takes 12 to 25
times what it takes natively while the jobs' loops run at nearly full speed. Exit status as `lab.experiment`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lab.experiment import MEMORY, Guest, VmGuest, Wanted, measure
from lab.experiment_claims import MAX_TIME_ADDED, MAX_TIME_TO_UNLIMITED, Evidence, every_cell
from lab.experiment_progress import Reporter
from lab.experiment_report import table
from lab.experiment_results import NONE, UNLIMITED, Cell, Result, Results, load, percent
from lab.vm import EXIT_LOST, Vm
from lab.vm_host import REPO, LabError, end_by_signal
from lab.vm_qemu import Machine

RESULTS = REPO / "docs" / "counted.json"
REPORT = REPO / "docs" / "counted.md"

ARMS = ("reserve-throttle", "reserve-freeze")
CALM = Wanted(oversubscriptions=(1.0, 1.2, 1.3), arms=(NONE, *ARMS), seeds=(1,))
"""Loads on which little or nothing restarts without control."""
TIGHT = Wanted(("kubepods",), oversubscriptions=tuple(MAX_TIME_TO_UNLIMITED), arms=(NONE, UNLIMITED, *ARMS), seeds=(1,))
"""Loads that are compared with a machine that has memory for all."""

_NODE_CPUS = 2
_NODE_INSTRUCTIONS = 3
"""Of a small node, in 10^9 a second and CPU."""

_INTRODUCTION = f"""\
# What control costs, counted in instructions

Written by `scripts/bench counted`, which measures it again; do not edit. Loads of the [experiment](evaluation.md), one
set of jobs each, without control and with cgpause's `reserve` policy. QEMU counts the machine's instructions, and they
are its clock: 10^9 a second on one CPU, whatever the host does meanwhile. So a run differs from another by what happens
in it and by nothing else.

The jobs keep the CPU busy all the time, and the daemon takes its time from them. *Besides* is what control adds beside
the daemon's own CPU time: pods that were held and need not have been, and the writes that hold them. A small node has
{_NODE_CPUS} CPUs of {_NODE_INSTRUCTIONS} * 10^9 instructions a second or more, so that the daemon takes so much less of
it; that is arithmetic, not measured.
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What control adds to a load's total time, as shares of the time without it."""

    cell: Cell
    arm: str
    added: float
    daemon: float
    pauses: int

    @property
    def besides(self) -> float:
        """What is not the daemon's own CPU time."""
        return self.added - self.daemon


def costs(evidence: Evidence) -> list[Cost]:
    """Of the loads that have no restarts without control."""
    return [
        _cost(mine, its)
        for cell in evidence.cells()
        for arm in ARMS
        for mine, its in evidence.twins(cell, arm, NONE)
        if not its.number("restarts")
    ]


def _cost(mine: Result, its: Result) -> Cost:
    without_s = its.number("total_s")
    return Cost(
        mine.trial.cell,
        mine.trial.arm,
        mine.number("total_s") / without_s - 1,
        mine.number("daemon_cpu_s") / without_s,
        int(mine.number("pauses")),
    )


def render(results: Results) -> str:
    """The report as Markdown."""
    evidence = Evidence(results)
    found = costs(evidence)
    parts = [_INTRODUCTION.strip()]
    if found:
        parts += ["## Where nothing restarts without control", _verdicts(found), _calm(evidence, found)]
    parts += _tight(evidence)
    places = dict.fromkeys(results.boots[result.boot].where for result in results.measured())
    parts += [f"*Measured on {place}.*" for place in places]
    parts += [f"- {result.trial} failed: {result.error}" for result in results.errors()]
    return "\n\n".join(parts) + "\n"


def _verdicts(found: Sequence[Cost]) -> str:
    faster = _NODE_CPUS * _NODE_INSTRUCTIONS
    rows = []
    for arm in dict.fromkeys(cost.arm for cost in found):
        mine = [cost for cost in found if cost.arm == arm]
        worst = max(mine, key=lambda cost: cost.added)
        within = sum(cost.added <= MAX_TIME_ADDED for cost in mine)
        besides = [cost.besides for cost in mine]
        rows.append(
            [
                arm,
                f"{within} of {len(mine)}",
                f"{_signed(worst.added)} ({worst.cell})",
                f"{_signed(min(besides))} to {_signed(max(besides))}",
                _signed(max(cost.daemon / faster + max(cost.besides, 0) for cost in mine)),
            ]
        )
    head = ["arm", f"loads with at most {percent(MAX_TIME_ADDED)} more time", "at worst"]
    return table([*head, "besides the daemon's CPU time", "at worst on a small node (arithmetic)"], rows)


def _calm(evidence: Evidence, found: Sequence[Cost]) -> str:
    head = ["load", "total s without control"]
    head += [f"{arm}: {what}" for arm in ARMS for what in ("total time", "daemon's CPU time", "besides", "pauses")]
    by_load = {(cost.cell, cost.arm): cost for cost in found}
    rows = []
    for cell in dict.fromkeys(cost.cell for cost in found):
        row: list[object] = [cell, f"{evidence.seeds(cell, NONE)[0].number('total_s'):.2f}"]
        for arm in ARMS:
            cost = by_load.get((cell, arm))
            amounts = () if cost is None else (cost.added, cost.daemon, cost.besides)
            row += ["-"] * 4 if cost is None else [*map(_signed, amounts), cost.pauses]
        rows.append(row)
    restarted = [cell for cell in evidence.cells() if any(r.number("restarts") for r in evidence.seeds(cell, NONE))]
    left_out = ", ".join(map(str, restarted))
    return table(head, rows) + (
        f"\n\nLeft out, for they have restarts without control: {left_out}." if left_out else ""
    )


def _tight(evidence: Evidence) -> list[str]:
    head = ["load", "without control", *ARMS, "bound"]
    rows = []
    for cell in every_cell((UNLIMITED,), at=MAX_TIME_TO_UNLIMITED.__contains__):
        pairs = [evidence.pair(cell, arm, UNLIMITED) for arm in (NONE, *ARMS)]
        if any(pairs):
            figures = ["-" if p is None else f"{p.time_ratio:.3f} ({p.restarts:.0f} restarts)" for p in pairs]
            rows.append([cell, *figures, f"{MAX_TIME_TO_UNLIMITED[cell.oversubscription]:.2f}"])
    if not rows:
        return []
    return ["## Beside memory for all", "Total time over that of the same jobs with memory for all.", table(head, rows)]


def _signed(share: float) -> str:
    return percent(share, 1, sign=True)


@contextlib.contextmanager
def boot_counted(setting: str) -> Iterator[Guest]:
    """A guest for this setting whose clock counts instructions."""
    memory = MEMORY[setting]
    with Vm(Machine(memory=memory, cpus=1, counted=True)) as vm:
        guest = VmGuest(vm, memory)
        guest.facts = replace(guest.facts, machine="10^9 instructions a second", virtualization="counted by QEMU")
        yield guest


def publish(results: Results) -> str:
    """Write the report; returns what was done, for people."""
    REPORT.write_text(render(results))
    return f"wrote {REPORT.name}"


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench counted", description="What control costs")
    parser.add_argument("do", choices=("run", "report"))
    args = parser.parse_args(argv)
    end_by_signal()
    try:
        if args.do == "run":
            batches = [*CALM.batches(), *TIGHT.batches()]
            return measure(batches, RESULTS, lambda results, _draw: publish(results), boot=boot_counted)
        Reporter().say(publish(load(RESULTS)))
    except LabError as e:
        Reporter().say(str(e))
        return EXIT_LOST
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
