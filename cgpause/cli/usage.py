"""The layout of the help, options common to several commands, and global options after the command."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from cgpause.cli.exits import fail
from cgpause.core.errors import Exit


class Format(StrEnum):
    """Formats of a command's output, beside the usual one."""

    JSON = "json"
    WIDE = "wide"


class Json(StrEnum):
    """Format of the output of a command without a wider table."""

    JSON = "json"


Output = Annotated[
    Format | None, typer.Option("--output", "-o", metavar="json|wide", help="Print JSON, or a table with all columns.")
]
JsonOutput = Annotated[Json | None, typer.Option("--output", "-o", metavar="json", help="Print JSON, for machines.")]


class Command(TyperCommand):
    """A typer command with our help layout; contexts are `Any`, as typer's versions share no context type."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002
        """Return [OPTIONS] and the metavars of the arguments, without the brackets that each version of typer adds."""
        return ["[OPTIONS]", *(one.metavar or "" for one in self.params if one.param_type_name == "argument")]

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the arguments and options without typer's additions: Python's types and an escaped [required]."""
        arguments = [one for one in self.params if one.param_type_name == "argument"]
        options = [one.get_help_record(ctx) for one in self.get_params(ctx) if one not in arguments]
        rows = {
            "Arguments": [(one.metavar or "", getattr(one, "help", None) or "") for one in arguments],
            "Options": [row for row in options if row is not None],
        }
        for title, shown in rows.items():
            if shown:
                with formatter.section(title):
                    formatter.write_dl(shown)

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401
        """Return the parameters; for the Tab key with the global options, which may stand here too."""
        own = super().get_params(ctx)
        return [*own, *ctx.find_root().command.params] if ctx.resilient_parsing else own


class Group(TyperGroup):
    """A group of commands whose help lists them under the titles of their panels, before the options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Parse the arguments; global options may stand after the command too, as kubectl allows."""
        return super().parse_args(ctx, _options_first(args, self.params, is_complete=not ctx.resilient_parsing))

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the commands, panel by panel, and then the options."""
        panels: dict[str, list[tuple[str, str]]] = {}
        names = self.list_commands(ctx)
        longest = max(map(len, names))
        for name in names:
            command: Any = self.get_command(ctx, name)
            text = command.get_short_help_str(formatter.width - longest - 6)
            panels.setdefault(command.rich_help_panel, []).append((name.ljust(longest), text))
        options = [one.get_help_record(ctx) for one in self.get_params(ctx)]
        for title, rows in (*panels.items(), ("Options", filter(None, options))):
            with formatter.section(title):
                formatter.write_dl(list(rows))


def _options_first(args: Sequence[str], options: Sequence[Any], *, is_complete: bool) -> list[str]:
    """Return the words of a command line with the global options before all others.

    In a line that `is_complete` an option without its value is an error; else the Tab key is to complete the value.
    """
    named = {name: option for option in options for name in option.opts}
    first: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        if word == "--":
            rest.append(word)
            break
        if name not in named:
            rest.append(word)
        elif word != name or named[name].is_flag:
            first.append(word)
        elif (value := next(words, None)) is not None:
            first += [word, value]
        elif is_complete:
            fail(f"{word} needs a value ({named[name].metavar})", Exit.USAGE)
        else:
            rest.append(word)
    return [*first, *rest, *words]
