"""A node's memory over time, pod by pod, in a small file: how it is recorded, read, and replayed under a policy.

For other programs: `read.load_trace(path)` gives a `read.Trace`, `replay.replay(trace, config)` what a policy would
have decided on it. What is in the file, and what a replay cannot know: docs/trace.md.
"""
