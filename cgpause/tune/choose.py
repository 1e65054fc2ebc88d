"""What is to be tuned on: a trace or a workload, told by what is in the file, or a preset."""

from __future__ import annotations

import os

from cgpause.errors import ConfigError, ConfigProblem
from cgpause.progress import bars
from cgpause.simulate import command as simulation
from cgpause.trace import command as traces
from cgpause.trace.lives import load_recording
from cgpause.trace.read import is_trace, load_trace
from cgpause.tune.subject import LoadSubject, Subject, TraceSubject


def choose(path: str | None, preset: str | None) -> Subject:
    """The one thing that was asked for.

    Raises:
        ConfigError: what is wrong in a workload, or that a file is neither that nor a trace.
        TraceError: what is wrong in a trace, or that there is too little in it.
        ValueError: nothing, or more than one, or no such preset.
    """
    if path is None and preset is None:
        raise ValueError("give a trace (cgpause record writes one), a WORKLOAD.toml or --preset")
    if path is not None and preset is not None:
        raise ValueError("tune takes a trace, a workload or a --preset, and not two of them")
    if path is not None and is_trace(path):
        return _recording(path)
    try:
        loads = simulation.choose([] if path is None else [path], [] if preset is None else [preset])
    except ConfigError as e:
        if path is None or not os.path.isfile(path) or (os.path.getsize(path) and any(one.key for one in e.problems)):
            raise
        hint = "nor is it a trace; give what cgpause record wrote, or a WORKLOAD.toml"
        raise ConfigError(path, (*e.problems, ConfigProblem(None, "", hint))) from e
    if len(loads) > 1:
        raise ValueError(f"tune takes one workload, not {len(loads)}")
    return LoadSubject(loads[0])


def _recording(path: str) -> TraceSubject:
    with bars() as begin:
        trace = load_trace(path, traces.reading(begin("reading", 1.0)))
        move = begin("following", trace.samples)
        return TraceSubject(load_recording(trace, traces.every(move, 0, "samples")))
