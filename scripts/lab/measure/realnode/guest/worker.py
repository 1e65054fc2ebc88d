"""The program of every pod: `worker.py idle`, `worker.py grow MIB`, `worker.py serve PORT`.

At SIGTERM the program writes a file /out/POD, which shows that it ended by itself, and exits.
"""

import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MIB_PER_S = 50
PAGES = os.urandom(4096) * 256


class Answer(BaseHTTPRequestHandler):
    """A service that answers every request."""

    def do_GET(self) -> None:
        """Answer a probe."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def idle() -> None:
    """Print a line a second."""
    number = 0
    while True:
        number += 1
        print(f"{time.time():.1f} tick {number}", flush=True)
        time.sleep(1)


def grow(mib: int) -> None:
    """Take memory at MIB_PER_S, then end."""
    taken: list[bytearray] = []
    while len(taken) < mib:
        begun = time.monotonic()
        taken.extend(bytearray(PAGES) for _ in range(min(5, mib - len(taken))))
        print(f"{time.time():.1f} holds {len(taken)} MiB", flush=True)
        time.sleep(max(0.0, 5 / MIB_PER_S - (time.monotonic() - begun)))


def end(_number: int, _frame: object) -> None:
    """Do some work, like a program that saves its state, then write /out/POD and end."""
    sum(range(100_000))
    Path("/out", os.environ["POD"]).write_text("ended by SIGTERM\n")
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
match sys.argv[1:]:
    case ["idle"]:
        idle()
    case ["grow", size]:
        grow(int(size))
    case ["serve", port]:
        ThreadingHTTPServer(("", int(port)), Answer).serve_forever()
