"""Layout of a command's help, and the error message for a global option given after the command."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from cgpause.cli.exits import fail
from cgpause.core.exit_codes import Exit

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


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

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Parse the arguments; exit with the right order if a global option follows the command, as kubectl allows."""
        try:
            return super().parse_args(ctx, args)
        except Exception as e:
            message = getattr(e, "message", None)
            if isinstance(message, str):  # pydantic's prefix, which newer versions of typer add
                setattr(e, "message", message.removeprefix("Value error, "))  # noqa: B010 - see the class
            unknown = getattr(e, "option_name", None)
            first = next((one for one in ctx.find_root().command.params if unknown in one.opts), None)
            if first is None:
                raise
            value = f" {first.metavar}" if first.metavar else ""
            fail(f"{unknown} stands before the command: cgpause {unknown}{value} {ctx.info_name}", Exit.USAGE)
