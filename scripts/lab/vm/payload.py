"""The guest's contents: the checkout as a tar, and a disk with Python packages for offline use."""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from release.deb import build_package
from release.wheels import build_wheel, pip

from lab.vm.host import ToolError, building, run_tool, say
from lab.vm.image import MKFS

TEST_REQUIREMENTS = r"(prometheus-client|pytest)(?![\w-])"
"""Development tools that the guest's tests need, too."""
GUEST_ROOT = "/opt/cgpause"
SOURCE_TIME = 946684800
"""Time of every Python source in the guest, in seconds since 1970: byte code names the time of its source."""
PACKAGES_SIZE = "1G"  # sparse; leaves room for files of the guest
NOT_SOURCE = frozenset({".git", ".venv", "dist", "__pycache__"})


def ensure_packages(cache: Path, repo: Path, python_version: str) -> Path:
    """Return the disk for /opt/cgpause: site/ for imports, wheels/ for an offline install."""
    project = tomllib.loads((repo / "pyproject.toml").read_text())["project"]
    runtime = project["dependencies"]
    tests = [line for line in project["optional-dependencies"]["dev"] if re.match(TEST_REQUIREMENTS, line)]
    key = "\n".join(["1", python_version, *runtime, "|", *tests])
    folder = cache / f"packages-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    with building(folder) as work:
        if work is not None:
            say(f"fetching Python packages for the guest's Python {python_version}")
            _build_packages(work, runtime, tests, python_version)
    return folder / "packages.ext4"


def _build_packages(work: Path, runtime: Sequence[str], tests: Sequence[str], python_version: str) -> None:
    root = work / "root"
    for_guest = ["--only-binary=:all:", "--python-version", python_version]
    run_tool([*pip(), "download", *for_guest, "-d", root / "wheels", *runtime])
    run_tool([*pip(), "install", *for_guest, "--no-compile", "--target", root / "site", *runtime, *tests])
    python = _host_python(python_version)
    if python is None:
        say(f"no Python {python_version} here to compile the packages with: imports will be slow in the guest")
    else:
        # Unchecked: the guest need not read the sources.
        run_tool([python, "-m", "compileall", "-q", "-j2", "--invalidation-mode=unchecked-hash", root / "site"])
    run_tool([*MKFS, "-E", "root_owner=0:0", "-d", root, work / "packages.ext4", PACKAGES_SIZE])
    shutil.rmtree(root)


def _host_python(version: str) -> str | None:
    """Return a host Python of the guest's minor version, so that the guest can use its byte code."""
    if "{}.{}".format(*sys.version_info) == version:
        return sys.executable
    python = shutil.which(f"python{version}")
    # A version manager's wrapper exists even without the version.
    works = python and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
    return python if works else None


def source_files(repo: Path) -> list[str]:
    """Return the working tree as git sees it, with changes and new files, and the compiled helpers in build/."""
    git = ["git", "-C", str(repo), "ls-files", "-coz", "--exclude-standard"]
    try:
        listed = subprocess.run(git, capture_output=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):  # no checkout: the tar of a release, or a copy
        names = set(_walk(repo, repo))
    else:
        names = set(os.fsdecode(listed).split("\0")) - {""}
        names |= set(_walk(repo, repo / "build"))
    return sorted(name for name in names if os.path.lexists(repo / name))


def _walk(repo: Path, top: Path) -> Iterable[str]:
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if name not in NOT_SOURCE]
        for name in files:
            yield os.path.relpath(os.path.join(folder, name), repo)


def write_payload(
    out: IO[bytes], repo: Path, names: Sequence[str], bytecode: Path | None, built: Mapping[str, Path | None]
) -> None:
    """Write the tar for GUEST_ROOT in the guest: src/ with its byte code, and a folder for each build result."""

    def as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        if member.name.endswith(".py"):
            member.mtime = SOURCE_TIME
        return member

    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in names:
            tar.add(repo / name, f"src/{name}", recursive=False, filter=as_root)
        if bytecode is not None:
            for path in sorted(bytecode.rglob("*.pyc")):
                tar.add(path, f"src/{path.relative_to(bytecode)}", filter=as_root)
        for folder, file in built.items():
            if file is not None:
                tar.add(file, f"{folder}/{file.name}", filter=as_root)
    out.flush()


def ensure_bytecode(cache: Path, repo: Path, names: Iterable[str], python_version: str) -> Path | None:
    """Return a folder with the byte code of the working tree's modules; None without the guest's Python on this host.

    An emulated CPU needs ten seconds to compile what the tests import. Test modules are left out: pytest compiles them.
    """
    python = _host_python(python_version)
    if python is None:
        return None
    modules = [name for name in names if name.endswith(".py") and not Path(name).name.startswith(("conftest", "test_"))]

    def build(work: Path) -> None:
        root = work / "src"
        for name in modules:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(repo / name, root / name)
            os.utime(root / name, (SOURCE_TIME, SOURCE_TIME))
        timestamps = ["--invalidation-mode", "timestamp"]
        run_tool([python, "-m", "compileall", "-q", "-j2", *timestamps, "-s", root, "-p", f"{GUEST_ROOT}/src", root])
        for name in modules:
            (root / name).unlink()

    return _ensure(cache / f"bytecode-{python_version}", repo, modules, build)


def wheel_inputs(names: Iterable[str]) -> list[str]:
    """Return the files of the tree that can change the wheel."""
    wanted = re.compile(
        r"(cgpause|docs/man|scripts/completions|systemd)/|docs/[^/]*\.md$|docs/measurements/[^/]*\.(md|png)$|[^/]*$"
    )
    return [name for name in names if wanted.match(name)]


def ensure_wheel(cache: Path, repo: Path, names: Sequence[str]) -> Path | None:
    """Return a wheel of the working tree; None, and a warning, if the build fails."""
    return _ensure(cache / "wheels", repo, wheel_inputs(names), lambda work: build_wheel(work, repo))


def ensure_package(cache: Path, repo: Path, names: Sequence[str], wheel: Path | None) -> Path | None:
    """Return the Debian package of the working tree; None, and a warning, if the build fails."""
    if wheel is None:
        return None
    inputs = [name for name in names if name.startswith("scripts/debian/") or name == "scripts/release/deb.py"]
    return _ensure(
        cache / "debs", repo, [*wheel_inputs(names), *inputs], lambda work: build_package(work, wheel, cache)
    )


def _ensure(builds: Path, repo: Path, inputs: Iterable[str], build: Callable[[Path], object]) -> Path | None:
    """Return the result of `build` for these files of the working tree, built once."""
    digest = hashlib.sha256()
    for name in inputs:
        data = (repo / name).read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    folder = builds / digest.hexdigest()[:12]
    try:
        with building(folder) as work:
            if work is not None:
                build(work)
    except ToolError as e:
        say(f"warning: none of {builds.name} for the guest: {e}")
        return None
    found = next(folder.iterdir())
    _forget_old(builds, keep=20)
    return found


def _forget_old(folder: Path, *, keep: int) -> None:
    """Remove all but the newest `keep` builds. Another VM may do the same at the same time."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir():
                found.append((path.stat().st_mtime, path))
    for _, path in sorted(found)[:-keep]:
        shutil.rmtree(path, ignore_errors=True)
        Path(f"{path}.lock").unlink(missing_ok=True)
