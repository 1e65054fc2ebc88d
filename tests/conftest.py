"""For every test: nothing is judged by how fast a shared machine happens to be."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from cgpause.watch import Watch

settings.register_profile("cgpause", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cgpause")


@pytest.fixture
def watch() -> Iterator[Watch]:
    """inotify, with an epoll of its own."""
    with select.epoll() as epoll:
        made = Watch(epoll)
        yield made
        made.close()
