"""Paths of the configuration, the kubelet's logs, and the files that the daemon keeps: defaults, and as given."""

from __future__ import annotations

import os
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Places:
    """The paths in the options of a command or of the daemon (None: not given), and those that follow from them."""

    cgroup_root: str | None
    config_path: str | None
    log_dir: str
    state_dir: str | None
    run_dir: str | None

    @property
    def config_file(self) -> str:
        """Path of the configuration: the given or the default one; only a given file has to exist."""
        return DEFAULT_CONFIG if self.config_path is None else self.config_path

    @property
    def history_path(self) -> str | None:
        """Path of the history; None: nowhere."""
        return self._file(HISTORY_FILE, self.state_dir, DEFAULT_STATE_DIR)

    @property
    def learned_path(self) -> str | None:
        """Path of the learned data on workloads; None: nowhere."""
        return self._file(LEARNED_FILE, self.state_dir, DEFAULT_STATE_DIR)

    @property
    def metrics_path(self) -> str | None:
        """Path of the metrics, if the configuration has the daemon publish them; None: nowhere."""
        return self._file(METRICS_FILE, self.run_dir, DEFAULT_RUN_DIR)

    def _file(self, name: str, folder: str | None, default: str) -> str | None:
        """Return a path in the given or the default folder; the default belongs to the node's own cgroup tree only."""
        if folder is None and self.cgroup_root is None:
            folder = default
        return None if folder is None else os.path.join(folder, name)
