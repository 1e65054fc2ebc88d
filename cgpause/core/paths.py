"""Default paths of the configuration, the kubelet's logs, and the files that the daemon keeps."""

from __future__ import annotations

import os

DEFAULT_CONFIG = "/etc/cgpause/config.toml"
DEFAULT_LOG_DIR = "/var/log"
DEFAULT_STATE_DIR = "/var/lib/cgpause"
"""The installer or package makes it; the daemon never makes it, and runs without it."""
DEFAULT_RUN_DIR = "/run/cgpause"
"""systemd-tmpfiles makes it at each boot; the daemon also runs without it."""
HISTORY_FILE = "history.jsonl"
METRICS_FILE = "metrics.prom"
LEARNED_FILE = "learned.json"
DEFAULT_LISTEN = "127.0.0.1:10912"
"""Outside 9100 to 9999, which exporters have filled, and unused by Kubernetes."""


def state_file(name: str, state_dir: str | None, cgroup_root: str | None) -> str | None:
    """Return the path of a file in the state directory; None if a cgroup root is given without a state directory."""
    if state_dir is None:
        state_dir = DEFAULT_STATE_DIR if cgroup_root is None else None
    return None if state_dir is None else os.path.join(state_dir, name)


def metrics_path(run_dir: str | None, cgroup_root: str | None) -> str | None:
    """Return the path of the published metrics; the default one belongs to the node's own tree only."""
    if run_dir is None:
        run_dir = DEFAULT_RUN_DIR if cgroup_root is None else None
    return None if run_dir is None else os.path.join(run_dir, METRICS_FILE)
