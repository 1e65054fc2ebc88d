"""The guest's disk: a small Debian with systemd, built once from the host's own apt sources and kept in the cache.

The recipe is data (packages, files, masks); its hash names the image, so that a changed recipe is a new image.
"""

import gzip
import hashlib
import json
import os
import shlex
import tempfile
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lab.vm.apt_source import AptSource, apt_options, host_source
from lab.vm.host import LabError, building, run_tool, say

BACKPORTS = "-backports"
# linux-image-cloud: no hardware drivers to probe, and its initrd is small.
KERNEL = "linux-image-cloud-amd64"
PACKAGES = (
    *("attr", "dbus", "initramfs-tools", "iproute2", "kmod", KERNEL, "mount", "openssh-server", "procps", "python3"),
    # Dependencies of cgpause's Debian package: the guest has no network.
    *("python3-click", "python3-psutil", "python3-rich", "python3-shellingham", "python3-typing-extensions"),
    *("python3-venv", "systemd", "systemd-sysv", "udev"),
)

# The peers of the experiment, on the host's own Debian. Each is installed from its Debian package, and runs only on
# request.
PEERS = ("earlyoom", "nohang", "oomd", "systemd-oomd")
PEER_UNITS = ("earlyoom.service", "nohang.service", "oomd.service", "systemd-oomd.service", "systemd-oomd.socket")
PEERS_WANTED = "/run/cgpause-peers"
"""The peers' units can start only while this file exists."""

# For the tests of the metrics, on the host's own Debian. The service is masked: the test runs the program itself.
MONITORING = ("prometheus",)

# For the tests of the container image, on the host's own Debian.
CONTAINERS = ("crun", "podman", "python3-yaml")

# containerd's runtime: `lab.measure.runtimes` measures it beside podman's.
RUNTIMES = ("runc",)

# Real programs for `lab.measure.stock` (`--programs`), in a separate image of 150 MB more. Perl,
# Python and sort are in every image. No Node: DPKG_OPTIONS leave out files that it needs.
PROGRAMS = ("gcc", "sqlite3", "xz-utils", "zstd")

DPKG_OPTIONS = (
    "force-unsafe-io",
    # The last two are of Prometheus' web pages, and twice its size.
    *(f"path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man", "javascript", "nodejs")),
    # No udev in the initrd: the modules it needs are listed below, and an emulated CPU saves two seconds.
    "path-exclude=/usr/share/initramfs-tools/*/udev",
)

UNUSED_MODULES = (
    *("aesni_intel", "ata_piix", "button", "crct10dif_pclmul", "evdev", "ghash_clmulni_intel", "kvm"),
    *("kvm_amd", "kvm_intel", "powernow_k8", "psmouse"),
)

# Shell hook, run before the packages come; $1 is the folder of the root. A listed initrd boots faster than one for
# every machine.
INITRD_HOOK = """
mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"
printf 'MODULES=list\\nCOMPRESS=gzip\\nCOMPRESSLEVEL=1\\nRESUME=none\\n' >"$1/etc/initramfs-tools/conf.d/vm"
printf '%s\\n' ext4 crc32c crc32c_generic virtio_pci virtio_blk virtio_net \\
    >"$1/usr/share/initramfs-tools/modules.d/vm"
# What udev's own script would do: hand the kernel's /dev on to the real root.
bottom=$1/etc/initramfs-tools/scripts/init-bottom
mkdir -p "$bottom"
printf '#!/bin/sh\\n[ "$1" = prereqs ] || mount -n -o move /dev "$rootmnt/dev"\\n' >"$bottom/vm"
chmod 755 "$bottom/vm"
"""

# Shell hook, run after the packages. Installations run Debian's pip from its wheel, a zip: Python takes byte code from
# one and never puts any there, and an emulated CPU compiles all of pip each time. Unchecked: a zip's times are not
# exact.
WHEELS_HOOK = """
chroot "$1" python3 -I - <<'PYTHON'
import glob, py_compile, tempfile, zipfile
unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
for wheel in glob.glob("/usr/share/python-wheels/pip-*.whl"):
    with zipfile.ZipFile(wheel, "a") as content, tempfile.TemporaryDirectory() as folder:
        for name in [name for name in content.namelist() if name.endswith(".py")]:
            source = content.extract(name, folder)
            content.write(py_compile.compile(source, source + "c", name, True, -1, unchecked), name + "c")
PYTHON
"""

READY = "cgpause-vm: ready"

FILES = {
    "etc/fstab": "",
    "etc/hostname": "cgpause-vm\n",
    "etc/hosts": "127.0.0.1 localhost cgpause-vm\n",
    # No PAM: a session through logind costs more than the login, and only the test bed logs in.
    "etc/ssh/sshd_config": """\
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
UseDNS no
PrintMotd no
MaxSessions 100
""",
    # All commands over ssh run in this cgroup: an OOM kill there must not stop the service.
    "etc/systemd/system/ssh.service.d/vm.conf": """\
[Service]
ExecStartPre=
OOMPolicy=continue
TasksMax=infinity
""",
    # Modules that udev would load for unused devices.
    "etc/modprobe.d/vm.conf": "".join(f"blacklist {name}\n" for name in UNUSED_MODULES),
    "etc/systemd/journald.conf.d/vm.conf": "[Journal]\nStorage=volatile\nRateLimitIntervalSec=0\n",
    # The address is the one QEMU's user networking gives its only guest.
    "etc/systemd/system/vm-network.service": """\
[Unit]
DefaultDependencies=no
Before=network.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'ip link set lo up; ip address add 10.0.2.15/24 dev eth0; ip link set eth0 up'
""",
    # Second disk: the checkout as a tar. Third: a filesystem with the Python packages, which is quicker to mount
    # than to unpack.
    "etc/systemd/system/vm-payload.service": """\
[Unit]
DefaultDependencies=no
After=systemd-remount-fs.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -ec 'mount /dev/vdc /opt/cgpause; tar -x --no-same-owner -f /dev/vdb -C /opt/cgpause'
""",
    # One cgroup that always has a quota, as on every node. Without it each first pause and last resume makes the kernel
    # patch its own code (the static key of CFS bandwidth control), which an emulated guest does not always survive.
    "etc/systemd/system/vm-quota.service": """\
[Service]
ExecStart=/bin/sleep infinity
CPUQuota=50%
""",
    # OOM dumps on an emulated serial line cost seconds: from here on only emergencies reach it.
    "etc/systemd/system/vm-ready.service": f"""\
[Unit]
After=vm-payload.service vm-network.service vm-quota.service ssh.service
Requires=vm-payload.service vm-network.service vm-quota.service ssh.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'dmesg -n 1; echo "{READY}" >/dev/console'
""",
    # A condition instead of a mask: the packaged units can start without a daemon-reload.
    **{f"etc/systemd/system/{unit}.d/vm.conf": f"[Unit]\nConditionPathExists={PEERS_WANTED}\n" for unit in PEER_UNITS},
}

FOLDERS = ("opt/cgpause", "root/.ssh")

LINKS = {
    "etc/systemd/system/default.target": "/lib/systemd/system/multi-user.target",
    "etc/systemd/system/multi-user.target.wants/vm-ready.service": "../vm-ready.service",
    "etc/systemd/system/sysinit.target.wants/vm-network.service": "../vm-network.service",
    "etc/systemd/system/sysinit.target.wants/vm-payload.service": "../vm-payload.service",
}

# Each of these costs boot time or disturbs a measurement, and is not needed here.
MASKED = (
    *("apt-daily-upgrade.timer", "apt-daily.timer", "dev-hugepages.mount", "dev-mqueue.mount"),
    *("dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer", "getty.target"),
    *("kmod-static-nodes.service", "ldconfig.service", "modprobe@dm_mod.service", "modprobe@loop.service"),
    *("nohang-desktop.service", "podman-auto-update.service", "podman-auto-update.timer"),
    *("podman-restart.service", "podman.socket", "proc-sys-fs-binfmt_misc.automount", "prometheus.service"),
    *("serial-getty@ttyS0.service", "sys-fs-fuse-connections.mount", "sys-kernel-config.mount"),
    *("systemd-ask-password-console.path", "systemd-ask-password-wall.path", "systemd-binfmt.service"),
    *("systemd-boot-system-token.service", "systemd-firstboot.service", "systemd-hwdb-update.service"),
    *("systemd-journal-catalog-update.service", "systemd-journal-flush.service", "systemd-logind.service"),
    *("systemd-machine-id-commit.service", "systemd-pcrphase-sysinit.service", "systemd-pcrphase.service"),
    *("systemd-pstore.service", "systemd-random-seed.service", "systemd-repart.service"),
    *("systemd-sysusers.service", "systemd-tmpfiles-clean.timer", "systemd-update-done.service"),
    *("systemd-update-utmp-runlevel.service", "systemd-update-utmp.service", "systemd-user-sessions.service"),
)

# No journal: a crash loses the disk anyway. Complete initialisation, so that the guest has none to do.
MKFS = ("mke2fs", "-q", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=0,nodiscard")
DISK_SIZE = "4G"  # sparse

# Raise this after a change of the image that `recipe_key` does not see.
RECIPE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Image:
    """A built image."""

    folder: Path
    """It has the kernel `vmlinuz`, its `initrd`, the root filesystem `root.ext4`, the private key `ssh_key` of root's
    login, and `known_hosts` with the guest's host key under the alias `cgpause-vm`."""
    kernel_release: str
    python_version: str  # "3.11"


def recipe_key(suite: str, arch: str, packages: Iterable[str]) -> str:
    """Return the name of an image: two different recipes never share a name."""
    recipe = [RECIPE_VERSION, suite, arch, list(packages), DPKG_OPTIONS, INITRD_HOOK, FILES, FOLDERS, LINKS, MASKED]
    recipe += [MKFS, DISK_SIZE, WHEELS_HOOK]
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    return f"image-{suite}-{arch}-{digest[:12]}"


def ensure_image(cache: Path, suite: str = "", extra: Sequence[str] = (), *, programs: bool = False) -> Image:
    """Return the image of the present recipe, for a Debian suite or the host's own; build it if the cache lacks it.

    With `programs` the image has real programs to run in pods, and lacks the packages that only other tests need.

    For the suite `NAME-backports` only the kernel comes from there, and everything else from NAME: that is the newest
    packaged kernel on a stable Debian. The image also has the `extra` packages.
    """
    source, arch = host_source()
    if arch != "amd64":
        raise LabError(f"the VM test bed knows amd64 hosts only; this one is {arch}")
    packages = (*_packages_of(suite, programs=programs), *extra)
    if suite:
        source = replace(source, suite=suite)
    folder = cache / recipe_key(source.suite, arch, packages)
    with building(folder) as work:
        if work is not None:
            _build(work, source, arch, packages)
    facts = json.loads((folder / "facts.json").read_text())
    return Image(folder, facts["kernel_release"], facts["python_version"])


def _packages_of(suite: str, *, programs: bool) -> Iterable[str]:
    """Return the packages of a suite, as arguments for apt."""
    packages = [f"{KERNEL}/{suite}" if name == KERNEL and suite.endswith(BACKPORTS) else name for name in PACKAGES]
    if programs:
        return (*packages, *PROGRAMS)
    return packages if suite else (*packages, *PEERS, *MONITORING, *CONTAINERS, *RUNTIMES)


def _build(work: Path, source: AptSource, arch: str, packages: Iterable[str]) -> None:
    say(f"building a small Debian {source.suite} (once; a minute or so)")
    base = replace(source, suite=source.suite.removesuffix(BACKPORTS))
    os.chmod(work.parent, 0o755)  # noqa: S103 - in unshare mode another uid has to look in
    with tempfile.TemporaryDirectory(prefix="cgpause-image-") as scratch:
        tarball = Path(scratch) / "root.tar"
        hooks = {"essential": INITRD_HOOK, "customize": WHEELS_HOOK}
        for name, script in hooks.items():
            hook = Path(scratch) / name
            hook.write_text(f"#!/bin/sh\nset -e{script}")
            hook.chmod(0o755)
        os.chmod(scratch, 0o755)  # noqa: S103
        run_tool(
            [
                "mmdebstrap",
                "--mode=root" if os.geteuid() == 0 else "--mode=unshare",
                "--variant=essential",
                "--format=tar",
                f"--architectures={arch}",
                f"--include={','.join(packages)}",
                *apt_options(),
                *(f"--dpkgopt={option}" for option in DPKG_OPTIONS),
                *(f"--{name}-hook={Path(scratch) / name}" for name in hooks),
                base.suite,
                tarball,
                *dict.fromkeys((base.line(), source.line())),
            ]
        )
        say("making the disk image")
        overlay = Path(scratch) / "overlay"
        _write_overlay(overlay, work)
        _make_disk(work, Path(scratch), tarball, overlay)
    _plain_initrd(work / "initrd")


def _write_overlay(overlay: Path, work: Path) -> None:
    for name in FOLDERS:
        (overlay / name).mkdir(parents=True)
    for name, text in FILES.items():
        (overlay / name).parent.mkdir(parents=True, exist_ok=True)
        (overlay / name).write_text(text)
    masks = {f"etc/systemd/system/{unit}": "/dev/null" for unit in MASKED}
    for name, target in (LINKS | masks).items():
        (overlay / name).parent.mkdir(parents=True, exist_ok=True)
        (overlay / name).symlink_to(target)
    # Any machine id will do, but without one every boot is a first boot and enables units for seconds.
    (overlay / "etc/machine-id").write_text(f"{uuid.uuid4().hex}\n")
    for key in (work / "ssh_key", overlay / "etc/ssh/ssh_host_ed25519_key"):
        run_tool(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "cgpause-vm", "-f", key])
    (overlay / "root/.ssh/authorized_keys").write_text((work / "ssh_key.pub").read_text())
    host_key = (overlay / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
    (work / "known_hosts").write_text(f"cgpause-vm {host_key}")


def _make_disk(work: Path, scratch: Path, tarball: Path, overlay: Path) -> None:
    script = f"""
set -eu
umask 022
mkdir root
trap 'rm -rf root' EXIT
tar -x --numeric-owner --exclude='./dev/*' -f {shlex.quote(str(tarball))} -C root  # the kernel fills /dev
cp root/boot/vmlinuz-* {shlex.quote(str(work / "vmlinuz"))}
cp root/boot/initrd.img-* {shlex.quote(str(work / "initrd"))}
rm -rf root/boot/* root/etc/ssh/ssh_host_*
cp -rT --no-preserve=mode {shlex.quote(str(overlay))} root
chmod 700 root/root/.ssh
chmod 600 root/etc/ssh/ssh_host_ed25519_key
{shlex.join(MKFS)} -d root {shlex.quote(str(work / "root.ext4"))} {DISK_SIZE}
printf '{{"kernel_release": "%s", "python_version": "%s"}}\\n' \\
    "$(ls root/lib/modules)" "$(readlink root/usr/bin/python3 | sed s/python//)" \\
    >{shlex.quote(str(work / "facts.json"))}
"""
    # Without root, a user namespace does: the files belong to root in it, and to this user outside of it.
    become_root = [] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--map-auto"]
    run_tool([*become_root, "sh", "-c", script], cwd=scratch)


def _plain_initrd(path: Path) -> None:
    """Decompress the initrd on the host: the emulated CPU would need a second for it at each boot."""
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        path.write_bytes(gzip.decompress(data))
