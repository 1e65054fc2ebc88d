"""Writes on a thread: in their order, bounded in time for the caller, with each error logged once."""

from __future__ import annotations

import errno
import logging
import os
import threading

from helpers.fixtures import Log

from cgpause.kernel.background import BackgroundWriter, FileErrors


def test_jobs_run_in_their_order_and_the_last_one_before_the_thread_ends() -> None:
    done: list[int] = []
    writer = BackgroundWriter("test")
    for number in range(50):
        writer.run(lambda number=number: done.append(number))  # type: ignore[misc]

    assert writer.close(60)
    assert done == list(range(50))
    assert writer.waiting == 0


def test_a_job_that_hangs_counts_as_waiting_and_holds_nobody_up() -> None:
    go_on = threading.Event()

    def hang() -> None:
        go_on.wait(60)

    writer = BackgroundWriter("test")
    writer.run(hang)
    writer.run(lambda: None)

    assert writer.waiting == 2
    assert not writer.close(0)
    go_on.set()
    assert writer.close(60)


def test_a_bug_in_a_job_costs_that_job_alone(caplog: Log) -> None:
    done: list[int] = []
    writer = BackgroundWriter("test")
    writer.run(lambda: done.append(1 // 0))
    writer.run(lambda: done.append(2))

    assert writer.close(60)
    assert (done, writer.waiting) == ([2], 0)
    assert caplog.messages == ["test not written"]


def test_each_new_error_and_the_end_of_all_are_logged_once(caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    errors = FileErrors("/x/file", "bad", "good")
    errors.over()
    for code in (errno.EIO, errno.EIO, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ENOSPC):
        errors.note(OSError(code, os.strerror(code)))
    errors.over()
    errors.over()
    errors.over(lost=3)

    created = "if the folder was created after the unit's start, restart the unit"
    after = ", accessible to root only, then restart the unit"
    assert caplog.messages == [
        'bad file=/x/file error="Input/output error"',
        f'bad file=/x/file error="Read-only file system" advice="{created}"',
        f'bad file=/x/file error="No such file or directory" advice="create /x{after}"',
        f'bad file=/x/file error="Not a directory" advice="replace /x by a directory{after}"',
        'bad file=/x/file error="No space left on device" advice="free disk space"',
        "good file=/x/file",
        "good file=/x/file lost=3",
    ]


def test_a_bug_is_logged_with_its_traceback(caplog: Log) -> None:
    errors = FileErrors("/x/file", "bad", "good")
    errors.note(OSError(errno.ENOSPC, "full"))
    for _ in range(2):
        errors.note(ZeroDivisionError("a bug"))

    _, record = caplog.records
    assert (record.getMessage(), record.exc_info is not None) == ("bad", True)
