"""Traces: the memory of a node and its pods over time, in a small file; writers and readers.

Other programs can use `read.load_trace(path)`, which returns a `read.Trace`, and
`cgpause.offline.trace.replay.replay(trace, config)`, which returns a policy's decisions on it. docs/trace.md describes
the file, and the limits of a replay.
"""
