"""What reports have in common: measured results as JSON with commit and date, and the Markdown made of nothing else."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.vm_host import REPO, commit_of

COUNTED_MACHINE = "one CPU that executes 10^9 instructions a second (QEMU -icount)"
"""The same on every host, and whatever else that host does: no run is slower than another."""


@dataclass(frozen=True, slots=True)
class Report:
    """One page of docs/, made by `scripts/bench NAME`."""

    name: str
    render: Callable[[dict[str, Any]], str]
    """From what the JSON file holds to the page."""

    @property
    def results(self) -> Path:
        """The JSON file."""
        return REPO / "docs" / f"{self.name}.json"

    @property
    def page(self) -> Path:
        """The Markdown file."""
        return REPO / "docs" / f"{self.name}.md"

    def publish(self, measured: dict[str, Any]) -> int:
        """Write both, and return the exit status of a command that does just that."""
        date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        results = {"commit": commit_of(), "date": date, **measured}
        self.results.write_text(f"{json.dumps(results, indent=2)}\n")
        self.page.write_text(self.render(results))
        return 0

    def is_current(self) -> bool:
        """Whether the page is what the results say."""
        return self.page.read_text() == self.render(json.loads(self.results.read_text()))
