"""The pictures of docs/policies.md show the recorded data and the policy's decisions."""

from __future__ import annotations

import json
from pathlib import Path

from lab.bed.kubelet import Event, EventKind, Job
from lab.bed.kubepods import PodSpec
from lab.measure.timeline import Recorder
from lab.pages import timeline_plot
from lab.pages.timeline_plot import Spans, spans

JOB = Job("job-00", 1 << 20, ("worker",))
POD = PodSpec("job-00", "uid-0", 1 << 20)


def test_a_recorder_keeps_what_is_drawn() -> None:
    recorder = Recorder()
    for kind, at_s in (
        (EventKind.ADMITTED, 0.0),
        (EventKind.NETWORKED, 0.3),
        (EventKind.STARTED, 0.5),
        (EventKind.KILLED, 4.0),
        (EventKind.STARTED, 6.0),
        (EventKind.FINISHED, 9.0),
        (EventKind.REMOVED, 9.1),
    ):
        recorder.on_event(Event(kind, at_s, JOB, POD))
    for at_s, held in ((1.0, {"uid-0"}), (1.2, {"uid-0"}), (1.4, set()), (2.0, {"uid-0"}), (2.2, set())):
        recorder.on_look(at_s, 5, frozenset(held))

    job = json.loads(json.dumps(recorder.jobs))["job-00"]
    assert spans(job) == Spans([(0.5, 4.0), (6.0, 9.0)], [(4.0, 6.0)], [(1.0, 1.4), (2.0, 2.2)], [4.0])
    assert recorder.used[0] == (1.0, 5)


def test_the_recording_is_of_the_same_jobs_at_a_known_commit(tmp_path: Path) -> None:
    results = json.loads(timeline_plot.RESULTS.read_text())
    (run,) = results["runs"]
    without, with_cgpause = run["arms"]

    assert "dirty" not in results["commit"]
    assert without["timeline"].keys() == with_cgpause["timeline"].keys()
    for arm in run["arms"]:
        lives = list(map(spans, arm["timeline"].values()))
        assert sum(len(life.killed) for life in lives) == arm["restarts"]
        assert all(life.runs and len(life.runs) == len(life.killed) + 1 for life in lives)
    assert sum(len(spans(job).held) for job in with_cgpause["timeline"].values()) > 0
    timeline_plot.draw(results, tmp_path / "again.png")
    assert (tmp_path / "again.png").stat().st_size > 10_000
