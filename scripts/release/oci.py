"""Builds the container image: mmdebstrap makes a small Debian with our package, buildah an OCI archive of it.

The build uses no registry and no daemon: everything comes from the Debian mirror of the host. No file is younger than
the commit, and files that differ from build to build (logs, caches) are left out. No test compares the bytes of two
builds.
"""

import argparse
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.vm.apt_source import apt_options, host_source, security_source
from lab.vm.host import REPO, LabError, cache_dir, run_tool, say

from release.deb import DEBIAN, build_package, source_epoch
from release.wheels import build_wheel

ARCHITECTURES = ("amd64", "arm64")
"""Architectures of nodes, as Debian and OCI call both."""
RECIPE = REPO / "scripts/oci/Containerfile"
SUITE = "bookworm"
"""Debian release of the image, the same on any host."""
PACKAGES = sorted(set(re.findall(r"python3[\w-]*(?= \()", (DEBIAN / "control").read_text())))
"""Dependencies of our package."""
DPKG_OPTIONS = (
    "force-unsafe-io",
    *(f"path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man", "bash-completion")),
    "path-include=/usr/share/doc/*/copyright",
)
# Files that are useless without apt and login shells, and files that differ from build to build. Not tmp/: mmdebstrap
# has its apt configuration there and cleans it up itself; without it, apt would empty the host's own lists.
USELESS = (
    *("boot/*", "home/*", "media/*", "mnt/*", "srv/*", "var/tmp/*", "var/log/*"),
    *("var/cache/debconf/*", "var/cache/ldconfig/*", "var/lib/dpkg/*-old", "etc/*-"),
    *("etc/systemd", "usr/lib/systemd", "usr/share/man", "usr/lib/python3*/test"),
)


def make_root(tarball: Path, package: Path, epoch: int, arch: str) -> None:
    """Write the image's files as a tar.

    Raises:
        ToolError, LabError: the mirror is unknown or unreachable, or this host cannot run programs of `arch`.
    """
    sources = [replace(host_source()[0], suite=SUITE)]
    security = security_source()
    if security is None:
        say("this host has no apt source of security updates: the image will have none of them")
    else:
        sources.append(replace(security, suite=f"{SUITE}-security"))
    unpack = (
        f'cp {shlex.quote(str(package))} "$1/cgpause.deb" && chroot "$1" dpkg -i /cgpause.deb && rm "$1/cgpause.deb"'
        ' && chroot "$1" cgpause --version'  # it runs on this architecture
    )
    clean = 'cd "${1:?}" && rm -rf ' + " ".join(USELESS)
    run_tool(
        [
            "mmdebstrap",
            "--mode=root" if os.geteuid() == 0 else "--mode=unshare",
            "--variant=essential",
            "--format=tar",
            f"--architectures={arch}",
            f"--include={','.join(PACKAGES)}",
            *apt_options(),
            *(f"--dpkgopt={option}" for option in DPKG_OPTIONS),
            f"--customize-hook={unpack}",
            f"--customize-hook={clean}",
            SUITE,
            tarball,
            *(source.line() for source in sources),
        ],
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
    )


def build_image(folder: Path, package: Path, epoch: int, arch: str) -> Path:
    """Build cgpause-VERSION-ARCH-oci.tar into `folder` from our Debian package, and return its path.

    Raises:
        ToolError, LabError: a tool failed, or is missing.
    """
    version = package.name.split("_")[1]
    with tempfile.TemporaryDirectory(prefix="cgpause-oci-") as scratch:
        os.chmod(scratch, 0o755)  # noqa: S103 - in unshare mode another uid has to look in
        context = Path(scratch) / "context"
        context.mkdir()
        shared = Path(scratch) / package.name
        shutil.copyfile(package, shared)
        say("making a small Debian with cgpause in it (a minute)")
        make_root(context / "rootfs.tar", shared, epoch, arch)
        say("packing it")
        store = ["--root", f"{scratch}/storage", "--runroot", f"{scratch}/run", "--storage-driver", "vfs"]
        become_root = [] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--map-auto"]
        buildah = [*become_root, "buildah", *store]
        name = f"localhost/cgpause:{version}"
        stamped = ["--format", "oci", "--arch", arch, "--timestamp", str(epoch), "--build-arg", f"VERSION={version}"]
        run_tool([*buildah, "bud", "--isolation", "chroot", *stamped, "-f", str(RECIPE), "-t", name, str(context)])
        image = Path(scratch) / f"cgpause-{version}-{arch}-oci.tar"
        run_tool([*buildah, "push", "--format", "oci", name, f"oci-archive:{image}:{name}"])
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, folder / image.name)
        run_tool([*buildah, "rmi", "--all", "--force"])  # without root, only buildah can remove all of its folders
    return folder / image.name


def main(argv: Sequence[str]) -> int:
    """Run the command line: build the image and print the archive's path."""
    parser = argparse.ArgumentParser(prog="scripts/image", description="Build the container image.")
    parser.add_argument("folder", nargs="?", default="dist", help="where to put it (default: %(default)s)")
    parser.add_argument("--arch", choices=ARCHITECTURES, help="of the nodes (default: this host's)")
    args = parser.parse_args(argv)
    folder = Path(args.folder)
    try:
        arch = args.arch or host_source()[1]
        with tempfile.TemporaryDirectory(prefix="cgpause-wheel-") as scratch:
            wheel = build_wheel(Path(scratch), REPO)
            package = build_package(Path(scratch), wheel, cache_dir())
            print(build_image(folder, package, source_epoch(), arch))
    except LabError as e:
        say(str(e))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
