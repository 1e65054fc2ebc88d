"""A VM with systemd and the checkout inside: `scripts/vm build`, `scripts/vm run -- CMD`, or `with Vm() as vm`.

It boots one guest, runs commands over ssh, and removes everything at the end. `image` makes the disk, `payload` its
contents, `qemu` QEMU's arguments.
"""

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.vm.host import DIE_WITH_PARENT, REPO, LabError, cache_dir, end_by_signal, say, tail
from lab.vm.image import READY, ensure_image
from lab.vm.payload import (
    GUEST_ROOT,
    ensure_bytecode,
    ensure_package,
    ensure_packages,
    ensure_wheel,
    source_files,
    write_payload,
)
from lab.vm.qemu import COUNTED, KVM, Machine, accelerator, distrust_kvm, free_port, qemu_command

BOOT_SECONDS = 600  # emulated: 10 to 20 alone, 50 with counted instructions, minutes on a busy host
BOOT_SECONDS_KVM = 30
EXIT_TIMEOUT = 124
EXIT_LOST = 125
SSH_FAILED = 255  # exit status of ssh itself; a command can end with it, too

PASSED_ON = ("TERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")


class VmLostError(LabError):
    """The guest did not start, or died; its command has no result."""


class CommandTimeoutError(LabError):
    """The command exceeded its time; the guest cannot be used any more."""


def guest_command(
    command: str | Sequence[str], status_file: str, env: dict[str, str], *, terminal: bool = False
) -> str:
    """Return the text for root's shell in the guest: the command with its environment, and a note of its status.

    The command gets its own session, so that a `kill 0` in it does not look like a lost guest. The session gets the
    `terminal`, if there is one.
    """
    words = command if isinstance(command, str) else shlex.join(command)
    env = {
        "CGPAUSE_VM": "1",
        "HOME": "/root",
        "PYTHONPATH": ":".join(f"{GUEST_ROOT}/{name}" for name in ("src", "site", "src/scripts")),
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        **env,
    }
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
    session = f"setsid -w{' -c' * terminal} sh -c {shlex.quote(words)}{'' if terminal else ' </dev/null'}"
    return f"cd {GUEST_ROOT}/src || exit; env {settings} {session}; s=$?; echo $s >{status_file}; exit $s"


class Vm:
    """One booted guest; use it as a context manager.

    `run` streams a command's output and returns its status, `capture` keeps the output, `fetch` copies a file out,
    `reset` is a power failure. All of them raise VmLostError when the guest is gone.
    """

    def __init__(self, machine: Machine | None = None, *, extra: Path | None = None) -> None:
        self.machine = machine or Machine()
        self._cache = cache_dir()
        self._extra = extra
        self._stack = contextlib.ExitStack()
        self._commands = 0

    def __enter__(self) -> Self:
        try:
            self._enter()
        except VmLostError as e:
            # An emulated kernel can die while it patches its own code, before any command has run.
            say(f"{e}\nbooting once more")
            self._enter()
        return self

    def _enter(self) -> None:
        with contextlib.ExitStack() as stack:
            self._stack = stack
            self._boot()
            self._stack = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, command: str | Sequence[str], *, timeout: float | None = None, terminal: bool = False) -> int:
        """Run an argument list, or a line of shell, in the guest's checkout; its output goes to this process's output.

        With `terminal` it has this process's terminal and input.
        """
        return self._run(command, timeout=timeout, capture=False, terminal=terminal).returncode

    def capture(
        self, command: str | Sequence[str], *, timeout: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command like `run`; return stdout and stderr as text."""
        return self._run(command, timeout=timeout, capture=True)

    def fetch(self, guest_path: str, host_path: Path) -> None:
        """Copy a file of the guest to `host_path`; an existing file is replaced."""
        path = os.path.join(f"{GUEST_ROOT}/src", guest_path)
        done = subprocess.run(
            [*self._ssh, "guest", shlex.join(["cat", path])],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if done.returncode == SSH_FAILED:
            raise VmLostError("the guest went away")
        if done.returncode:
            raise LabError(f"could not fetch {path}: {done.stderr.decode(errors='replace').strip()}")
        host_path.parent.mkdir(parents=True, exist_ok=True)
        host_path.write_bytes(done.stdout)

    def reset(self) -> None:
        """Reset a machine that `resets`, and wait until it is up again.

        Its disks keep the data that its kernel had written out.
        """
        boots = self._boots()
        # The command that asks for the reset dies with it, and ssh would wait for its status for minutes.
        quiet = subprocess.DEVNULL
        asking = self._spawn([*self._ssh, "guest", "echo b >/proc/sysrq-trigger"], stdout=quiet)
        self._await_ready(boots + 1)
        asking.kill()
        self._master.kill()
        self._connect()

    def _boot(self) -> None:
        machine = self.machine
        image = ensure_image(self._cache, machine.suite, machine.packages, programs=machine.programs)
        packages = ensure_packages(self._cache, REPO, image.python_version)
        names = source_files(REPO)
        wheel = ensure_wheel(self._cache, REPO, names)
        # The payload has no name, so that it never remains after the end of this process.
        payload = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        package = ensure_package(self._cache, REPO, names, wheel)
        bytecode = ensure_bytecode(self._cache, REPO, names, image.python_version)
        write_payload(payload, REPO, names, bytecode, {"wheels": wheel, "debs": package, "with": self._extra})

        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="cgpause-vm-")))
        self._console = self._folder / "console"
        self._accel = COUNTED if self.machine.counted else accelerator(self._cache, image.folder / "vmlinuz")
        self._image, self._port = image, free_port()
        command = qemu_command(
            self.machine,
            image,
            accel=self._accel,
            payload=f"/proc/self/fd/{payload.fileno()}",
            packages=str(packages),
            ssh_port=self._port,
        )
        say(f"booting Linux {image.kernel_release} ({'KVM' if self._accel is KVM else 'emulated'})")
        started = time.monotonic()
        with open(self._console, "wb") as console:
            self._qemu = self._spawn(command, stdout=console.fileno(), pass_fds=[payload.fileno()])
        self._await_ready(1)
        self._connect()
        say(f"up after {time.monotonic() - started:.1f} s")

    def _spawn(self, argv: Sequence[str], *, stdout: int, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
        # Its own process group: Ctrl-C reaches only this process, which ends QEMU.
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stdout, pass_fds=pass_fds, process_group=0
        )
        self._stack.callback(child.wait)
        self._stack.callback(child.kill)
        return child

    def _boots(self) -> int:
        return self._console.read_bytes().count(READY.encode())

    def _await_ready(self, boots: int) -> None:
        seconds = BOOT_SECONDS_KVM if self._accel is KVM else BOOT_SECONDS
        deadline = time.monotonic() + seconds
        while self._boots() < boots:
            if self._qemu.poll() is not None:
                raise self._lost(f"QEMU ended with status {self._qemu.returncode} while booting")
            if time.monotonic() > deadline:
                raise self._lost(f"the guest was not up after {seconds} s")
            time.sleep(0.1)

    def _connect(self) -> None:
        """Open the connection that all commands share: an emulated CPU needs a second for each key exchange."""
        control = self._folder / f"ssh-{self._boots()}"
        options = {
            "IdentityFile": self._image.folder / "ssh_key",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self._image.folder / "known_hosts",
            "HostKeyAlias": "cgpause-vm",
            "StrictHostKeyChecking": "yes",
            "HostName": "127.0.0.1",
            "Port": self._port,
            "User": "root",
            "BatchMode": "yes",
            "LogLevel": "ERROR",
            "KexAlgorithms": "curve25519-sha256",
            # A guest deep in reclaim may be silent for a long time without being lost.
            "ServerAliveInterval": 30,
            "ServerAliveCountMax": 10,
            "ConnectTimeout": 30,
            "ControlPath": control,
        }
        ssh = ["ssh", "-F", "none", *(f"-o{key}={value}" for key, value in options.items())]
        self._ssh = [*ssh, "-oControlMaster=no", "-oProxyCommand=false"]  # over the shared connection or not at all
        self._ssh_anew = ["ssh", "-oControlPath=none", *ssh[1:]]  # before the other one, because ssh takes the first
        log = control.with_suffix(".log")
        with open(log, "wb") as out:
            self._master = self._spawn(
                [*DIE_WITH_PARENT, *ssh, "-oControlMaster=yes", "-N", "guest"], stdout=out.fileno()
            )
        while not control.exists():
            if self._master.poll() is not None:
                raise self._lost(f"no ssh connection: {tail(log)}")
            time.sleep(0.05)
        if self._qemu.poll() is not None:  # another process answered at this port
            raise self._lost(f"QEMU ended with status {self._qemu.returncode}")

    def _run(
        self, command: str | Sequence[str], *, timeout: float | None, capture: bool, terminal: bool = False
    ) -> subprocess.CompletedProcess[str]:
        self._commands += 1
        status_file = f"/run/cgpause-vm-status.{self._commands}"
        env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        pipe = subprocess.PIPE if capture else None
        # Over the shared connection, its master in the background would read the keys.
        ssh = [*self._ssh_anew, "-tt"] if terminal else self._ssh
        client = subprocess.Popen(
            [*DIE_WITH_PARENT, *ssh, "guest", guest_command(command, status_file, env, terminal=terminal)],
            stdin=None if terminal else subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            # In the background it could not set the terminal's modes; with raw modes, Ctrl-C goes to the guest.
            process_group=None if terminal else 0,
        )
        try:
            out, err = client.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as e:
            raise CommandTimeoutError(f"still running after {timeout:g} s: {command!r}") from e
        finally:
            client.kill()
            client.wait()
        if client.returncode == SSH_FAILED and not self._ended_with(SSH_FAILED, status_file):
            raise self._lost("the guest went away while the command ran")
        return subprocess.CompletedProcess(command, client.returncode, out, err)

    def _ended_with(self, status: int, status_file: str) -> bool:
        """Return True if the guest confirms that this was the command's own status."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._qemu.poll() is None:
                asked = subprocess.run(
                    [*self._ssh_anew, "guest", f"cat {status_file}"],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=60,
                )
                return asked.stdout.strip() == str(status)
        return False

    def _lost(self, what: str) -> VmLostError:
        # A guest that dies takes the connection with it first: give QEMU a moment to be seen dead.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._qemu.wait(timeout=1)
        if self._accel is KVM:
            distrust_kvm(self._cache)
        seen = tail(self._console)
        return VmLostError(f"{what}\n--- end of the guest's console ---\n{seen}\n---" if seen else what)


def _run_command(args: argparse.Namespace, command: Sequence[str]) -> int:
    machine = Machine(args.memory, args.cpus, args.append, args.counted, args.suite, args.programs)
    deadline = time.monotonic() + args.timeout

    def run() -> int:
        with Vm(machine, extra=args.extra) as vm:
            status = vm.run(command, timeout=max(1.0, deadline - time.monotonic()), terminal=args.terminal)
            for guest_path, host_path in args.get:
                vm.fetch(guest_path, host_path)
            return status

    return try_twice(run)


def try_twice(run: Callable[[], int]) -> int:
    """Call `run`, and once more if its VM was lost; return its status, or EXIT_LOST if the VM was lost twice."""
    for last_try in (False, True):
        try:
            return run()
        except VmLostError as e:
            say(f"VM lost: {e}")
            if not last_try:
                say("trying once more, from the start")
    say("VM lost twice: giving up (this says nothing about the command)")
    return EXIT_LOST


def parse_get(text: str) -> tuple[str, Path]:
    """Split GUEST_PATH:HOST_PATH."""
    guest_path, _, host_path = text.partition(":")
    if not (guest_path and host_path):
        raise argparse.ArgumentTypeError(f"GUEST_PATH:HOST_PATH is needed, not {text!r}")
    return guest_path, Path(host_path)


def parse_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split the command line into this program's arguments and, after `--`, the command for the guest."""
    cut = argv.index("--") if "--" in argv else len(argv)
    ours, command = list(argv[:cut]), list(argv[cut + 1 :])
    parser = argparse.ArgumentParser(prog="scripts/vm", description="Run a command on a real kernel, in a VM.")
    actions = parser.add_subparsers(dest="action", required=True)
    build = actions.add_parser("build", help="make sure the image and the Python packages are in the cache")
    run = actions.add_parser("run", usage="scripts/vm run [options] -- CMD...", help="boot, run CMD, exit as it did")
    for action in (build, run):
        action.add_argument("--suite", default="", help="the guest's Debian, and with it its kernel (the host's own)")
        action.add_argument(
            "--programs", action="store_true", help="the image with compilers and other programs for pods"
        )
    run.add_argument("--memory", default="1536M", help="the guest's memory (%(default)s)")
    run.add_argument("--cpus", type=int, default=2, help="the guest's CPUs (%(default)s)")
    run.add_argument(
        "--counted", action="store_true", help="the guest's clock counts its instructions: a nanosecond each"
    )
    run.add_argument("--terminal", action="store_true", help="CMD has this terminal: its screen and its keys")
    run.add_argument(
        "--timeout", type=float, default=1500, metavar="SECONDS", help="boot included; then exit 124 (%(default)s)"
    )
    run.add_argument("--append", default="", metavar="WORDS", help="more kernel command line, such as psi=0")
    run.add_argument(
        "--with", dest="extra", type=Path, metavar="FILE", help=f"have a file of the host's in {GUEST_ROOT}/with, too"
    )
    paths = "GUEST_PATH:HOST_PATH"
    run.add_argument("--get", action="append", type=parse_get, default=[], metavar=paths, help="copy out after CMD")
    args = parser.parse_args(ours)
    if args.action == "run":
        if not command:
            run.error("no command: scripts/vm run [options] -- CMD...")
        if args.terminal and not (sys.stdin.isatty() and sys.stdout.isatty()):
            run.error("--terminal wants one, and this is none")
        if args.extra is not None and not args.extra.is_file():
            run.error(f"--with: no such file: {args.extra}")
    return args, command


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the command's exit status, 124 after a timeout, 125 if the test bed failed."""
    args, command = parse_arguments(argv)
    end_by_signal()
    try:
        if args.action == "build":
            image = ensure_image(cache_dir(), args.suite, programs=args.programs)
            ensure_packages(cache_dir(), REPO, image.python_version)
            say(f"ready: {image.folder}")
            return 0
        return _run_command(args, command)
    except CommandTimeoutError as e:
        say(str(e))
        return EXIT_TIMEOUT
    except LabError as e:
        say(str(e))
        return EXIT_LOST


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
