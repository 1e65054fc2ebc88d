"""Writes the completion scripts of bash, fish and zsh from the commands.

A script asks cgpause for commands, options and pods. Only the shell completes files and folders, so a script has a list
of the options and commands with a placeholder for one. The scripts are in scripts/completions/;
tests/cli/test_completion.py checks that they equal this module's output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from release.manual import Command, Parameter, commands

_ANSWERS_ITSELF = """\
# Written by scripts/release/completions.py: change that.
# cgpause answers itself; where it fails, nothing is offered and nothing is said.
"""
_BASH = """\
# shellcheck shell=bash
{head}# By name, not "$1": the Tab key shall not run a program that happens to lie in this folder.

_cgpause() {{
    COMPREPLY=()
    case $3 in
        {file_options}) compopt -o default ;;
        {file_commands})
            if [[ $2 == -* ]]; then _cgpause "$1" "$2" ''; else compopt -o default; fi
            ;;
        {folder_options}) compopt -o dirnames ;;
        *)
            mapfile -t COMPREPLY < <(
                env COMP_WORDS="${{COMP_WORDS[*]}}" COMP_CWORD="$COMP_CWORD" _CGPAUSE_COMPLETE=complete_bash \\
                    cgpause 2>/dev/null
            )
            ;;
    esac
}}
complete -F _cgpause cgpause
"""
_ZSH = """\
#compdef cgpause
{head}# What it answers, a value, a tab and its meaning on each line, is data here: nothing of it is evaluated.

local line value
local -a offered

case ${{words[CURRENT-1]}} in
    {file_options}) _files && return ;;
    {file_commands}) [[ $PREFIX != -* ]] && _files && return ;|
    {folder_options}) _files -/ && return ;;
    *)
        for line in ${{(f)"$(env _CGPAUSE_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \\
            _TYPER_COMPLETE_ARGS="${{words[1,CURRENT]}}" cgpause 2>/dev/null)"}}; do
            value=${{${{line%%$'\\t'*}}//:/\\\\:}}
            [[ $line == *$'\\t'* ]] && value+=:${{line#*$'\\t'}}
            offered+=("$value")
        done
        _describe cgpause offered
        ;;
esac
"""
_FISH = """\
{head}
complete -c cgpause -f -a '(env _CGPAUSE_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \\
    _TYPER_COMPLETE_ARGS=(commandline -cp | string collect) cgpause 2>/dev/null)'
complete -c cgpause {file_options} -r -F
complete -c cgpause -n '__fish_seen_subcommand_from {file_commands}' -F
complete -c cgpause {folder_options} -x -a '(__fish_complete_directories)'
"""


def _words() -> dict[str, list[str]]:
    """Return the words after which a shell completes files or folders, sorted.

    `file_commands` are the last words of the commands that take a file, `file_switches` the switches that only these
    have.
    """
    taking: list[Command] = []
    others: list[Command] = []
    for command in commands():
        takes = any(_is_file(one) for one in command.parameters if not one.flags)
        (taking if takes else others).append(command)
    common = _flags(others, bool)
    return {
        "file_options": _flags([*taking, *others], _is_file),
        "folder_options": _flags([*taking, *others], lambda one: one.value == "DIR"),
        "file_commands": sorted(command.name.split()[-1] for command in taking),
        "file_switches": [flag for flag in _flags(taking, lambda one: not one.value) if flag not in common],
    }


def _flags(given: Iterable[Command], wanted: Callable[[Parameter], object]) -> list[str]:
    options = (option for command in given for option in command.options)
    return sorted({flag for option in options if wanted(option) for flag in option.flags})


def _is_file(parameter: Parameter) -> bool:
    """Return True if a parameter's value is a file; an argument is a file unless it refers to pods."""
    if parameter.flags:
        return parameter.value.partition(".")[0] == "FILE"
    return "REF" not in parameter.value and "|" not in parameter.value


def bash() -> str:
    """Return the text of scripts/completions/cgpause.bash."""
    return _BASH.format(head=_ANSWERS_ITSELF, **_cases())


def zsh() -> str:
    """Return the text of scripts/completions/_cgpause."""
    return _ZSH.format(head=_ANSWERS_ITSELF, **_cases())


def fish() -> str:
    """Return the text of scripts/completions/cgpause.fish."""
    found = _words()
    return _FISH.format(
        head=_ANSWERS_ITSELF,
        file_options=_as_fish(found["file_options"]),
        folder_options=_as_fish(found["folder_options"]),
        file_commands=" ".join(found["file_commands"]),
    )


def _cases() -> dict[str, str]:
    found = _words()
    found["file_commands"] += found.pop("file_switches")
    return {name: " | ".join(words) for name, words in found.items()}


def _as_fish(flags: Iterable[str]) -> str:
    return " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in flags)
