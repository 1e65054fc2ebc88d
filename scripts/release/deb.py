"""Builds the Debian package with dpkg-deb: the wheel's files at Debian's paths, and Python packages that Debian lacks.

One package fits every Debian from 12 on, with any Python: /usr/lib/cgpause looks like a virtual environment, so that
the unit, the command and `python -I -m cgpause...` work as after any other installation. Control file, maintainer
scripts and the list of bundled packages are in scripts/debian.
"""

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path

from lab.vm.host import REPO, LabError, building, cache_dir, run_tool, say

from release.wheels import build_wheel, pip

PYTHONS = range(11, 15)
"""Minor versions of Python 3 that Depends allows: Debian 12 has 3.11, Debian 13 has 3.13, the next one has 3.14."""
PREFIX = "usr/lib/cgpause"
SITE = f"{PREFIX}/lib/python3/site-packages"
DEBIAN = REPO / "scripts/debian"

# Path in the package by the beginning of a file's path below the wheel's share/; the first match counts.
PLACES = {
    "cgpause/cgpause-metrics.service": "usr/lib/systemd/system/cgpause-metrics.service",
    "cgpause/cgpause.service": "usr/lib/systemd/system/cgpause.service",
    "cgpause/cgpause.tmpfiles": "usr/lib/tmpfiles.d/cgpause.conf",
    "cgpause/config.toml": "etc/cgpause/config.toml",
    "cgpause/restore.sh": f"{PREFIX}/share/cgpause/restore.sh",
    "zsh/site-functions/": "usr/share/zsh/vendor-completions/",
    "": "usr/share/",
}

# Path in the package by path in the shipped units.
UNIT_PATHS = {
    "/usr/local/lib/cgpause/current/share/cgpause/": f"/{PREFIX}/share/cgpause/",
    "/usr/local/lib/cgpause/current/share/": "/usr/share/",
    "/usr/local/lib/cgpause/current/": f"/{PREFIX}/",
}

FILES = {
    # Only our packages and Debian's: a package that pip put into /usr/local must not change the daemon.
    f"{PREFIX}/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\n",
    f"{SITE}/debian.pth": "/usr/lib/python3/dist-packages\n",
    f"{PREFIX}/bin/cgpause": f'#!/bin/sh\nexec /{PREFIX}/bin/python -I -m cgpause "$@"\n',
}

LINKS = {
    "usr/bin/cgpause": "../lib/cgpause/bin/cgpause",
    f"{PREFIX}/bin/python": "../../../bin/python3",
    **{f"{PREFIX}/lib/python3.{minor}": "python3" for minor in PYTHONS},
}

OPT_IN = (b"\nall = false\n", b"\nall = true\n")
"""A line of the shipped configuration, and its replacement: installed on a whole fleet, the package makes cgpause pause
only pods that a rule allows."""

SCRIPTS = ("preinst", "postinst", "prerm", "postrm")


def build_package(folder: Path, wheel: Path, cache: Path) -> Path:
    """Build cgpause_VERSION_all.deb into `folder` from a wheel of the working tree, and return its path.

    Two builds of the same commit have the same bytes.

    Raises:
        ToolError: a tool failed, or is missing.
        LabError: a bundled package is not pure Python.
    """
    with tempfile.TemporaryDirectory(prefix="cgpause-deb-") as scratch:
        root = Path(scratch)
        version = wheel.name.split("-")[1]
        _unpack(wheel, root)
        licenses = _add_bundled(root, ensure_bundled(cache))
        for name, text in FILES.items():
            _write(root / name, text)
        for name, target in LINKS.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(target)
        _write(root / "usr/share/python3/runtime.d/cgpause.rtupdate", (DEBIAN / "rtupdate").read_text())
        epoch = source_epoch()
        _write_documents(root, version, licenses, epoch)
        _write_control(root, version)
        for path in (root, *root.rglob("*")):
            if not path.is_symlink():  # independent of the umask and of a temporary folder's mode
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        package = folder / f"cgpause_{version}_all.deb"
        folder.mkdir(parents=True, exist_ok=True)
        run_tool(
            ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, package],
            env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        )
    return package


def place(shared: str) -> str:
    """Return the path in the package of a file below the wheel's share/."""
    start = next(start for start in PLACES if shared.startswith(start))
    return PLACES[start] + shared.removeprefix(start)


def _unpack(wheel: Path, root: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        for name in content.namelist():
            _, is_shared, shared = name.partition(".data/data/share/")
            if ".dist-info/" in name:
                continue
            path = root / (place(shared) if is_shared else f"{SITE}/{name}")
            data = content.read(name)
            if path.suffix == ".service":
                for ours, packaged in UNIT_PATHS.items():
                    data = data.replace(ours.encode(), packaged.encode())
            if path.name == "config.toml":
                data = data.replace(*OPT_IN)
            _write_bytes(path, data)


def ensure_bundled(cache: Path) -> Path:
    """Return the folder with the bundled packages, as pip installs them; only the first call needs a network."""
    pins = DEBIAN / "bundled.txt"
    folder = cache / f"bundled-{hashlib.sha256(pins.read_bytes()).hexdigest()[:12]}"
    with building(folder) as work:
        if work is not None:
            pure = ["--no-deps", "--no-compile", "--only-binary=:all:", "--require-hashes"]
            run_tool([*pip(), "install", *pure, "--target", work, "-r", pins])
    return folder


def _add_bundled(root: Path, folder: Path) -> dict[str, str]:
    """Copy the bundled packages beside cgpause's own code; return the license text of each by name."""
    shutil.copytree(folder, root / SITE, dirs_exist_ok=True, ignore=shutil.ignore_patterns("bin", "*.dist-info"))
    licenses = {}
    for info in sorted(folder.glob("*.dist-info")):
        if "Root-Is-Purelib: true" not in (info / "WHEEL").read_text():
            raise LabError(f"{info.name} is not pure Python, and one package serves every Python")
        licenses[info.name.partition("-")[0]] = next(info.rglob("LICENSE*")).read_text()
    return licenses


def source_epoch() -> int:
    """Return SOURCE_DATE_EPOCH, else the time of the last commit, else that of the newest source; in Unix seconds."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    last = subprocess.run(["git", "-C", REPO, "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False)
    if last.returncode == 0:
        return int(last.stdout)
    return int(max(path.stat().st_mtime for path in [REPO / "pyproject.toml", *(REPO / "cgpause").rglob("*.py")]))


def _write_documents(root: Path, version: str, licenses: dict[str, str], epoch: int) -> None:
    documents = root / "usr/share/doc/cgpause"
    texts = {name: textwrap.indent(_paragraphs(text), " ") for name, text in licenses.items()}
    _write(documents / "copyright", (DEBIAN / "copyright").read_text().format(**texts))
    (maintainer,) = re.findall(r"^Maintainer: (.+)$", (DEBIAN / "control").read_text(), re.MULTILINE)
    changes = f"""\
cgpause ({version}) unstable; urgency=medium

  * What changed is in CHANGELOG.md beside this file.

 -- {maintainer}  {formatdate(epoch)}
"""
    _write_compressed(documents / "changelog.gz", changes)
    _write_compressed(documents / "CHANGELOG.md.gz", (REPO / "CHANGELOG.md").read_text())
    for page in (root / "usr/share/man").rglob("*.[0-9]"):
        _write_compressed(page.with_name(f"{page.name}.gz"), page.read_text())
        page.unlink()


def _paragraphs(text: str) -> str:
    """Return a text for a copyright file, with a full stop for each empty line."""
    return "\n".join(line.strip() or "." for line in text.strip().splitlines())


def _write_control(root: Path, version: str) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    names = [str(path.relative_to(root)) for path in files]
    sums = (hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() for path in files)
    # As in dpkg-gencontrol: each file counts in whole KiB, and everything else as one KiB.
    kib = sum(-(-path.stat().st_size // 1024) for path in files) + sum(
        1 for path in root.rglob("*") if path not in files
    )
    control = root / "DEBIAN"
    _write(control / "control", (DEBIAN / "control").read_text().format(version=version, kib=kib))
    _write(control / "md5sums", "".join(f"{digest}  {name}\n" for digest, name in zip(sums, names, strict=True)))
    _write(control / "conffiles", "".join(f"/{name}\n" for name in names if name.startswith("etc/")))
    for name in SCRIPTS:
        _write(control / name, (DEBIAN / name).read_text())


def _write(path: Path, text: str) -> None:
    _write_bytes(path, text.encode())
    if text.startswith("#!"):
        path.chmod(0o755)


def _write_compressed(path: Path, text: str) -> None:
    _write_bytes(path, gzip.compress(text.encode(), mtime=0))


def _write_bytes(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def main(argv: Sequence[str]) -> int:
    """Run the command line: build the package and print its path."""
    parser = argparse.ArgumentParser(prog="scripts/package", description="Build the Debian package.")
    parser.add_argument("folder", nargs="?", default="dist", help="where to put it (default: %(default)s)")
    try:
        with tempfile.TemporaryDirectory(prefix="cgpause-wheel-") as scratch:
            wheel = build_wheel(Path(scratch), REPO)
            print(build_package(Path(parser.parse_args(argv).folder), wheel, cache_dir()))
    except LabError as e:
        say(str(e))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
