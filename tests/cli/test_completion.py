"""Tab completion in bash and zsh at a terminal, and in fish, which prints completions without a terminal."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from helpers.commandline import place, process
from helpers.terminals import Screen, TerminalProgram
from helpers.trees import FakeTree, pause_pod
from release.manual import Command, Parameter, commands

from cgpause.core.model import Owner

REPO = Path(__file__).parents[2]
SCRIPTS = REPO / "scripts/completions"
PROMPT = "what now> "
OPTIONS = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}
SET_UP = {
    "bash": f" PS1={PROMPT!r}; source {REPO}/scripts/completions/cgpause.bash\n",
    "zsh": f" PS1={PROMPT!r}; fpath+={REPO}/scripts/completions; autoload -U compinit; compinit -u -d ~/zcompdump\n",
}
# Completes as the real command does; otherwise writes its arguments to a file.
COMMAND = f"""\
#!/bin/sh
[ -n "$_CGPAUSE_COMPLETE" ] && exec {sys.executable} -m cgpause "$@"
printf '%s\\n' "$@" >"$HOME/new" && mv "$HOME/new" "$HOME/called"
"""


def lay_out(folder: Path) -> FakeTree:
    """Make two running pods, one of them without a name, and a paused pod."""
    tree = FakeTree(folder)
    tree.add_pod("web")
    tree.add_pod("stranger", log=False)
    pause_pod(tree.root, tree.add_pod("batch-7"), Owner.MANUAL)
    return tree


def environment(home: Path, command: str = COMMAND) -> Mapping[str, str]:
    """Make a home folder with only the command in it; return the environment for it."""
    (home / "bin").mkdir(parents=True)
    (home / "bin/cgpause").write_text(command)
    (home / "bin/cgpause").chmod(0o755)
    path = f"{home}/bin:/usr/local/bin:/usr/bin:/bin"
    return {"HOME": str(home), "PATH": path, "PYTHONPATH": str(REPO), "TERM": "xterm", "LC_ALL": "C.UTF-8"}


def installed(shell: str) -> str:
    found = shutil.which(shell)
    assert found, f"{shell} is missing (scripts/test installs it)"
    return found


class Transcript(Screen):
    """The output since the last typing, in place of a screen."""

    def clear(self) -> None:
        self.shown = ""

    @property
    def lines(self) -> list[str]:
        return [self.shown]

    def feed(self, text: str) -> str:
        self.shown += text
        return ""


class Shell(TerminalProgram):
    """A shell at its prompt, with cgpause's completion loaded; leaving the block ends the shell."""

    def __init__(self, name: str, folder: Path, command: str = COMMAND) -> None:
        self.tree = lay_out(folder)
        self.home = folder / "home"
        super().__init__([installed(name), *OPTIONS[name]], env=environment(self.home, command))
        self.screen = Transcript(80, 24)
        self.type(SET_UP[name])
        # The echo of the set-up line also contains the prompt, in quotes.
        self.wait_for(lambda shown: re.search(rf"(?<!'){PROMPT}", shown) is not None)

    def type(self, text: str | bytes) -> None:
        self.screen.clear()
        super().type(text)

    def called(self, keys: str) -> list[str]:
        """Type these keys and Enter; return the arguments with which `cgpause` is called."""
        file = self.home / "called"
        self.type(f"{keys}\n")
        self.wait_for(lambda _: file.exists())
        words = file.read_text().splitlines()
        file.unlink()
        return words


@pytest.fixture(scope="module", params=OPTIONS)
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with Shell(request.param, tmp_path_factory.mktemp(request.param)) as shell:
        yield shell


@pytest.fixture
def tree(tmp_path: Path) -> FakeTree:
    return lay_out(tmp_path)


@pytest.mark.parametrize(
    ("keys", "completed"),
    [
        pytest.param("resu\t", ["resume"], id="command"),
        pytest.param("pause --mech\tfr\t", ["pause", "--mechanism", "freeze"], id="option-and-value"),
        pytest.param("resume \t", ["resume", "default/batch-7"], id="the-paused-one"),
        pytest.param("pause d\t", ["pause", "default/web"], id="the-running-one"),
        pytest.param("pause 0\t", ["pause", "00000002-0000-4000-8000-000000000002"], id="one-without-a-name"),
        pytest.param("explain default/b\t", ["explain", "default/batch-7"], id="the-one-to-explain"),
        pytest.param("pause -n default w\t", ["pause", "-n", "default", "web"], id="of-a-namespace"),
        pytest.param("status -n d\t", ["status", "-n", "default"], id="a-namespace-after-the-command"),
        pytest.param("status --names\tdefault", ["status", "--namespace", "default"], id="a-global-option"),
        pytest.param("history --pod default/b\t", ["history", "--pod", "default/batch-7"], id="any"),
    ],
)
def test_tab_completes(shell: Shell, keys: str, completed: list[str]) -> None:
    where = place(shell.tree)

    assert shell.called(f"cgpause {' '.join(where)} {keys}") == [*where, *completed]


def test_tab_completes_files_and_folders_where_one_is_wanted(shell: Shell) -> None:
    folder = shell.tree.folder
    (folder / "mine").write_text("")
    (folder / "otherwise").mkdir()
    (folder / "other").write_text("")

    assert shell.called(f"cgpause --config {folder}/m\tstatus") == ["--config", f"{folder}/mine", "status"]
    assert shell.called(f"cgpause bug-report --k\t{folder}/m\t") == ["bug-report", "--keep-names", f"{folder}/mine"]
    words = shell.called(f"cgpause --log-dir {folder}/o\t status")
    assert [word.rstrip("/") for word in words] == ["--log-dir", f"{folder}/otherwise", "status"]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("command", ["#!/bin/sh\necho oh no >&2; exit 1\n", "#!/nowhere\n"], ids=["fails", "absent"])
def test_a_completion_that_fails_says_nothing(name: str, command: str, tmp_path: Path) -> None:
    with Shell(name, tmp_path, command) as shell:
        shell.type("cgpause pause \t\x15echo $((40+2))\n")  # Ctrl-U clears the line
        shown = shell.wait_for("42")

    assert not re.search("oh no|nowhere|not found|No such", shown)


def fish_offers(line: str, env: Mapping[str, str]) -> list[str]:
    script = f"source {REPO}/scripts/completions/cgpause.fish; complete -C {line!r}"
    command = [installed("fish"), "--no-config", "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return [offer.partition("\t")[0] for offer in done.stdout.splitlines()]


def test_fish_offers_the_same(tree: FakeTree, tmp_path: Path) -> None:
    env = environment(tmp_path / "home")
    cgpause = f"cgpause {' '.join(place(tree))}"

    assert fish_offers("cgpause resu", env) == ["resume"]
    assert sorted(fish_offers(f"{cgpause} pause --mechanism ", env)) == ["freeze", "throttle"]
    assert fish_offers(f"{cgpause} resume ", env) == ["default/batch-7"]
    assert sorted(fish_offers(f"{cgpause} pause ", env)) == ["00000002-0000-4000-8000-000000000002", "default/web"]
    assert fish_offers(f"{cgpause} pause default/web 0", env) == ["00000002-0000-4000-8000-000000000002"]
    assert f"{tree.log_dir}/" in fish_offers(f"cgpause --log-dir {tree.folder}/l", env)
    assert f"{tmp_path}/home/" in fish_offers(f"cgpause --config {tmp_path}/h", env)
    assert f"{tmp_path}/home/" in fish_offers(f"cgpause bug-report {tmp_path}/h", env)
    assert fish_offers("cgpause bug-report --k", env) == ["--keep-names"]


def test_fish_says_nothing_either_when_it_fails(tmp_path: Path) -> None:
    env = environment(tmp_path / "home", "#!/bin/sh\necho oh no >&2; exit 1\n")

    assert fish_offers("cgpause pause ", env) == []


def offered(tree: FakeTree, *words: str) -> list[str]:
    """Return the completions that are offered for the last word."""
    line = ["cgpause", *place(tree), *words]
    env = {"COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1), "_CGPAUSE_COMPLETE": "complete_bash"}
    done = process(tree, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode().split()


def flags(given: list[Command], wanted: Callable[[Parameter], object]) -> list[str]:
    options = (option for command in given for option in command.options)
    return sorted({flag for option in options if wanted(option) for flag in option.flags})


def is_file(parameter: Parameter) -> bool:
    """Return True if a parameter's value is a file; an argument is a file unless it refers to pods."""
    if parameter.flags:
        return parameter.value.partition(".")[0] == "FILE"
    return "REF" not in parameter.value and "|" not in parameter.value


def test_the_scripts_name_each_option_and_command_that_takes_a_file_or_folder() -> None:
    """A new one belongs into all three scripts."""
    taking = [one for one in commands() if any(is_file(each) for each in one.parameters if not each.flags)]
    others = [one for one in commands() if one not in taking]
    files, folders = flags(commands(), is_file), flags(commands(), lambda one: one.value == "DIR")
    names = sorted(command.name for command in taking)
    switches = [flag for flag in flags(taking, lambda one: not one.value) if flag not in flags(others, bool)]

    for script, ends in (
        ("cgpause.bash", (" compopt -o default", "\n", " compopt -o dirnames")),
        ("_cgpause", (" _files &&", " [[ $PREFIX", " _files -/")),
    ):
        text = (SCRIPTS / script).read_text()
        for words, end in zip((files, names + switches, folders), ends, strict=True):
            assert f" {' | '.join(words)}){end}" in text, script
    assert sorted(path.name for path in SCRIPTS.iterdir()) == ["_cgpause", "cgpause.bash", "cgpause.fish"]
    fish = (SCRIPTS / "cgpause.fish").read_text()
    for options, end in ((files, "-r -F"), (folders, "-x -a")):
        assert f"cgpause {' '.join(f'-l {flag[2:]}' for flag in options)} {end}" in fish
    assert f"'__fish_seen_subcommand_from {' '.join(names)}' -F" in fish


def test_what_the_daemon_holds_can_be_resumed_and_taken_over(tree: FakeTree) -> None:
    pause_pod(tree.root, tree.add_pod("paused"), Owner.DAEMON)

    assert "default/paused" in offered(tree, "pause", "")
    assert offered(tree, "resume", "") == ["default/batch-7", "default/paused"]


def test_only_one_pod_is_offered_where_only_one_is_taken(tree: FakeTree) -> None:
    assert offered(tree, "explain", "") == offered(tree, "history", "--pod", "")
    assert offered(tree, "explain", "default/web", "") == []


@pytest.mark.parametrize("where", ["no tree", "no kubepods", "no names"])
def test_a_node_with_something_missing_offers_what_there_is(where: str, tmp_path: Path) -> None:
    tree = FakeTree(tmp_path)
    tree.add_pod("web")
    if where == "no names":
        shutil.rmtree(tree.log_dir)
    else:
        shutil.rmtree(tree.root if where == "no tree" else tree.kubepods)

    assert offered(tree, "pause", "") == ([tree.uids["web"]] if where == "no names" else [])
