"""Simulation of a workload under the real policies: nodes, pods, kernel and kubelet in virtual time.

run, cluster, scheduler    one simulation and its result; its nodes; which node gets a job
load, workload, presets    the input: as values, its options in a file, the built-in ones
worker, service            what containers do: the paper's job; services and DaemonSets
node, engine, kubelet      a node: its pods and kills; its CPUs and memory in virtual time; kubelet's back-off
pods, daemon               the pods of a node; the daemon on it, with the policies' own code
command                    `cgpause simulate`: several policies side by side
"""

from __future__ import annotations

from enum import StrEnum


class Arm(StrEnum):
    """The policies of a simulation, in the order of the table."""

    NONE = "none"
    WATERMARK = "watermark"
    RESERVE = "reserve"
