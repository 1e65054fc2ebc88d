"""Publishing of metrics: its times, and that an error costs metrics and nothing else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.fixtures import Log, Patch
from helpers.metering import Metered
from helpers.nodes import S
from helpers.refusals import failing
from helpers.trees import wait_until

from cgpause.config.settings import MetricsConfig
from cgpause.core.clock import NEVER_NS
from cgpause.core.paths import METRICS_FILE
from cgpause.daemon import publisher
from cgpause.daemon.publisher import Publisher
from cgpause.kernel import wholefile
from cgpause.kernel.inotify import Watch
from cgpause.telemetry import published
from cgpause.telemetry.metrics import Values
from cgpause.telemetry.published import PublishedError, Stamp

ON = MetricsConfig(publish=True)


class Bench(Metered):
    """A publisher of the metrics of one pod."""

    def __init__(self, folder: Path, watch: Watch) -> None:
        super().__init__(folder, watch)
        self.fake.add_pod("web")
        self.refresh()
        self.folder = folder / "run"
        self.folder.mkdir()
        self.path = str(self.folder / METRICS_FILE)
        self.publisher = Publisher(self.path, self.intake, self.sampler)

    def published(self) -> Stamp | None:
        try:
            return published.read(self.path)[0]
        except PublishedError:
            return None

    def tick(self, at_s: int) -> None:
        """Run one tick of the loop and wait for the publisher's thread to finish its work."""
        self.publisher.tick(at_s * S)
        self.wait_written()

    def wait_written(self) -> None:
        thread = self.publisher._thread
        assert thread is not None
        wait_until(lambda: not thread.waiting, "the write")


@pytest.fixture
def bench(tmp_path: Path, watch: Watch, caplog: Log) -> Iterator[Bench]:
    caplog.set_level(logging.INFO)
    made = Bench(tmp_path, watch)
    caplog.clear()
    yield made
    made.publisher.close()
    made.close()


def test_nothing_is_published_unless_configured(bench: Bench) -> None:
    bench.publisher.configure(MetricsConfig())
    bench.publisher.tick(S)

    assert bench.publisher.due_ns == NEVER_NS
    assert list(bench.folder.iterdir()) == []
    assert not [thread for thread in threading.enumerate() if thread.name == "metrics"]


def test_nothing_is_published_about_a_tree_that_has_no_place_for_it(bench: Bench) -> None:
    nowhere = Publisher(None, bench.intake, bench.sampler)
    nowhere.configure(ON)
    nowhere.tick(S)

    assert nowhere.due_ns == NEVER_NS


def test_it_is_published_at_once_and_then_when_it_is_due(bench: Bench) -> None:
    bench.publisher.configure(ON)
    for at_s, due_s in ((10, 15), (14, 15), (15, 20), (99, 104)):
        bench.tick(at_s)
        assert bench.publisher.due_ns == due_s * S

    found = bench.published()
    assert found is not None
    assert (found.at_ns, found.interval_s) == (99 * S, 5.0)


def test_switched_off_it_takes_away_what_it_published_and_can_be_switched_on_again(bench: Bench) -> None:
    bench.publisher.configure(ON)
    bench.tick(1)
    bench.publisher.configure(replace(ON, publish=False))
    wait_until(lambda: bench.published() is None, "the file to go")
    assert bench.publisher.due_ns == NEVER_NS

    bench.publisher.configure(ON)
    bench.tick(2)
    assert bench.published() is not None


def test_the_end_takes_it_away(bench: Bench) -> None:
    bench.publisher.configure(ON)
    bench.tick(1)

    bench.publisher.close()

    assert list(bench.folder.iterdir()) == []


# --- errors ----------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_missing_is_told_once_with_who_makes_it_and_tried_again(bench: Bench, caplog: Log) -> None:
    bench.folder.rmdir()
    bench.publisher.configure(ON)
    for at_s in range(10, 60, 10):
        bench.tick(at_s)
    bench.folder.mkdir()
    bench.tick(60)
    bench.tick(70)

    first, second = caplog.messages
    assert first.startswith(f"metrics not published file={bench.path} error=")
    assert f"create {bench.folder}" in first
    assert second == f"metrics published again file={bench.path}"
    assert bench.published() is not None


def test_nobody_waits_for_a_folder_that_hangs(bench: Bench, caplog: Log, monkeypatch: Patch) -> None:
    reached, go_on = threading.Event(), threading.Event()
    real = wholefile.replace

    def hang(path: str, data: bytes) -> None:
        reached.set()
        assert go_on.wait(60)
        real(path, data)

    gathered: list[object] = []

    def gather(*parts: object) -> Values:
        gathered.append(parts[-1])
        return {}

    monkeypatch.setattr(wholefile, "replace", hang)
    monkeypatch.setattr(publisher, "gather", gather)
    bench.publisher.configure(ON)
    bench.publisher.tick(10 * S)
    assert reached.wait(60)

    for at_s in range(20, 100, 10):
        bench.publisher.tick(at_s * S)

    assert gathered == [10 * S], "it costs nothing while nobody takes it"
    assert caplog.messages == [f'metrics not published file={bench.path} error="writing takes too long"']
    go_on.set()
    bench.wait_written()
    assert caplog.messages[1:] == [f"metrics published again file={bench.path}"]
    bench.tick(100)
    found = bench.published()
    assert found is not None
    assert found.at_ns == 100 * S


def test_a_bug_in_what_is_gathered_ends_publishing_and_nothing_else(
    bench: Bench, caplog: Log, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(publisher, "gather", lambda *_: 1 // 0)
    bench.publisher.configure(ON)

    bench.publisher.tick(10 * S)
    bench.publisher.tick(20 * S)

    assert caplog.messages == ["metrics are not published any more"]
    assert bench.publisher.due_ns == NEVER_NS


def test_without_a_thread_nothing_is_published(bench: Bench, caplog: Log, monkeypatch: Patch) -> None:
    monkeypatch.setattr(threading.Thread, "start", failing(RuntimeError("can't start new thread")))
    bench.publisher.configure(ON)
    bench.publisher.tick(10 * S)

    assert bench.publisher.due_ns == NEVER_NS
    assert caplog.messages == [f'metrics not published file={bench.path} error="can\'t start new thread"']
