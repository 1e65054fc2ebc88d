"""Wheel and sdist: both build, have the expected files, and the wheel can be built from the sdist."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import typer
from lab.vm.payload import source_files

from cgpause import __version__

REPO = Path(__file__).parents[2]
SHARED = {
    "bash-completion/completions/cgpause": "scripts/completions/cgpause.bash",
    "cgpause/cgpause-metrics.service": "systemd/cgpause-metrics.service",
    "cgpause/cgpause.service": "systemd/cgpause.service",
    "cgpause/cgpause.tmpfiles": "systemd/cgpause.tmpfiles",
    "cgpause/config.toml": "systemd/config.toml",
    "cgpause/restore.sh": "systemd/restore.sh",
    "fish/vendor_completions.d/cgpause.fish": "scripts/completions/cgpause.fish",
    "man/man1/cgpause.1": "docs/man/cgpause.1",
    "man/man5/cgpause.toml.5": "docs/man/cgpause.toml.5",
    "zsh/site-functions/_cgpause": "scripts/completions/_cgpause",
} | {f"doc/cgpause/{name.removeprefix('docs/')}": name for name in source_files(REPO) if name.startswith("docs/")}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the sdist, and the wheel that `python -m build` makes from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, REPO)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return dist / f"cgpause-{__version__}-py3-none-any.whl"


def test_there_is_one_of_each(dist: Path, wheel: Path) -> None:
    assert sorted(path.name for path in dist.iterdir()) == [wheel.name, f"cgpause-{__version__}.tar.gz"]


def test_the_wheel_has_the_code_and_what_a_node_needs_beside_it(wheel: Path) -> None:
    code = {name for name in source_files(REPO) if name.startswith("cgpause/")}
    with zipfile.ZipFile(wheel) as found:
        names = {name for name in found.namelist() if ".dist-info/" not in name}

    assert names == code | {f"cgpause-{__version__}.data/data/share/{name}" for name in SHARED}


def test_the_description_links_to_this_versions_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as found:
        text = found.read(f"cgpause-{__version__}.dist-info/METADATA").decode()
    home = re.findall(r"^Project-URL: Homepage, https://github.com/(.+)$", text, re.MULTILINE)[0]
    links = re.findall(r"\]\(([^)]+)\)", text)
    files = [link.partition(f"{home}/blob/v{__version__}/")[2].partition("#")[0] for link in links if "/blob/" in link]
    pictures = [link.partition(f"{home}/v{__version__}/")[2] for link in links if "//raw." in link]

    assert all(link.startswith(("https://", "#")) for link in links)
    assert len(files) > 10
    assert pictures == ["docs/top.svg"]
    assert all((REPO / file).is_file() for file in (*files, *pictures))


def test_the_sdist_has_all_that_is_needed_to_go_on_from_it(dist: Path) -> None:
    with tarfile.open(dist / f"cgpause-{__version__}.tar.gz") as found:
        names = {name.partition("/")[2] for name in found.getnames()}

    assert names - {"PKG-INFO"} == {name for name in source_files(REPO) if not name.startswith("build/")}


def run(*argv: str | Path, **env: str) -> str:
    # Run outside the checkout, because its modules would hide the installed ones.
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env or None, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_installed_wheel_runs_and_has_everything_in_its_place(wheel: Path, tmp_path: Path) -> None:
    """Install as pipx does, with an environment and pip; without network, dependencies come from this environment."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env/bin/python"
    run(
        sys.executable, "-m", "pip", "--python", python, "-q", "--isolated", "install", "--no-deps", "--no-index", wheel
    )
    ours = str(Path(typer.__file__).parents[1])

    for command in ([python, "-m", "cgpause.daemon"], [tmp_path / "env/bin/cgpause"]):
        assert run(*command, "--version", PYTHONPATH=ours) == f"cgpause {__version__}\n"
    assert Path(run(python, "-c", "import cgpause; print(cgpause.__file__)").strip()).is_relative_to(tmp_path)
    for name, source in SHARED.items():
        assert (tmp_path / "env/share" / name).read_bytes() == (REPO / source).read_bytes()
