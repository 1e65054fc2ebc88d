"""Host program of `scripts/bench realnode [CASE...]`: builds the bundle, boots a VM, runs the cases and reports."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lab.measure.realnode.cases import CASES
from lab.measure.realnode.image import PACKAGES, SUITE, write_bundle
from lab.measure.realnode.node import BUNDLE
from lab.pages.realnode_report import REPORT, tables
from lab.vm.host import LabError, cache_dir, end_by_signal, say
from lab.vm.machine import Vm
from lab.vm.qemu import Machine

MACHINE = Machine(memory="3G", cpus=2, suite=SUITE, packages=PACKAGES)
RESULT = "/run/realnode.json"
TIMEOUT_S = 3 * 3600.0


def main(argv: Sequence[str]) -> int:
    """Run the named cases, or all; print their tables, and write the page if all cases ran without a failure."""
    unknown = set(argv) - set(CASES)
    if unknown:
        say(f"unknown: {', '.join(sorted(unknown))} (cases: {', '.join(CASES)})")
        return 2
    end_by_signal()
    try:
        with tempfile.TemporaryDirectory(prefix="cgpause-realnode-") as folder:
            bundle, result = Path(folder) / BUNDLE.name, Path(folder) / "result.json"
            write_bundle(bundle, cache_dir())
            with Vm(MACHINE, extra=bundle) as vm:
                status = vm.run(
                    ["python3", "-m", "lab.measure.realnode.cases", RESULT, *(argv or CASES)], timeout=TIMEOUT_S
                )
                vm.run("journalctl --no-pager -u cgpause")  # it says why a round was slow
                if status:
                    vm.run("journalctl --no-pager -u kubelet -u containerd -n 60; cgpause status")
                vm.fetch(RESULT, result)
            run = json.loads(result.read_text())
    except LabError as e:
        say(str(e))
        return 1
    print("\n".join(tables(run)))
    if not argv and not status:
        REPORT.publish([run])
        say(f"wrote {REPORT.results} and {REPORT.page}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
