"""Changes one thing at a time in a module and runs its unit tests: `python -m lab.measure.mutants`.

A change (a mutant) that no test notices shows behaviour that no test checks. cosmic-ray makes the mutants; one more
operator in this module deletes a statement. The tests of each mutant run in their own process on a copy of the
checkout, so the checkout never contains a mutant. docs/measurements/mutants.{json,md} keep the last result of each
module. Exit status: 3 if a module is below the goal, 2 if a module could not be measured, else 0.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import itertools
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.pages.mutants_report import GOAL_PCT, REPORT, pct
from lab.pages.report import dated
from lab.vm.host import REPO, LabError, say
from lab.vm.payload import source_files

_GROWTH = ("tests/policy/test_growth*.py", "tests/policy/test_peaks.py")
_RESERVE = "tests/policy/test_reserve*.py"
TESTS = {
    "daemon/actuate": ("tests/daemon/actuate",),
    "daemon/brake": ("tests/daemon/brake",),
    "kernel/cgroupfs": ("tests/kernel/test_cgroupfs*.py",),
    "ledger/high": ("tests/ledger/test_high*.py",),
    "ledger/ledger": ("tests/ledger",),
    "ledger/plan": ("tests/ledger",),
    "policy/classify": ("tests/pods/tree/test_classify.py",),
    "policy/decide": (
        "tests/policy/test_policy.py",
        "tests/policy/test_turns.py",
        "tests/policy/test_schedule.py",
        "tests/policy/test_watermark.py",
        _RESERVE,
    ),
    "policy/demand": ("tests/policy/test_demand*.py",),
    "policy/drifts": ("tests/policy/test_drifts.py",),
    "policy/level": ("tests/daemon/brake",),
    "policy/growth": _GROWTH,
    "policy/learn": _GROWTH,
    "policy/limits": ("tests/policy/test_limits.py",),
    "policy/kinds": ("tests/policy/test_kinds.py",),
    "policy/peaks": ("tests/policy/test_peaks.py",),
    "policy/explain": (
        "tests/policy/test_policy.py",
        "tests/policy/test_reserve.py",
        "tests/policy/test_sacrifice.py",
        "tests/cli/commands/test_story.py",
    ),
    "policy/reserve": ("tests/policy/test_sacrifice.py", _RESERVE),
    "policy/sacrifice": ("tests/policy/test_sacrifice.py",),
    "policy/schedule": ("tests/policy/test_schedule.py", "tests/policy/test_policy.py"),
    "policy/serving": ("tests/policy/test_serving.py", _RESERVE),
    "policy/rules": ("tests/policy/test_rules.py",),
    "policy/trips": ("tests/daemon/brake",),
    "policy/watermark": ("tests/policy/test_watermark.py",),
    "restore": ("tests/restore",),
}
"""Patterns of the unit tests of each module of cgpause/; only these tests run against its mutants."""

_Node = Any
"""A node of parso's tree."""
_SAMPLE = 40
_SEED = "cgpause"
_LONGEST_S = 1800
_MEMORY_BYTES = 4 << 30
_COPIED = ("cgpause", "tests", "scripts", "systemd", "docs", "pyproject.toml")
_DELETED = ("expr_stmt", "atom_expr", "power", "raise_stmt", "return_stmt", "await_expr")
"""Kinds of statements to delete, by parso's names."""


Span = tuple[tuple[int, int], tuple[int, int]]
"""Start and end of a piece of code as (line, column): lines from 1, columns from 0, the end excluded."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change to a module."""

    line: int
    before: str
    after: str
    code: str
    """The whole module with the change."""


class _DeleteStatement:
    """An operator for cosmic-ray that replaces a statement of a function with `pass`."""

    def mutation_positions(self, node: _Node) -> Iterator[Span]:
        """Yield the span of the node if it is a statement to delete."""
        if node.type == "simple_stmt" and node.children[0].type in _DELETED and _in_function(node):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: _Node, index: int) -> _Node:
        """Return the node without its statement."""
        import parso  # noqa: PLC0415 - comes with cosmic-ray, which only this measurement needs

        assert index == 0
        parsed = parso.parse("pass").children[0]
        parsed.prefix = node.get_first_leaf().prefix
        node.children[0] = parsed
        return node


def _in_function(node: _Node) -> bool:
    while node is not None and node.type != "classdef":
        if node.type == "funcdef":
            return True
        node = node.parent
    return False


def without_behaviour(code: str) -> list[Span]:
    """Return the spans of code without behaviour: annotations, and class decorators with arguments (`dataclass`)."""
    parts: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.arg | ast.AnnAssign):
            parts.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            parts.append(node.returns)
        elif isinstance(node, ast.ClassDef):
            parts += [one for one in node.decorator_list if isinstance(one, ast.Call)]
    return [
        ((part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)) for part in parts if part
    ]


class Mutants:
    """The mutants of a module: every place to change, and each way to change it."""

    def __init__(self, code: str) -> None:
        from cosmic_ray.ast import ast_nodes, get_ast  # noqa: PLC0415 - installed by scripts/bench, for this only
        from cosmic_ray.plugins import get_operator, operator_names  # noqa: PLC0415

        self._code = code
        operators = {name: get_operator(name) for name in sorted(operator_names())}
        made = {name: operator() for name, operator in operators.items() if not operator.arguments()}
        made["DeleteStatement"] = _DeleteStatement()
        nodes, spans, lines = list(ast_nodes(get_ast(code))), without_behaviour(code), code.splitlines()
        found: dict[tuple[object, ...], list[tuple[str, Any, int]]] = {}
        seen: Counter[str] = Counter()
        for name, operator in made.items():
            places = [place for node in nodes for place in operator.mutation_positions(node)]
            for occurrence, (start, end) in enumerate(places):
                if any(first <= start and end <= last for first, last in spans):
                    continue
                key = f"{name} {start[1]} {lines[start[0] - 1]}"
                seen[key] += 1
                ways = found.setdefault((start, end, name.partition("_")[0]), [])
                ways.append((_rank(f"{key} {seen[key]}"), operator, occurrence))
        self._places = sorted((sorted(ways, key=lambda way: way[0]) for ways in found.values()), key=lambda w: w[0][0])
        """The places in the order of a sample, each with its ways to change it in that order."""

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Mutant]:
        """Yield one mutant for each place, in the order of a sample."""
        from cosmic_ray.mutating import mutate_code  # noqa: PLC0415

        for ways in self._places:
            for _, operator, occurrence in ways:
                mutated = mutate_code(self._code, operator, occurrence)
                if mutated is None or mutated == self._code or not _is_python(mutated):
                    continue
                mutant = _described(self._code, mutated)
                if mutant.before.replace("*,", "/,", 1) != mutant.after:  # no caller passes these by position
                    yield mutant
                    break


def _rank(text: str) -> str:
    """Return a hash as the sort key of a sample: random, and unaffected by changes elsewhere in the module."""
    return hashlib.sha256(f"{_SEED} {text}".encode()).hexdigest()


def _is_python(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            compile(code, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _described(code: str, mutated: str) -> Mutant:
    old, new = code.splitlines(), mutated.splitlines()
    changes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    _, first, last, to_first, to_last = next(change for change in changes if change[0] != "equal")
    before, after = (" ".join(line.strip() for line in lines) for lines in (old[first:last], new[to_first:to_last]))
    return Mutant(first + 1, before, after, mutated)


class Bed:
    """A copy of the checkout, for the runs of a module's tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in source_files(REPO):
            if name.partition("/")[0] in _COPIED:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(REPO / name, folder / name)

    def passes(self, tests: Sequence[str], cpu_s: int = _LONGEST_S, wall_s: float = _LONGEST_S) -> bool:
        """Return True if the tests pass within both limits.

        `cpu_s` of CPU time ends a mutant that computes for ever, `wall_s` of real time a mutant that waits for ever.

        Raises:
            LabError: pytest found no tests.
        """
        context = multiprocessing.get_context("fork")  # pytest and hypothesis are imported already, once
        process = context.Process(target=self._run, args=(list(tests), cpu_s))
        process.start()
        try:
            process.join(wall_s)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid or 0, signal.SIGKILL)  # including processes that a test started
            process.kill()
            process.join()
        if process.exitcode == 5:
            raise LabError(f"no tests in {', '.join(tests)}")
        return process.exitcode == 0

    def _run(self, tests: list[str], cpu_s: int) -> None:
        os.setsid()
        os.chdir(self.folder)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ["PYTHONPATH"] = f"{self.folder}:{self.folder / 'scripts'}"
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True  # a mutant may be as old and as long as the one before it
        sys.path[:] = [str(self.folder), *(path for path in sys.path if not path.startswith(f"{REPO}/scripts"))]
        with (self.folder / "output.txt").open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        import pytest  # noqa: PLC0415 - `--page` does without
        from hypothesis import HealthCheck, Phase, settings  # noqa: PLC0415

        settings.register_profile(
            "mutants",
            deadline=None,
            derandomize=True,
            max_examples=30,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=mutants"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is there already
        os._exit(pytest.main([*options, *tests]))


def measure(name: str, bed: Bed, sample: int | None) -> dict[str, Any]:
    """Run the tests against the mutants of one module; return the counts and the survivors.

    Raises:
        LabError: the tests fail without a mutant.
    """
    path = bed.folder / "cgpause" / f"{name}.py"
    tests = [str(found) for pattern in TESTS[name] for found in sorted(bed.folder.glob(pattern))]
    code = path.read_text()
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    if not bed.passes(tests):
        raise LabError(f"the tests of {name} fail as it is:\n{(bed.folder / 'output.txt').read_text()[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = int(5 + 3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    wall_s = 30 + 5 * (time.monotonic() - began_s)
    mutants = Mutants(code)
    tried = sorted(itertools.islice(mutants, sample), key=lambda mutant: mutant.line)
    survivors = []
    try:
        for number, mutant in enumerate(tried, 1):
            path.write_text(mutant.code)
            if bed.passes(tests, cpu_s, wall_s):
                survivors.append({key: value for key, value in asdict(mutant).items() if key != "code"})
                say(f"{name}:{mutant.line} survived ({number} of {len(tried)}): {mutant.before} -> {mutant.after}")
    finally:
        path.write_text(code)
    killed = len(tried) - len(survivors)
    say(f"{name}: {killed} of {len(tried)} killed, {pct(killed, len(tried)):.0f} %")
    return {"module": name, "mutants": len(mutants), "tried": len(tried), "killed": killed, "survivors": survivors}


def publish(run: dict[str, Any]) -> None:
    """Replace one module's result in docs/; a survivor that was there before keeps its reason."""
    new = dated([])
    before = [one for one in REPORT.load()["runs"] if one["module"] in TESTS]
    others = [one for one in before if one["module"] != run["module"]]
    known = [survivor for one in before if one["module"] == run["module"] for survivor in one["survivors"]]
    reasons = {(one["before"], one["after"]): one["reason"] for one in known if "reason" in one}
    for one in run["survivors"]:
        if reason := reasons.get((one["before"], one["after"])):
            one["reason"] = reason
    run |= {"commit": new["commit"], "date": new["date"]}
    REPORT.write({"runs": sorted([*others, run], key=lambda one: str(one["module"]))})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/bench mutants", description="Mutate modules and run their tests.")
    parser.add_argument("--sample", type=int, default=_SAMPLE, metavar="N", help="mutants of each module (%(default)s)")
    parser.add_argument("--all", action="store_true", help="every mutant: hours")
    parser.add_argument(
        "--page", action="store_true", help="only write the page again, with the reasons in mutants.json"
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of: {', '.join(TESTS)} (all)")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.modules if name not in TESTS]:
        parser.error(f"no such module: {', '.join(unknown)}")
    if args.page:
        REPORT.write(REPORT.load())
        return 0
    import hypothesis  # noqa: F401, PLC0415 - once, for all processes that run tests
    import pytest  # noqa: F401, PLC0415

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copy is removed
    with tempfile.TemporaryDirectory(prefix="cgpause-mutants-") as folder:
        bed = Bed(Path(folder))
        low = False
        try:
            for name in args.modules or TESTS:
                run = measure(name, bed, None if args.all else args.sample)
                publish(run)
                low = low or pct(run["killed"], run["tried"]) < GOAL_PCT
        except LabError as e:
            print(f"mutants: {e}", file=sys.stderr)
            return 2
    return 3 if low else 0


if __name__ == "__main__":
    sys.exit(main())
