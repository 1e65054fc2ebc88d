"""Compiler of the lab's C programs into build/, on the host: the guest has no compiler."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lab.vm.host import REPO, LabError

PROGRAMS = ("worker", "readloop", "service")
BUILD = REPO / "build"
_FLAGS = ("-O2", "-static", "-Wall", "-Wextra", "-Werror", "-std=c11")


def ensure_program(name: str) -> Path:
    """Return the path of a program in BUILD, compiled from the present scripts/lab/bed/<name>.c and lab.h.

    Raises:
        LabError: there is no compiler, or the compiler failed.
    """
    source = REPO / "scripts/lab/bed" / f"{name}.c"
    program = BUILD / name
    stamp = BUILD / f"{name}.stamp"
    present = source.read_bytes() + source.with_name("lab.h").read_bytes()
    wanted = hashlib.sha256(" ".join(_FLAGS).encode() + present).hexdigest()
    if program.exists() and stamp.exists() and stamp.read_text() == wanted:
        return program
    BUILD.mkdir(exist_ok=True)
    # Written elsewhere and renamed: with two builders at once, the program is always complete.
    with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=BUILD) as folder:
        new = Path(folder) / name
        command = ["cc", *_FLAGS, "-o", str(new), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        except FileNotFoundError as e:
            raise LabError("no C compiler: install the Debian packages gcc and libc6-dev") from e
        if done.returncode:
            raise LabError(f"{' '.join(command)} failed:\n{done.stderr}")
        os.replace(new, program)
        (Path(folder) / "stamp").write_text(wanted)
        os.replace(Path(folder) / "stamp", stamp)
    return program


def main() -> int:
    """Compile all programs."""
    try:
        for name in PROGRAMS:
            ensure_program(name)
    except LabError as e:
        print(f"build: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
