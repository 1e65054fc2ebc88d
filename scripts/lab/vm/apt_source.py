"""The apt source of the host's Debian: images for VMs and containers are built from it."""

import re
from collections.abc import Iterable, Mapping
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


def parse_targets(text: str) -> list[dict[str, str]]:
    """Return the paragraphs of `apt-get indextargets`."""
    paragraphs = (block.splitlines() for block in text.strip().split("\n\n"))
    return [{key: value.strip() for key, _, value in (line.partition(":") for line in lines)} for lines in paragraphs]


def choose_source(targets: Iterable[Mapping[str, str]], codename: str) -> AptSource | None:
    """Return the host's source for its release: not the updates, security or backports."""
    for target in targets:
        wanted = (target.get("Origin"), target.get("Codename"), target.get("Component"))
        if wanted == ("Debian", codename, "main"):
            entry = target.get("Sourcesentry", "").rpartition(":")[0]
            site = target["Site"]
            return AptSource(site=site, suite=target["Release"], keyring=_keyring_of(Path(entry), site))
    return None


def _keyring_of(entry: Path, site: str) -> str | None:
    try:
        text = entry.read_text()
    except OSError:
        return None
    return find_keyring(text, site)


def find_keyring(sources: str, site: str) -> str | None:
    """Return the keyring for `site` in a sources file of either format; None: apt's default."""
    for block in sources.split("\n\n") if "URIs:" in sources else sources.splitlines():
        found = re.search(r"^Signed-By:\s*(/\S+)", block, re.MULTILINE) or re.search(
            r"^deb\s*\[[^]]*signed-by=(/[^]\s,]+)", block
        )
        if found and site.rstrip("/") in block:
            return found.group(1)
    return None


def apt_options(config: str) -> list[str]:
    """Return the lines of `apt-config dump` that a mirror may need: proxies, certificates, dates."""
    wanted = re.compile(r'^Acquire::((https?|ftp)::|Check-(Valid-Until|Date) )[^"]*"[^"]+";$')
    return [line for line in config.splitlines() if wanted.match(line)]


def host_source() -> tuple[AptSource, str]:
    """Return this host's apt source and its architecture; raise LabError if it has none."""
    arch = run_tool(["dpkg", "--print-architecture"]).strip()
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    codename = release.get("VERSION_CODENAME", "sid").strip('"')
    targets = parse_targets(run_tool(["apt-get", "indextargets", "Created-By: Packages"]))
    source = choose_source(targets, codename)
    if source is None:
        raise LabError(
            f"no apt source for Debian {codename} main on this host: the test bed builds its guest from the host's "
            "own sources (Debian only; is `apt-get update` due?)"
        )
    return source, arch
