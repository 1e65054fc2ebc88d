"""systemd's settings replace a damaged record."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from helpers.fixtures import Patch
from helpers.restoring import SLICE

from cgpause.core.model import CpuMax
from cgpause.kernel import systemd
from cgpause.kernel.systemd import original_from_systemd

SHIPPED_S = systemd._PATIENCE_S


def properties(quota: str, period: str = "infinity", state: str = "active") -> bytes:
    return f"ActiveState={state}\nCPUQuotaPerSecUSec={quota}\nCPUQuotaPeriodUSec={period}\n".encode()


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        pytest.param(properties("750ms", "100ms"), CpuMax(75_000, 100_000), id="quota"),
        pytest.param(properties("750ms"), CpuMax(75_000, 100_000), id="quota-of-the-default-period"),
        pytest.param(properties("infinity"), CpuMax(None, 100_000), id="no-limit"),
        pytest.param(properties("infinity", "50ms"), CpuMax(None, 50_000), id="no-limit-with-a-period"),
        pytest.param(properties("4s", "50ms"), CpuMax(200_000, 50_000), id="four-cores"),
        pytest.param(properties("1.5s"), CpuMax(150_000, 100_000), id="fraction"),
        pytest.param(properties("1min 4s"), CpuMax(6_400_000, 100_000), id="64-cores"),
        pytest.param(properties("20ms", "10ms"), CpuMax(200, 10_000), id="little"),
        pytest.param(properties("750ms", state="inactive"), None, id="never-started"),
        pytest.param(properties("750ms", state="failed"), None, id="failed"),
        pytest.param(b"", None, id="nothing"),
        pytest.param(b"ActiveState=active\n", None, id="old-systemd-without-the-property"),
        pytest.param(b"ActiveState=active\nCPUQuotaPerSecUSec=750ms\n", None, id="truncated"),
        pytest.param(properties(""), None, id="empty-quota"),
        pytest.param(properties("rubbish"), None, id="garbage"),
        pytest.param(properties("750"), None, id="without-unit"),
        pytest.param(properties("-750ms"), None, id="negative"),
        pytest.param(properties("9" * 400 + "s"), None, id="huge"),
        pytest.param(properties("750ms", "9" * 400 + "s"), None, id="huge-period"),
        pytest.param(b"\x00" * 100, None, id="zeros"),
        pytest.param(b"ActiveState=\xff\xfe\n", None, id="not-utf-8"),
        pytest.param(b"=" * 100_000, None, id="long"),
    ],
)
def test_systemd_knows_the_original_of_a_slice(shown: bytes, expected: CpuMax | None, systemctl: Path) -> None:
    systemctl.write_bytes(shown)

    assert original_from_systemd(SLICE) == expected
    assert (systemctl.parent / "called").read_text().splitlines() == [
        "show",
        "--property=ActiveState,CPUQuotaPerSecUSec,CPUQuotaPeriodUSec",
        "--",
        "kubepods-pod00000001_0000_4000_8000_000000000001.slice",
    ]


def test_a_systemctl_that_fails_knows_nothing(systemctl: Path) -> None:
    # `cat` of a missing file exits with 1.
    assert original_from_systemd(SLICE) is None
    assert (systemctl.parent / "called").exists()


def test_a_cgroup_that_is_no_slice_is_not_asked_about(systemctl: Path) -> None:
    systemctl.write_bytes(properties("750ms"))

    assert original_from_systemd("/sys/fs/cgroup/kubepods/burstable/pod1") is None
    assert not (systemctl.parent / "called").exists()


def test_without_systemd_nobody_knows(no_systemd: None) -> None:
    assert original_from_systemd(SLICE) is None


def test_a_systemctl_that_hangs_is_cut_off(systemctl: Path, monkeypatch: Patch) -> None:
    (systemctl.parent / "systemctl").write_text("#!/bin/sh\nexec sleep 60\n")
    real = subprocess.run
    limits = []

    def impatient(command: list[str], *, timeout: float, **options: bool) -> object:
        limits.append(timeout)
        return real(command, timeout=0.2, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", impatient)
    monkeypatch.setattr(systemd, "_PATIENCE_S", SHIPPED_S)
    started = time.monotonic()

    assert original_from_systemd(SLICE) is None
    assert time.monotonic() - started < 30
    assert limits == [3.0]
