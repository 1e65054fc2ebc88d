"""One node and one installation for all tests of this folder, which are one story.

The modules run by name (install, life, metrics, uninstall) and build on each other. They assert order and outcome,
never speed; the guest may be ten times slower than a node.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from vm.installed import install
from vm.slices import CONFIG, REPO, WHEELS, Node, node_of_slices


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    with node_of_slices() as node:
        yield node


@pytest.fixture(scope="session")
def installed(node: Node) -> str:  # pods first, because the daemon does not pause a new pod for a while
    """Install on a node that never had cgpause; return the installer's output."""
    said = install("--wheels", WHEELS)
    assert CONFIG.read_bytes() == (REPO / "systemd/config.toml").read_bytes()
    return said


@pytest.fixture
def calm(node: Node, installed: str) -> Iterator[Node]:
    with node.kept_calm() as calm:
        yield calm
