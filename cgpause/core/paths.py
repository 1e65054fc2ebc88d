"""Default paths of the configuration, the kubelet's logs, and the files that the daemon keeps."""

from __future__ import annotations

import os

DEFAULT_CONFIG = "/etc/cgpause/config.toml"
DEFAULT_LOG_DIR = "/var/log"
DEFAULT_STATE_DIR = "/var/lib/cgpause"
"""Made by the installer or package; the daemon runs without it, and never makes it."""
DEFAULT_RUN_DIR = "/run/cgpause"
"""Made by systemd-tmpfiles at each boot; the daemon does without as well."""
HISTORY_FILE = "history.jsonl"
METRICS_FILE = "metrics.json"
TRACE_FILE = "trace.jsonl.gz"
LEARNED_FILE = "learned.json"
DEFAULT_LISTEN = "127.0.0.1:10912"
"""Beyond 9100 to 9999, which exporters share and have filled, and not in the way of anything of Kubernetes'."""


def history_path(state_dir: str | None, cgroup_root: str | None) -> str | None:
    """Where the history is; that of the node is about the node's own tree, and no other."""
    folder = _state_dir(state_dir, cgroup_root)
    return None if folder is None else os.path.join(folder, HISTORY_FILE)


def learned_path(state_dir: str | None, cgroup_root: str | None) -> str | None:
    """Return where the daemon saves what it learns; like the history."""
    folder = _state_dir(state_dir, cgroup_root)
    return None if folder is None else os.path.join(folder, LEARNED_FILE)


def trace_path(state_dir: str | None, cgroup_root: str | None) -> str | None:
    """Where the daemon's trace is; like the history."""
    folder = _state_dir(state_dir, cgroup_root)
    return None if folder is None else os.path.join(folder, TRACE_FILE)


def _state_dir(state_dir: str | None, cgroup_root: str | None) -> str | None:
    return DEFAULT_STATE_DIR if state_dir is None and cgroup_root is None else state_dir


def metrics_path(run_dir: str | None, cgroup_root: str | None) -> str | None:
    """Where the figures are published; like the history, of the node's own tree only."""
    if run_dir is None:
        run_dir = DEFAULT_RUN_DIR if cgroup_root is None else None
    return None if run_dir is None else os.path.join(run_dir, METRICS_FILE)
