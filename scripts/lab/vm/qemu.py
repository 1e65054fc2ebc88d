"""QEMU's command line, and the test of this host's KVM."""

import os
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.vm.host import DIE_WITH_PARENT, say
from lab.vm.image import Image

# -cx16: QEMU 7.2's emulation of cmpxchg16b is broken, and kernels from 6.5 on panic over it.
_EMULATED_CPU = "max,-cx16"
# Features that cost time in emulation and are not needed: with erms a kernel clears and copies pages byte by byte, smap
# takes two more instructions for each access to a program's memory, and la57 makes page tables a level deeper.
_COSTLY = "-erms,-la57,-pku,-smap,-smep,-umip"
TCG = ("-accel", "tcg,thread=multi", "-cpu", f"{_EMULATED_CPU},{_COSTLY}")
KVM = ("-accel", "kvm", "-cpu", "host")
# The guest's clock counts its instructions, a nanosecond each (a shift of 0). Other work on this host then takes no
# guest time, and a line of Python costs only its instructions, without QEMU's translation of them. The CPU keeps the
# costly features, so that new results stay comparable with older ones.
COUNTED = ("-icount", "shift=0", "-accel", "tcg,thread=single", "-cpu", _EMULATED_CPU)

KVM_PROBE_SECONDS = 5

# net.ifnames, mitigations, fsck, expedited RCU: boot time. panic=-1 with -no-reboot: a panic ends QEMU at once.
# no_timer_check: on a host so busy that no tick comes within the few ms of that check, the kernel panics.
KERNEL_COMMAND_LINE = (
    "root=/dev/vda rw rootfstype=ext4 console=ttyS0 quiet panic=-1 psi=1 net.ifnames=0 mitigations=off "
    "fsck.mode=skip nowatchdog rcupdate.rcu_expedited=1 apparmor=0 audit=0 systemd.show_status=0 no_timer_check"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware of a guest."""

    memory: str = "1536M"
    cpus: int = 2
    append: str = ""  # after the fixed words, so that it can override them
    counted: bool = False  # time by instructions: all CPUs together execute 10^9 a second
    suite: str = ""  # the Debian, and with it the kernel; the host's own if empty
    programs: bool = False  # the image that has real programs to run in pods
    resets: bool = False  # a reset starts it anew, instead of ending it
    packages: tuple[str, ...] = ()  # more Debian packages than every guest of that suite has


def qemu_command(
    machine: Machine, image: Image, *, accel: Sequence[str], payload: str, packages: str, ssh_port: int
) -> list[str]:
    """Return the QEMU command line. The guest's writes are lost at its end, and it has no network."""
    quick = "if=virtio,cache=unsafe,format=raw"
    return [
        *DIE_WITH_PARENT,
        "qemu-system-x86_64",
        *accel,
        *("-smp", str(machine.cpus), "-m", machine.memory),
        *("-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio"),
        *(() if machine.resets else ("-no-reboot",)),
        *("-kernel", str(image.folder / "vmlinuz"), "-initrd", str(image.folder / "initrd")),
        *("-append", f"{KERNEL_COMMAND_LINE} {machine.append}".strip()),
        *("-drive", f"{quick},snapshot=on,file={_escaped(image.folder / 'root.ext4')}"),  # vda
        *("-drive", f"{quick},readonly=on,file={_escaped(payload)}"),  # vdb
        *("-drive", f"{quick},snapshot=on,file={_escaped(packages)}"),  # vdc
        *("-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{ssh_port}-:22"),
        *("-device", "virtio-net-pci,netdev=net,romfile="),
    ]


def _escaped(path: str | Path) -> str:
    return str(path).replace(",", ",,")


def free_port() -> int:
    """Return a free loopback port. If another process takes it before QEMU, the boot fails and is tried again."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def accelerator(cache: Path, kernel: Path) -> Sequence[str]:
    """Return KVM if a kernel really runs under it, else emulation. The result is kept until the host's next boot."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return TCG
    verdict = _verdict_file(cache)
    if not verdict.exists():
        works = kvm_works(kernel)
        say("KVM works" if works else "/dev/kvm is there but runs no kernel: emulating")
        _remember(verdict, works=works)
    return KVM if verdict.read_text() == "yes" else TCG


def distrust_kvm(cache: Path) -> None:
    """Note that a guest was lost under KVM: emulate until the host's next boot."""
    _remember(_verdict_file(cache), works=False)


def _verdict_file(cache: Path) -> Path:
    return cache / f"kvm-{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"


def _remember(verdict: Path, *, works: bool) -> None:
    verdict.parent.mkdir(parents=True, exist_ok=True)
    for old in verdict.parent.glob("kvm-*"):
        old.unlink(missing_ok=True)
    verdict.write_text("yes" if works else "no")


def kvm_works(kernel: Path) -> bool:
    """Return True if a kernel boots under KVM; without a disk it panics, and that ends QEMU.

    A smaller test is not enough: some nested KVMs run a boot sector and hang with a kernel.
    """
    with tempfile.TemporaryFile() as console:
        probe = subprocess.Popen(
            [
                *DIE_WITH_PARENT,
                "qemu-system-x86_64",
                *KVM,
                *("-smp", "2", "-m", "256M"),
                *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"),
                *("-kernel", str(kernel), "-append", "console=ttyS0 quiet panic=-1"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
        )
        try:
            status = probe.wait(timeout=KVM_PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        finally:
            probe.kill()  # and no wait: a process stuck inside KVM may not even die
        console.seek(0)
        return status == 0 and b"Kernel panic" in console.read()
