"""Tests of the Debian package without installing it (tests/vm/test_package.py installs it)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from helpers.fixtures import Patch
from lab.vm import image as vm_image
from lab.vm.host import LabError, cache_dir
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from release import deb
from release.wheels import build_wheel

from cgpause import __version__
from cgpause.config.load import load_config
from cgpause.config.settings import Config, ProtectConfig

REPO = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
CONTROL = (REPO / "scripts/debian/control").read_text()
DEPENDS = dict(re.findall(r"(python3-[a-z-]+) \(>= ([\d.]+)\)", CONTROL))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"), REPO)


@pytest.fixture(scope="module")
def package(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deb.build_package(tmp_path_factory.mktemp("deb"), wheel, cache_dir())


@pytest.fixture(scope="module")
def root(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package's files, and its control files in DEBIAN/."""
    folder = tmp_path_factory.mktemp("root")
    subprocess.run(["dpkg-deb", "-R", package, folder], check=True)
    return folder


def bundled() -> dict[str, str]:
    return dict(re.findall(r"^(\w+)==(\S+) --hash=", (REPO / "scripts/debian/bundled.txt").read_text(), re.MULTILINE))


def test_lintian_finds_nothing(package: Path) -> None:
    assert shutil.which("lintian"), "lintian is missing (scripts/test installs it)"
    command = ["lintian", "--allow-root", "--fail-on", "error,warning"]
    done = subprocess.run([*command, package], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_same_twice_is_the_same_bytes(package: Path, wheel: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(deb.source_epoch()))

    again = deb.build_package(tmp_path, wheel, cache_dir())

    assert again.name == package.name == f"cgpause_{__version__}_all.deb"
    assert again.read_bytes() == package.read_bytes()


def test_it_has_the_code_and_nothing_of_any_one_python(root: Path) -> None:
    modules = {path.relative_to(REPO) for path in (REPO / "cgpause").rglob("*.py")}
    site = root / deb.SITE

    assert {path.relative_to(site) for path in (site / "cgpause").rglob("*.py")} == modules
    assert sorted(path.name for path in site.iterdir()) == ["cgpause", "debian.pth", "inotify_simple.py", "typer"]
    assert [path for path in root.rglob("*") if path.suffix in (".so", ".pyc")] == []


def test_the_unit_starts_what_is_in_the_package(root: Path) -> None:
    unit = (root / "usr/lib/systemd/system/cgpause.service").read_text()
    directives = re.sub(r"^#.*", "", unit, flags=re.MULTILINE)
    ours = REPO / "systemd/cgpause.service"

    assert "/usr/local" not in directives
    commands = re.findall(r"^Exec\w+=(/usr/lib/cgpause/\S+)", directives, re.MULTILINE)
    commands += re.findall(r"^ExecStopPost=/bin/sh (\S+)", directives, re.MULTILINE)
    assert commands == [f"/usr/lib/cgpause/{name}" for name in ("bin/python", "bin/python", "share/cgpause/restore.sh")]
    assert all(os.path.lexists(root / command.lstrip("/")) for command in commands)
    assert (root / "usr/share/doc/cgpause/operations.md").exists()
    assert "Documentation=file:/usr/share/doc/cgpause/operations.md\n" in directives
    assert len(unit.splitlines()) == len(ours.read_text().splitlines()), "otherwise it is the same unit"


def test_the_metrics_unit_starts_what_is_in_the_package_and_nobody_enables_it(root: Path) -> None:
    unit = (root / "usr/lib/systemd/system/cgpause-metrics.service").read_text()
    ours = (REPO / "systemd/cgpause-metrics.service").read_text()

    assert re.findall(r"^ExecStart=(\S+)", unit, re.MULTILINE) == ["/usr/lib/cgpause/bin/python"]
    assert "Documentation=file:/usr/share/doc/cgpause/metrics.md\n" in unit
    assert (root / "usr/share/doc/cgpause/metrics.md").exists()
    changed = [line for line in ours.splitlines() if line not in unit.splitlines()]
    assert len(changed) == 2, "otherwise it is the same unit"
    for name in deb.SCRIPTS:
        asked = re.findall(
            r"(?:deb-systemd-\w+|systemctl) (?:--\S+ )*(\S+) .*metrics", (root / "DEBIAN" / name).read_text()
        )
        assert set(asked) <= {"update-state", "try-restart", "stop", "purge"}


def test_the_folder_of_the_figures_is_made_at_each_boot(root: Path) -> None:
    tmpfiles = root / "usr/lib/tmpfiles.d/cgpause.conf"

    assert tmpfiles.read_bytes() == (REPO / "systemd/cgpause.tmpfiles").read_bytes()


def test_only_the_configuration_is_the_administrators(root: Path) -> None:
    assert (root / "DEBIAN/conffiles").read_text() == "/etc/cgpause/config.toml\n"
    assert [path for path in (root / "etc").rglob("*") if path.is_file()] == [root / "etc/cgpause/config.toml"]
    config = root / "etc/cgpause/config.toml"
    ours, packaged = (path.read_text().splitlines() for path in (REPO / "systemd/config.toml", config))
    assert [line for line in packaged if line not in ours] == ["all = true"]
    assert load_config(str(config), must_exist=True) == Config(protect=ProtectConfig(all=True))


def test_licenses_of_all_that_is_in_it_are_named(root: Path) -> None:
    text = (root / "usr/share/doc/cgpause/copyright").read_text()

    assert "Sebastián Ramírez" in text
    assert "Permission is hereby granted" in text
    assert "Redistributions in binary form" in text
    assert "{" not in text, "nothing was left to fill in"


@pytest.mark.parametrize("line", PROJECT["dependencies"])
def test_each_dependency_is_bundled_or_debians_and_new_enough(line: str) -> None:
    wanted = Requirement(line)
    name = wanted.name.replace("-", "_")
    version = bundled().get(name) or DEPENDS[f"python3-{wanted.name}"]

    assert Version(version) in wanted.specifier


def test_pythons_that_may_run_it_find_their_folder() -> None:
    lowest, above = re.findall(r"python3 \([><]=?<? ?=? ?(3\.\d+)~\)", CONTROL)

    assert [f"3.{minor}" for minor in (deb.PYTHONS.start, deb.PYTHONS.stop)] == [lowest, above]
    assert all(f"3.{minor}" in SpecifierSet(PROJECT["requires-python"]) for minor in deb.PYTHONS)


def test_the_image_for_tests_has_what_it_depends_on() -> None:
    assert DEPENDS.keys() <= set(vm_image.PACKAGES)
    assert len(DEPENDS) == CONTROL.count("python3-")


def test_what_is_not_pure_python_is_not_bundled(wheel: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    info = tmp_path / "bundle/fast-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "WHEEL").write_text("Root-Is-Purelib: false\n")
    monkeypatch.setattr(deb, "ensure_bundled", lambda _: info.parent)

    with pytest.raises(LabError, match="not pure Python"):
        deb.build_package(tmp_path, wheel, tmp_path)
