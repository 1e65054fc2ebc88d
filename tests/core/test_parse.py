"""Kernel text: files of a real node (expected values entered by hand), and malformed text."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest
from helpers.trees import CAPTURED_POD, CAPTURES, load_capture

from cgpause.core.errors import MalformedError
from cgpause.core.model import CpuMax
from cgpause.core.parse import (
    CpuStat,
    ProcessStatus,
    parse_cgroup2_mounts,
    parse_cpu_max,
    parse_cpu_stat,
    parse_cpu_usage,
    parse_first_listens,
    parse_flat_keyed,
    parse_flock_holder,
    parse_limit,
    parse_meminfo,
    parse_number,
    parse_pressure,
    parse_process_status,
    parse_reclaimable,
    parse_shmem,
    parse_sockets_used,
    parse_start_ticks,
    parse_tcp_in_use,
)


@pytest.mark.parametrize("driver", CAPTURES)
def test_files_of_a_captured_pod_are_read_and_the_mounts_of_its_node(driver: str) -> None:
    """tests/cli/test_status.py has the other captured files."""
    capture = load_capture(driver)
    files = {name: text.encode() for name, text in capture["cgroups"][CAPTURED_POD[driver]].items() if "." in name}
    assert parse_number(files["cpu.max.burst"], "cpu.max.burst") == 0
    assert parse_number(files["cgroup.freeze"], "cgroup.freeze") == 0
    events = parse_flat_keyed(files["memory.events"], "memory.events")
    assert events == {"low": 0, "high": 0, "max": 0, "oom": 0, "oom_kill": 0, "oom_group_kill": 0}
    assert parse_flat_keyed(files["cgroup.events"], "cgroup.events") == {"populated": 1, "frozen": 0}
    assert parse_cgroup2_mounts("".join(capture["mountinfo"]).encode()) == ("/sys/fs/cgroup",)


@pytest.mark.parametrize("data", [b"18446744073709551615", b"18446744073709551615\n"])
def test_the_largest_number_of_the_kernel_is_read(data: bytes) -> None:
    assert parse_number(data, "memory.current") == 2**64 - 1
    assert parse_limit(data, "memory.max") == 2**64 - 1


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"max 100000\n", CpuMax(None, 100000)),
        (b"50000 100000\n", CpuMax(50000, 100000)),
        (b"200000 50000", CpuMax(200000, 50000)),
        (b"1000 1000000\n", CpuMax(1000, 1000000)),
    ],
)
def test_cpu_max_is_read_and_written_alike(data: bytes, value: CpuMax) -> None:
    assert parse_cpu_max(data) == value
    assert str(value) == data.decode().strip()


def test_flat_keyed_file_may_be_empty_and_hold_keys_we_do_not_know() -> None:
    assert parse_flat_keyed(b"", "memory.events") == {}
    assert parse_flat_keyed(b"n\xc3\xa4w 7\noom_kill 1\n", "memory.events")["oom_kill"] == 1


def test_reclaimable_counts_neither_tmpfs_nor_unreclaimable_slab_in_any_order() -> None:
    stat = b"file 1000\nshmem 900\ninactive_file 1\nactive_file 20\nslab_reclaimable 300\nslab_unreclaimable 4000\n"
    assert parse_reclaimable(stat) == 321
    assert parse_shmem(stat) == 900
    assert parse_reclaimable(b"slab_reclaimable 1\nactive_file 2\ninactive_file 3") == 6


def test_free_swap_and_pages_of_hugetlb_are_no_memory_for_pods() -> None:
    """Pages of hugetlb are not part of MemAvailable, and no ordinary allocation gets them."""
    memory = b"MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    400 kB\n"
    swap = b"SwapTotal:      5000 kB\nSwapFree:       5000 kB\n"
    hugetlb = b"MemTotal:       1000 kB\nMemAvailable:    400 kB\nHugePages_Total:     3\nHugetlb:  300 kB\n"
    assert parse_meminfo(memory + swap) == parse_meminfo(memory)
    assert parse_meminfo(hugetlb) == (700 * 1024, 400 * 1024, 1000 * 1024)


MOUNT = b"32 24 0:27 / %s rw,relatime shared:8 - %s cgroup2 rw\n"


@pytest.mark.parametrize(
    ("mountinfo", "mounts"),
    [
        pytest.param(b"", (), id="empty"),
        pytest.param(MOUNT % (b"/sys/fs/cgroup", b"cgroup"), (), id="v1"),
        pytest.param(
            MOUNT % (b"/sys/fs/cgroup/cpu", b"cgroup") + MOUNT % (b"/sys/fs/cgroup/unified", b"cgroup2"),
            ("/sys/fs/cgroup/unified",),
            id="hybrid",
        ),
        pytest.param(MOUNT % (rb"/a\040b\012c\134d", b"cgroup2"), ("/a b\nc\\d",), id="escaped"),
        pytest.param(MOUNT % (b"/a\xff", b"cgroup2"), ("/a\udcff",), id="not-utf8"),
        pytest.param(MOUNT % (b"/a\rb", b"cgroup2"), ("/a\rb",), id="carriage-return-is-not-escaped"),
        pytest.param(MOUNT % (b"/a", b"cgroup2") + MOUNT % (b"/b", b"cgroup2"), ("/a", "/b"), id="in-mount-order"),
        pytest.param(b"32 24 0:27 / /a rw - cgroup2 cgroup2 rw", ("/a",), id="no-optional-fields-no-newline"),
        pytest.param(b"32 24 0:27 / /a rw cgroup2 cgroup2 rw\n", (), id="no-separator"),
        pytest.param(b"32 24 - cgroup2 cgroup2 rw\n", (), id="too-few-fields"),
        pytest.param(b"32 24 0:27 / /a rw -", (), id="truncated"),
    ],
)
def test_only_cgroup2_mounts_are_found(mountinfo: bytes, mounts: tuple[str, ...]) -> None:
    assert parse_cgroup2_mounts(mountinfo) == mounts


STATUS = b"Name:\tsh\nPPid:\t7\nSigPnd:\t%s\nShdPnd:\t%s\nSigBlk:\t0000000000004000\n"
NONE = b"0000000000000000"
SIGTERM = b"0000000000004000"
SIGKILL = b"0000000000000100"
SIGWINCH = b"0000000008000000"


@pytest.mark.parametrize(
    ("status", "stops"),
    [
        pytest.param(STATUS % (NONE, NONE), 0, id="nothing"),
        pytest.param(STATUS % (NONE, SIGTERM), 0x4000, id="sigterm"),
        pytest.param(STATUS % (SIGTERM, SIGKILL), 0x4100, id="sigkill-too"),
        pytest.param(STATUS % (SIGTERM, NONE), 0x4000, id="sigterm-for-the-thread"),
        pytest.param(STATUS % (NONE, b"ffffffffffffffff"), 0x1020004B27, id="all-that-there-are"),
        pytest.param(STATUS % (NONE, SIGWINCH), 0, id="sigwinch-for-a-terminal"),
        pytest.param(STATUS % (NONE, SIGWINCH) + b"SigCgt:\t" + SIGWINCH, 1 << 27, id="sigwinch-for-httpd"),
        pytest.param(b"PPid:\t7\nShdPnd:\t0000", 0, id="truncated"),
        pytest.param(b"PPid:\t7\nShdPnd:\tzzzzzzzzzzzzzzzz\n", 0, id="not-hex"),
        pytest.param(b"Name:\tShdPnd:\\n\\t0000000000004000\nPPid:\t7\nShdPnd:\t" + NONE, 0, id="name"),
        pytest.param(b"Name:\tPPid:\\n\\t9\nPPid:\t7\n", 0, id="parent-in-the-name"),
    ],
)
def test_parent_and_pending_stop_signals_of_a_process(status: bytes, stops: int) -> None:
    assert parse_process_status(status) == ProcessStatus(7, stops)


@pytest.mark.parametrize("name", ["sh", "a b", ") S 1", "(((", "", "x) 1 2 3"])
def test_a_process_may_be_called_anything(name: str) -> None:
    stat = f"42 ({name}) S 1 42 42 0 -1 4194560 95 0 0 0 0 0 0 0 20 0 1 0 777 2523136 200 18446744073709551615 1"
    assert parse_start_ticks(stat.encode()) == 777


# Written by 6.18 for a process in its own network namespace that listens and is connected to itself.
SOCKSTAT = b"""sockets: used 4
TCP: inuse 3 orphan 0 tw 0 alloc 3 mem 0
UDP: inuse 0 mem 0
UDPLITE: inuse 0
RAW: inuse 0
FRAG: inuse 0 memory 0
"""
SOCKSTAT6 = b"TCP6: inuse 1\nUDP6: inuse 7\nUDPLITE6: inuse 0\nRAW6: inuse 0\nFRAG6: inuse 0 memory 0\n"


@pytest.mark.parametrize(
    ("data", "in_use"),
    [
        pytest.param(SOCKSTAT, 3, id="ipv4"),
        pytest.param(SOCKSTAT6, 1, id="ipv6"),
        pytest.param(b"TCP: inuse 0 orphan 5 tw 9\n", 0, id="only-remains"),
        pytest.param(b"TCP6: inuse 12", 12, id="no-newline"),
    ],
)
def test_tcp_sockets_in_use_are_read(data: bytes, in_use: int) -> None:
    assert parse_tcp_in_use(data) == in_use


TCP = (
    b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode".ljust(149)
    + b"\n"
)
TCP6 = (
    b"  sl  local_address                         remote_address                        "
    b"st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
)
REST = b" 00000000:00000000 00:00000000 00000000     0        0 15716 1 0000000000000000 100 0 0 10 0"
LISTENS = b"   0: 0100007F:1F90 00000000:0000 0A" + REST.ljust(113) + b"\n"
CONNECTED = b"   1: 0100007F:1F90 0100007F:C350 01" + REST.ljust(113) + b"\n"
LISTENS6 = b"   0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A" + REST + b"\n"


@pytest.mark.parametrize(
    ("data", "listens"),
    [
        pytest.param(TCP, False, id="nothing"),
        pytest.param(TCP6, False, id="nothing-on-ipv6"),
        pytest.param(TCP + LISTENS, True, id="listens"),
        pytest.param(TCP6 + LISTENS6, True, id="listens-on-ipv6"),
        pytest.param(TCP + LISTENS + CONNECTED, True, id="listens-and-is-connected"),
        pytest.param(TCP + CONNECTED, False, id="only-connected"),
        pytest.param((TCP + LISTENS)[:256], True, id="cut-off-where-we-stop"),
        pytest.param((TCP6 + LISTENS6)[:256], True, id="cut-off-on-ipv6"),
        pytest.param((TCP + CONNECTED)[:256], False, id="cut-off-and-only-connected"),
    ],
)
def test_the_first_socket_tells_whether_anybody_listens(data: bytes, listens: bool) -> None:
    assert parse_first_listens(data) is listens


CPU_STAT = b"usage_usec 90\nuser_usec 60\nsystem_usec 30\n"


@pytest.mark.parametrize(
    ("data", "stat"),
    [
        pytest.param(CPU_STAT, CpuStat(90, 0, 0, 0), id="no-cpu-controller"),
        pytest.param(
            CPU_STAT + b"core_sched.force_idle_usec 0\nnr_periods 7\nnr_throttled 3\nthrottled_usec 41\nnr_bursts 0\n",
            CpuStat(90, 7, 3, 41),
            id="6.1",
        ),
    ],
)
def test_cpu_stat(data: bytes, stat: CpuStat) -> None:
    assert parse_cpu_usage(data) == stat.usage_usec
    assert parse_cpu_stat(data) == stat


# Written by 6.18, plus a waiter as described in Documentation/filesystems/locks.
LOCKS = b"""\
1: FLOCK  ADVISORY  WRITE 15898 fe:00:2230202 0 EOF
1: -> FLOCK  ADVISORY  WRITE 4711 fe:00:2230202 0 EOF
2: OFDLCK ADVISORY  READ -1 fe:00:16039979 203 203
3: POSIX  ADVISORY  WRITE 15871 00:1b:402116 0 EOF
4: FLOCK  ADVISORY  READ 77 00:1b:402117 0 EOF
5: -> FLOCK  ADVISORY  WRITE 78 00:1b:402118 0 EOF
"""


@pytest.mark.parametrize(
    ("device", "inode", "pid"),
    [
        pytest.param((0xFE, 0), 2230202, 15898, id="held-and-waited-for"),
        pytest.param((0, 0x1B), 402117, 77, id="shared"),
        pytest.param((0, 0x1B), 402116, None, id="not-a-flock"),
        pytest.param((0, 0x1B), 402118, None, id="only-waited-for"),
        pytest.param((0, 0x1C), 402117, None, id="another-device"),
        pytest.param((0, 0x1B), 40211, None, id="a-longer-inode"),
        pytest.param((0xFE, 0), 16039979, None, id="no-process"),
    ],
)
def test_the_holder_of_a_flock(device: tuple[int, int], inode: int, pid: int | None) -> None:
    assert parse_flock_holder(LOCKS, device, inode) == pid


# --- malformed text --------------------------------------------------------------------------------------------------

NOT_NUMBERS = [
    *(b"", b"\n", b"-1\n", b"+1\n", b"1_0\n", b" 1\n", b"1 \n", b"1\n\n", b"1\n2\n", b"1\x00", b"1.0\n", b"0x10\n"),
    *(b"\xff\xfe\n", "\N{ARABIC-INDIC DIGIT ONE}\n".encode()),
    *(b"18446744073709551616\n", b"9" * 21, b"9" * 5000),  # more than 64 bit
]
SOME = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
PRESSURE = SOME + SOME.replace(b"some", b"full")
HUGE = b"9" * 21

MALFORMED: list[tuple[Callable[[bytes], object], str, list[bytes]]] = [
    (partial(parse_number, what="memory.current"), "memory.current", [*NOT_NUMBERS, b"max\n"]),
    (partial(parse_limit, what="memory.max"), "memory.max", [*NOT_NUMBERS, b"max 1\n"]),
    (
        parse_cpu_max,
        "cpu.max",
        [
            *NOT_NUMBERS,
            *(b"max", b"1000", b"100000 max\n", b"max max\n", b"MAX 100000\n", b"-1 100000\n", b"1000 -1\n"),
            *(b"1000 100000 5\n", b"1000  100000\n", b"1000\n100000\n", b"max 100000\n\n", b"max 100000\x00"),
            HUGE + b" 100000",
        ],
    ),
    (
        partial(parse_flat_keyed, what="memory.events"),
        "memory.events",
        [
            *(b"oom_kill\n", b"oom_kill 1 2\n", b"oom_kill -1\n", b"oom_kill max\n", b"oom_kill 1\n\noom 0\n"),
            *(b"oom_kill 1\x00\n", b"oom_kill 999999999999999999999\n"),
        ],
    ),
    (
        parse_reclaimable,
        "memory.stat",
        [
            *(b"", b"inactive_file 1\nactive_file 2\n", b"inactive_file 1\nactive_file 2\nslab_reclaimable "),
            b"inactive_file 1\nslab_reclaimable 2\n",  # inactive_file is not active_file
            *(
                b"inactive_file %s\nactive_file 2\nslab_reclaimable 3\n" % bad
                for bad in (b"-1", b"max", b"1\x00", b"1x")
            ),
            b"inactive_file 1\nactive_file 2\nslab_reclaimable " + HUGE + b"\n",
        ],
    ),
    (parse_shmem, "memory.stat", [b"", b"shmem_thp 5\n", b"shmem \n", b"shmem -1\n", b"anon 1\nshmem"]),
    (
        parse_meminfo,
        "meminfo",
        [
            *(b"", b"MemTotal:  100 kB\nMemFree: 5 kB\n", b"MemAvailable: 100 kB\n"),
            *(b"MemTotal: 100 kB\nMemAvailable:", b"MemTotal: 100 kB\nMemAvailable: 50"),
            *(b"MemAvailable: 7 kB\nMemTotal: 10 kB\n", b"MemTotal: 10 kB\nMemAvailable: x kB\nMemAvailable: 7 kB\n"),
            *(b"MemTotal: 100 MB\nMemAvailable: 50 MB\n", b"MemTotal: 0 kB\nMemAvailable: 0 kB\n"),
            *(b"MemTotal: %s kB\nMemAvailable: 50 kB\n" % bad for bad in (b"-1", b"max", b"1\x00", HUGE)),
            *(b"MemTotal: 100 kB\nMemAvailable: 50 kB\nHugetlb: %s kB\n" % bad for bad in (b"100", b"x")),
        ],
    ),
    (
        parse_pressure,
        "pressure",
        [
            *(b"", SOME, PRESSURE.replace(b"some", b"full"), PRESSURE.replace(b" total=1", b""), PRESSURE[:35]),
            *(PRESSURE.replace(b"avg10=0.00", b"avg10=" + bad) for bad in (b"-1.00", b"max", b"nan")),
            *(PRESSURE.replace(b"total=1", b"total=" + bad) for bad in (HUGE, b"1\x00")),
        ],
    ),
    (parse_process_status, "PPid", [b"", b"Name:\tsh\n", b"PPid:\tx\n", b"PPid:\t\n"]),
    (parse_start_ticks, "stat", [b"", b"42 (sh) S 1 2", b"42 (sh)" + b" x" * 30]),
    (
        parse_tcp_in_use,
        "sockstat",
        [
            *(b"", b"UDP: inuse 1\n", b"TCP: inuse -1 orphan 0\n", b"TCP: inuse x\n", b"xTCP: inuse 1\n"),
            b"TCP: inuse " + HUGE,
        ],
    ),
    (
        parse_sockets_used,
        "sockstat",
        [b"", b"TCP: inuse 1\n", b"sockets: used -1\n", b"sockets: used 1", b"sockets: used " + HUGE + b"\n"],
    ),
    (
        parse_first_listens,
        "/proc/net/tcp",
        [
            *(b"", LISTENS, b"cpu.max\n" + LISTENS, TCP + b"\n" + LISTENS),
            TCP + LISTENS[:30],  # before the state
            *(TCP + LISTENS.replace(b" 0A ", b" 0G "), TCP + LISTENS.replace(b"0100007F", b"0100007F0")),
            TCP + LISTENS.replace(b"   0:", b"\x00  0:"),
        ],
    ),
    (parse_cpu_usage, "cpu.stat", [b"", b"user_usec 1\n", b"usage_usec \n", b"usage_usec -1\n", b"usage_usec max\n"]),
    (parse_cpu_stat, "cpu.stat", [b"", b"usage_usec x\n", CPU_STAT + b"nr_throttled -1\nthrottled_usec 1\n"]),
]


@pytest.mark.parametrize(
    ("parse", "named", "data"),
    [(parse, named, data) for parse, named, texts in MALFORMED for data in texts],
    ids=lambda value: ascii(value)[:60] if isinstance(value, bytes) else None,
)
def test_what_the_kernel_never_writes_is_malformed(parse: Callable[[bytes], object], named: str, data: bytes) -> None:
    with pytest.raises(MalformedError, match=re.escape(named)):
        parse(data)
