"""The uninstallation, which comes last."""

from __future__ import annotations

import os
from pathlib import Path

from vm.installed import COMMAND, PREFIX, RUN, SHARED, UNIT, install, python_upgraded
from vm.slices import CONFIG, CONFIG_TEXT, STATE, UNIT_CGROUP, Node, damaged_elsewhere, run, show


def test_uninstall_refuses_while_a_pod_cannot_be_resumed_also_with_another_python(calm: Node) -> None:
    run(COMMAND, "pause", "default/large")
    with damaged_elsewhere() as damaged, python_upgraded("another"):
        said = install("--uninstall", status=6)

    assert str(damaged) in said
    assert "nothing was removed" in said
    assert UNIT.exists()
    run("systemctl", "start", "cgpause")
    assert calm.all_as_before()


def test_uninstall_resumes_manual_pauses_and_removes_all_but_configuration_and_history(calm: Node) -> None:
    run(COMMAND, "pause", "default/large")

    said = install("--uninstall")

    assert "daemon-reload" not in said, "systemctl would ask for one"
    assert calm.all_as_before()
    assert not any(os.path.lexists(path) for path in (UNIT, COMMAND, PREFIX, UNIT_CGROUP, *SHARED))
    assert show("LoadState") == "not-found"
    assert list(Path("/etc/systemd/system").rglob("*cgpause*")) == []
    assert not any(path.exists() for path in (RUN, Path("/etc/tmpfiles.d/cgpause.conf")))
    assert CONFIG.read_text() == CONFIG_TEXT
    assert (STATE / "history.jsonl").exists()


def test_uninstall_ends_also_if_somebody_has_removed_the_unit_file() -> None:
    link = UNIT.parent / "multi-user.target.wants" / UNIT.name
    link.symlink_to(UNIT)
    install("--uninstall")
    assert not os.path.lexists(link)


def test_uninstall_again_is_no_error_and_purge_takes_those_too() -> None:
    install("--uninstall")
    assert CONFIG.exists()
    assert STATE.exists()
    install("--uninstall", "--purge")
    assert not CONFIG.parent.exists()
    assert not STATE.exists()
