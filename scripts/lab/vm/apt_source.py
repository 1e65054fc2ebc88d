"""The apt source of the host's Debian: images for VMs and containers are built from it."""

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from lab.vm.host import LabError, run_tool


@dataclass(frozen=True, slots=True)
class AptSource:
    """An apt source of Debian."""

    site: str
    suite: str
    keyring: str | None

    def line(self) -> str:
        """Return the source as a line of sources.list."""
        options = f"[signed-by={self.keyring}] " if self.keyring else ""
        return f"deb {options}{self.site} {self.suite} main"


def _keyring_of(entry: Path, site: str) -> str | None:
    """Return the keyring for `site` in a sources file of either format; None: apt's default."""
    try:
        sources = entry.read_text()
    except OSError:
        return None
    for block in sources.split("\n\n") if "URIs:" in sources else sources.splitlines():
        found = re.search(r"^Signed-By:\s*(/\S+)", block, re.MULTILINE) or re.search(
            r"^deb\s*\[[^]]*signed-by=(/[^]\s,]+)", block
        )
        if found and site.rstrip("/") in block:
            return found.group(1)
    return None


def apt_options() -> list[str]:
    """Return options of mmdebstrap with this host's settings that a mirror may need: proxies, certificates, dates."""
    wanted = re.compile(r'^Acquire::((https?|ftp)::|Check-(Valid-Until|Date) )[^"]*"[^"]+";$')
    return [f"--aptopt={line}" for line in run_tool(["apt-config", "dump"]).splitlines() if wanted.match(line)]


def host_source() -> tuple[AptSource, str]:
    """Return this host's apt source and its architecture; raise LabError if it has none."""
    codename = _codename()
    # The source of the release itself: not of the updates, security or backports.
    found = _source(codename)
    if found is None:
        raise LabError(
            f"no apt source for Debian {codename} main on this host: the test bed builds its guest from the host's "
            "own sources (Debian only; is `apt-get update` due?)"
        )
    return found, run_tool(["dpkg", "--print-architecture"]).strip()


def security_source() -> AptSource | None:
    """Return this host's apt source of security updates; None if it has none."""
    return _source(f"{_codename()}-security")


def _codename() -> str:
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "sid")


def _source(codename: str) -> AptSource | None:
    wanted = ("Created-By: Packages", "Origin: Debian", f"Codename: {codename}", "Component: main")
    found = run_tool(["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(SOURCESENTRY)", *wanted])
    if not found:
        return None
    site, suite, entry = found.splitlines()[0].split(" ", 2)
    return AptSource(site, suite, _keyring_of(Path(entry.rpartition(":")[0]), site))
