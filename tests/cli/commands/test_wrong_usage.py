"""Wrong usage: each command says in its error what would be right."""

from __future__ import annotations

import shlex

import pytest
from helpers.commandline import ESCAPED, HOSTILE, run
from helpers.trees import FakeTree


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (f"--cgroup-root '/nonexistent/{HOSTILE}' status", 1, f"/nonexistent/{ESCAPED}: no such directory"),
        ("--cgroup-root /dev/null resume --all", 1, "cgpause: --cgroup-root /dev/null: no such directory"),
        (f"--config '/nonexistent/{HOSTILE}' status", 2, f"/nonexistent/{ESCAPED}: cannot be read: No such"),
        ("status -n", 2, "cgpause: -n needs a value (NAMESPACE)"),
        *((f"{name} -n default", 2, f"not for {name}") for name in ("check", "config", "run", "metrics", "top")),
        ("explain --for 0", 2, "--for: invalid time '0': use 90s, 10m, 1h30m, 2d or 1w, from 1s to 100 years"),
        ("explain --for ''", 2, "--for: invalid time '': use 90s"),
        ("pause web --for 5215w", 2, "--for: invalid time '5215w': use 90s"),
        ("pause web --mechanism freez", 2, "'--mechanism': 'freez' is not one of 'throttle', 'freeze'."),
        ("top", 2, "is drawn on a terminal, and this is none; cgpause status prints the node once"),
        ("top --interval 0", 2, "--interval: invalid time '0': use 90s"),
        ("metrics --once", 2, "--cgroup-root: nothing is published about another tree without --run-dir"),
        ("metrics --run-dir /run --listen here", 2, "--listen here: give an IP address and a port"),
        ("metrics --run-dir /run --once --listen :1", 2, "--listen does not go with --once"),
        *(
            (f"bug-report '{file}'", 2, f"FILE '{file}': the report is a .tar.gz; name a file *.tar.gz, or a folder")
            for file in ("", "/nonexistent/report.zip", "/nonexistent/report.gz", "/nonexistent/report")
        ),
        ("simulate", 2, "give a WORKLOAD.toml or --preset, one of paper-2g-100, "),
        ("simulate --preset paper-3?-*", 2, "there is no such preset; did you mean paper-8g-150? There"),
        ("simulate --preset paper2g-150", 2, "did you mean paper-2g-150? There are paper-2g-100, "),
        (f"simulate --preset '{HOSTILE}'", 2, "there is no such preset. There are"),
        ("simulate /nonexistent/x.toml", 2, "cannot be read: No such file"),
        ("simulate /", 2, "/: is a directory"),
        ("simulate /dev/null", 2, "is not a regular file"),
        ("simulate --policy mine", 2, "'--policy': 'mine' is not one of 'none', 'watermark', 'reserve'."),
        ("simulate --seed -1", 2, "--seed"),
        ("simulate --seeds 0", 2, "--seeds"),
        ("simulate --jobs 0", 2, "--jobs"),
        ("simulat", 2, "No such command 'simulat'."),
    ],
    ids=ascii,
)
def test_wrong_usage_says_what_would_be_right(line: str, code: int, said: str, tree: FakeTree) -> None:
    result = run(tree, *shlex.split(line))

    assert (result.exit_code, result.stdout) == (code, "")
    assert said in " ".join(result.stderr.replace("│", " ").split())
    assert result.stderr.replace("\n", "").isprintable()
