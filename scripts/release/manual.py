"""Writes the manual pages from the code: cgpause(1) from the commands, cgpause.toml(5) from the options.

This module has the texts on files, environment and examples; docs/cli.md has the meanings of exit codes. The pages are
in docs/man/; tests/cli/test_manual.py checks that they equal this module's output.
"""

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, get_args, get_type_hints

from lab.vm.host import REPO
from typer.main import get_command

from cgpause import __version__
from cgpause.cli.main import app
from cgpause.config.options import all_entries, header
from cgpause.config.render import describe
from cgpause.config.settings import Config
from cgpause.core.paths import DEFAULT_CONFIG, DEFAULT_STATE_DIR, LEARNED_FILE
from cgpause.ledger.record import XATTR

REVISED = "2026-11-22"
"""Date of the pages: the last review of the texts in this module."""

_DESCRIPTION = f"""\
cgpause watches the memory of a Kubernetes node, pauses pods through `cpu.max` or `cgroup.freeze` of their cgroups while
memory is short, and puts every original value back when it is not. It needs neither a container runtime's socket nor
the API server.

The daemon does that by itself; see `systemctl status cgpause`. The commands below show what it does and why, and pause
and resume by hand. All that was done to a pod is recorded on its own cgroup, in the extended attribute `{XATTR}`, so
that whoever comes next can undo it.
"""
_PODS = """\
`REF` is `namespace/name`, a name, a UID, a unique prefix of a UID (four characters or more) or a cgroup path. Of
several, all are tried, and the worst exit status wins. `status`, `pause`, `resume` and `history` take globs too
(`batch/*`, `job-?`; quote them), and then mean all pods that match. Pausing a paused pod or resuming a running one
changes nothing and is no error; `pause --for` sets a new end.
"""
_ENVIRONMENT = {
    "NO_COLOR": "If set and not empty, no command uses colours.",
    "TERM": "`cgpause top` refuses a terminal that cannot place its cursor, such as `dumb`.",
    "SUDO_USER, USER": "Who paused or resumed by hand, as the history has it.",
}
_FILES = {
    DEFAULT_CONFIG: "The configuration; see `cgpause.toml`(5). It need not exist.",
    DEFAULT_STATE_DIR: "The history: `history.jsonl` and `history.jsonl.1`, a JSON object on each line.",
    f"{DEFAULT_STATE_DIR}/{LEARNED_FILE}": "What the daemon has learned of workloads: their peaks, and what they are.",
    "/var/log/pods, /var/log/containers": "The kubelet's log folders, from whose names pods get theirs.",
}
_JOURNAL = ("journalctl -u cgpause CGPAUSE_POD=default/batch-7", "Show what happened to one pod.")
_FORMAT = f"""\
`{DEFAULT_CONFIG}` is in TOML. It need not exist: what it leaves out has its default. `systemctl reload cgpause` reads
it again, in the same way.

Nothing of a file with a mistake is used: the daemon does not start with it, and keeps the old one on a reload. `cgpause
config --check` reports all mistakes at once, with line, value and what is allowed; `cgpause config` prints what is in
effect, as a complete file.

A name in brackets is a section: its options stand below such a line. Each `[[pods]]` is one more rule.
"""


@dataclass(frozen=True, slots=True)
class Parameter:
    """An option or argument of a command."""

    flags: tuple[str, ...]
    """Empty for an argument."""
    value: str
    """Placeholder of its value; empty for a switch."""
    help: str

    @property
    def usage(self) -> str:
        """The parameter's text in a synopsis."""
        return f"[{self.flags[0]}{' ' * bool(self.value)}{self.value}]" if self.flags else self.value


@dataclass(frozen=True, slots=True)
class Command:
    """A command, read from its function; the name is empty for the options that all commands share."""

    name: str
    text: str
    parameters: tuple[Parameter, ...]
    example: str = ""

    @property
    def options(self) -> list[Parameter]:
        """The parameters with flags."""
        return [parameter for parameter in self.parameters if parameter.flags]

    @property
    def usage(self) -> list[str]:
        """The words of the command's synopsis."""
        ordered = sorted(self.parameters, key=lambda parameter: not parameter.flags)
        return [*([self.name] if self.name else []), *(parameter.usage for parameter in ordered)]


def commands() -> list[Command]:
    """Return the options that all commands share, then every command in the order of the help."""
    group: Any = get_command(app)  # typer and click have no type in common over the versions we allow
    registered = app.registered_callback
    assert registered is not None
    found = [Command("", "", tuple(_parameters(registered.callback, group.params)))]
    for name, one in group.commands.items():
        parameters = tuple(_parameters(one.callback, one.params))
        example = (one.epilog or "").removeprefix("Example: ")
        found.append(Command(name, inspect.getdoc(one.callback) or "", parameters, example))
    return found


def _parameters(function: Any, parsed: Iterable[Any]) -> Iterator[Parameter]:  # noqa: ANN401 - a command's function
    function = inspect.unwrap(function)
    hints = get_type_hints(function)
    for one in parsed:
        if one.name not in hints:  # typer's own: --help, and those for completion
            continue
        kind = next((part for part in (hints[one.name], *get_args(hints[one.name])) if isinstance(part, type)), str)
        flags = tuple(flag for flag in one.opts if flag.startswith("-"))
        value = one.metavar or ""
        if issubclass(kind, StrEnum):
            value = "|".join(kind)
        yield Parameter(flags, value, one.help)


def exit_meanings() -> list[tuple[str, str]]:
    """Return each exit code and its meaning, from docs/cli.md."""
    section = (REPO / "docs/cli.md").read_text(encoding="utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    return re.findall(r"^\| (\d) \| (.+) \|$", section, re.MULTILINE)


def command_page() -> str:
    """Return the text of cgpause(1)."""
    before, *rest = commands()
    lines = [
        *_head("cgpause", 1, "pause Kubernetes pods before the OOM killer kills them"),
        ".SH SYNOPSIS",
        *_synopsis([*before.usage, "COMMAND ..."]),
        ".SH DESCRIPTION",
        *_prose(_flowing(_DESCRIPTION)),
        ".SH OPTIONS",
        "These stand before or after the command.",
        *_options(before.options),
        *_entry(["--install-completion", "--show-completion"], "Complete commands, options and pods in this shell."),
        *_entry(["-h", "--help"], "Show what there is and exit; after a command, its options."),
        ".SH COMMANDS",
    ]
    for command in rest:
        lines += [f".SS {_escaped(command.name)}", *_synopsis(command.usage), ".PP", *_prose(_flowing(command.text))]
        lines += _options(command.options)
    lines += [".SH PODS", *_prose(_flowing(_PODS))]
    lines += [".SH EXIT STATUS", *_entries(exit_meanings())]
    lines += [".SH ENVIRONMENT", *_entries(_ENVIRONMENT.items())]
    lines += [".SH FILES", *_entries(_FILES.items())]
    examples = [(command.example, command.text.partition("\n")[0]) for command in rest]
    lines += [".SH EXAMPLES", *_entries([*examples, _JOURNAL])]
    lines += [".SH SEE ALSO", *_see_also(("cgpause.toml", 5), ("systemctl", 1), ("journalctl", 1), ("cgroups", 7))]
    return "\n".join(lines) + "\n"


def options_page() -> str:
    """Return the text of cgpause.toml(5)."""
    lines = [
        *_head("cgpause.toml", 5, "configuration of cgpause"),
        ".SH SYNOPSIS",
        f".I {_escaped(DEFAULT_CONFIG)}",
        ".SH DESCRIPTION",
        *_prose(_flowing(_FORMAT)),
        ".SH OPTIONS",
    ]
    for path, entry in all_entries(Config, Config()):
        if entry.section is None:
            lines += _entry([entry.name], describe(entry))
        else:
            lines += [f".SS {_escaped(header(path, Config))}", *_prose(entry.option.doc)]
    lines += [
        ".SH EXAMPLE",
        ".EX",
        *map(_escaped, ('policy = "reserve"', "", "[[pods]]", 'match = "batch/*"', "priority = -10")),
        ".EE",
        ".SH SEE ALSO",
        *_see_also(("cgpause", 1)),
    ]
    return "\n".join(lines) + "\n"


def _head(name: str, section: int, what: str) -> list[str]:
    title = f'.TH {_escaped(name.upper())} {section} "{REVISED}" "cgpause {__version__}"'
    # Neither stretched lines nor broken words: most long words are commands or paths, which readers copy.
    layout = [".nh", ".ad l"]
    return [
        '.\\" Written by scripts/release/manual.py: change that.',
        title,
        *layout,
        ".SH NAME",
        f"{_escaped(name)} \\- {what}",
    ]


def _synopsis(words: Iterable[str]) -> list[str]:
    # One word a line, with unbreakable spaces: roff breaks lines between options only.
    return [".B cgpause", *(_escaped(word).replace(" ", "\\ ") for word in words)]


def _options(options: Iterable[Parameter]) -> Iterator[str]:
    for option in options:
        yield from _entry(option.flags, option.help, option.value)


def _entries(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, text in entries:
        yield from _entry([name], text)


def _entry(names: Iterable[str], text: str, value: str = "") -> list[str]:
    term = ", ".join(f"\\fB{_escaped(name)}\\fR" for name in names)
    return [".TP", f"{term} \\fI{_escaped(value)}\\fR" if value else term, *_prose(text, ".sp")]


def _flowing(text: str) -> str:
    """Return a text without line breaks except between paragraphs."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text.strip())


def _prose(text: str, between: str = ".PP") -> list[str]:
    """Return a text as lines of roff.

    An empty line begins a paragraph, and a line break stays. Four blanks begin an example, backquotes mean bold.
    """
    lines: list[str] = []
    blocks = text.split("\n")
    for before, block in zip([None, *blocks], blocks):  # noqa: B905 - each with the one before
        if not block:
            lines.append(between)
        elif block.startswith("    "):
            lines += [".EX", _escaped(block), ".EE"]
        else:
            if before and not before.startswith("    "):
                lines.append(".br")
            marked = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", _escaped(block))
            wrapped = textwrap.wrap(marked, 78, break_long_words=False, break_on_hyphens=False)
            lines += [line if line[0] not in ".'" else f"\\&{line}" for line in wrapped]
    return lines


def _see_also(*pages: tuple[str, int]) -> list[str]:
    lines = [f".BR {_escaped(name)} ({section}) ," for name, section in pages]
    return [*lines[:-1], lines[-1].removesuffix(" ,")]


def _escaped(text: str) -> str:
    """Return a text escaped for roff: readers can copy every hyphen, and all characters are ASCII."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return "".join(char if char.isascii() else f"\\[u{ord(char):04X}]" for char in plain)
