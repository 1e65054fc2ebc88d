"""The live dashboard in a pseudo-terminal, on a tree of ordinary files: keys, signals, restored terminal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.commandline import MIB, argv
from helpers.terminals import TerminalProgram, wait_until_stopped
from helpers.trees import FakeTree, cpu_max, records_left, rewrite, wait_until

from cgpause.core.errors import Exit

UP, DOWN = "\x1b[A", "\x1b[B"


@pytest.fixture
def tree(tmp_path: Path) -> FakeTree:
    tree = FakeTree(tmp_path)
    for name, mib in (("web", 300), ("db", 200), ("cache", 100)):
        tree.add_pod(name, mib * MIB, cpu_max="50000 100000", memory_max=str(400 * MIB))
    tree.add_pod("dns", 10 * MIB, namespace="kube-system")
    tree.set_used(610 * MIB)
    return tree


def leave(program: TerminalProgram) -> None:
    """Quit; the program ends well and leaves the terminal as it was."""
    program.type("q")
    assert program.end() == 0
    assert program.is_as_before()


@contextmanager
def shown(
    tree: FakeTree, columns: int = 80, lines: int = 24, *, as_job: bool = False, options: Sequence[str] = ()
) -> Iterator[TerminalProgram]:
    with TerminalProgram(argv(tree, *options, "top"), columns=columns, lines=lines, as_job=as_job) as program:
        program.wait_for("q quit")
        yield program


def pod(tree: FakeTree, name: str) -> Path:
    return next(tree.root.rglob(f"*{tree.uids[name].replace('-', '_')}.slice"))


def select(program: TerminalProgram, label: str) -> None:
    """Press the arrow key until the pod with this label is selected."""
    program.type("g")
    header = next(number for number, text in enumerate(program.screen.lines) if "POD" in text)
    program.wait_for(lambda _: "▶ " in program.screen.lines[header + 1])
    for _ in range(20):
        if f"▶ {label}" in program.text:
            return
        before = program.line_with("▶ ")
        program.type(DOWN)
        program.wait_for(lambda _: program.line_with("▶ ") != before)  # noqa: B023 - called at once
    pytest.fail(f"{label} cannot be selected:\n{program.text}")


def test_a_changed_configuration_counts_from_the_next_seconds_on(tree: FakeTree) -> None:
    file = tree.folder / "config.toml"
    file.write_text('[[pods]]\nmatch = "default/db"\nprotect = true\n')
    with shown(tree, options=["--config", str(file)]) as program:
        program.wait_for(lambda _: "protected" in program.line_with("default/db"))
        rewrite(file, "# nothing is protected any more".ljust(80) + "\n")
        program.wait_for(lambda _: "protected" not in program.line_with("default/db"))
        rewrite(file, "polycy = 1".ljust(90) + "\n")
        program.wait_for("the configuration is broken")


def test_a_pod_is_paused_after_a_yes_and_resumed(tree: FakeTree) -> None:
    state = tree.folder / "state"
    state.mkdir()
    with shown(tree, options=["--state-dir", str(state)]) as program:
        select(program, "default/db")
        program.type("p")
        program.wait_for("Pause default/db? It stays paused until you resume it.")
        assert cpu_max(pod(tree, "db")) == "50000 100000"
        program.answer("y")
        program.wait_for("default/db paused: cpu.max 50000 100000 -> 1001 100000")
        assert cpu_max(pod(tree, "db")) == "1001 100000"
        program.wait_for(lambda _: " paused " in program.line_with("▶ default/db"))
        program.wait_for(lambda _: "cgpause top by" in program.line_with("  paused "))

        program.type("r")
        program.wait_for("Resume default/db?")
        program.answer("y")
        program.wait_for("default/db resumed: cpu.max 50000 100000")
        assert cpu_max(pod(tree, "db")) == "50000 100000"
        program.wait_for(lambda _: "running" in program.line_with("▶ default/db"))
        leave(program)
    assert records_left(tree.root) == []


def test_a_terminal_of_the_c_locale_gets_ascii(tree: FakeTree) -> None:
    with TerminalProgram(argv(tree, "top"), env={"LC_ALL": "C"}) as program:
        assert program.wait_for("> default/web").isascii()


def test_a_terminal_that_cannot_move_its_cursor_is_refused(tree: FakeTree) -> None:
    with TerminalProgram(argv(tree, "top"), columns=120, env={"TERM": "dumb"}) as program:
        assert program.end() == Exit.USAGE
        assert "(TERM); cgpause status prints the node once" in program.text


@pytest.mark.parametrize("typed", [b"py", b"f\x1b[By", b"py\x1b"])
def test_what_was_typed_before_the_question_was_shown_is_no_answer(typed: bytes, tree: FakeTree) -> None:
    with shown(tree) as program:
        select(program, "default/db")
        program.type(typed)
        program.wait_for("y/N")
        time.sleep(0.3)  # a lone ESC counts after a tenth of a second
        program.read()
        assert "y/N" in program.text
        program.answer("n")
        program.wait_for("nothing was done")
    assert records_left(tree.root) == []


def test_a_question_that_a_stopped_terminal_does_not_show_cannot_be_answered(tree: FakeTree) -> None:
    with shown(tree) as program:
        select(program, "default/db")
        program.type("\x13p")
        time.sleep(0.5)
        program.type("y")
        time.sleep(0.3)
        program.type("\x11")
        program.answer("n")
        program.wait_for("nothing was done")
    assert records_left(tree.root) == []


def test_a_history_that_cannot_be_written_shifts_no_line(tree: FakeTree) -> None:
    state = tree.folder / "state"
    (state / "history.jsonl").mkdir(parents=True)
    with shown(tree, columns=120, options=["--state-dir", str(state)]) as program:
        select(program, "default/db")
        program.type("f")
        program.answer("y")
        program.wait_for("default/db paused: frozen; this is not in the history:")
        assert program.text.count("this is not in the history") == 1
        assert program.screen.lines[0].startswith(" cgpause top")


def test_the_interval_is_as_long_as_asked_for(tree: FakeTree) -> None:
    with shown(tree) as beside, TerminalProgram(argv(tree, "top", "--interval", "1h")) as program:
        program.wait_for("default/web")
        for name in ("first", "second"):  # at least one interval of the other program apart
            tree.add_pod(name, 50 * MIB)
            beside.wait_for(f"default/{name}")
        program.type(DOWN)
        program.wait_for(lambda _: "▶" in program.screen.lines[8])
        assert "default/first" not in program.text


@pytest.mark.parametrize(("columns", "lines"), [(200, 60), (40, 12), (20, 5), (80, 24)])
def test_a_resize_draws_everything_anew(columns: int, lines: int, tree: FakeTree) -> None:
    with shown(tree, 100, 30) as program:

        def is_drawn(text: str) -> bool:
            """A frame of the old size may come first, and be too wide."""
            bottom = "".join(program.screen.lines[-2:])
            return "default/web" in text and "mark" in bottom and not program.screen.too_wide

        program.resize(columns, lines)
        program.wait_for(is_drawn)


@pytest.mark.parametrize(
    "end",
    [
        *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
        pytest.param("\x03", id="ctrl-c"),
        pytest.param("\x1c", id="ctrl-backslash"),
    ],
)
def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(end: signal.Signals | str, tree: FakeTree) -> None:
    with shown(tree) as program:
        if isinstance(end, str):
            program.type(end)
        else:
            program.signal(end)

        assert program.end() == 0
        assert program.is_as_before()
        assert "Traceback" not in program.text


@pytest.mark.parametrize("how", ["ctrl-z", "SIGSTOP"])
def test_suspended_it_comes_back(how: str, tree: FakeTree) -> None:
    """The dashboard cannot catch SIGSTOP, so it sets the terminal up again after SIGCONT."""
    with shown(tree, as_job=True) as program:
        pid = program.pid
        if how == "ctrl-z":
            program.type("\x1a")
        else:
            program.signal(signal.SIGSTOP)
        wait_until_stopped(pid)
        program.read()
        assert program.is_as_before() == (how == "ctrl-z")
        program.screen.clear()
        os.kill(pid, signal.SIGCONT)

        program.wait_for("default/web")
        assert "?1049" in program.screen.modes
        leave(program)


def test_continued_in_the_background_it_waits_for_the_foreground(tree: FakeTree) -> None:
    """Ctrl-Z, `bg`, `fg`: in the background, setting the terminal's attributes stops the process; `fg` resumes."""
    with shown(tree, as_job=True) as program:
        pid = program.pid
        program.type("\x1a")
        wait_until_stopped(pid)
        program.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: program.pid != pid, "the shell in the foreground")
        os.kill(pid, signal.SIGCONT)
        wait_until_stopped(pid)
        program.read()
        program.screen.clear()
        program.process.send_signal(signal.SIGUSR2)

        program.wait_for("default/web")
        leave(program)


def test_a_terminal_that_hangs_up_ends_it(tree: FakeTree) -> None:
    with shown(tree) as program:
        os.close(program._child)
        program._child = os.open(os.devnull, os.O_RDONLY)
        program.hang_up()

        assert program.process.wait(60) == 0


def test_everything_may_break_while_it_is_shown(tree: FakeTree) -> None:
    with shown(tree) as program:
        (tree.kubepods / "memory.stat").write_text("rubbish")
        program.wait_for("malformed memory.stat")
        tree.set_used(500 * MIB)
        program.wait_for("pauses <")
        os.setxattr(pod(tree, "web"), "user.cgpause", b"rubbish")
        program.wait_for(lambda _: "protected" in program.line_with("default/web"))
        tree.kubepods.rename(tree.folder / "away")
        program.wait_for("none on this node (yet)")
        tree.root.rename(tree.folder / "root-away")
        program.wait_for(lambda text: "gone" in text or "none on this node" in text)
        leave(program)
