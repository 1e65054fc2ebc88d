"""Kernel text: files of a real node (expected values entered by hand), and malformed text."""

from __future__ import annotations

import pytest
from helpers.trees import CAPTURES, load_capture
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core.errors import MalformedError
from cgpause.core.model import CpuMax, Pressure
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
    parse_start_ticks,
    parse_tcp_in_use,
)

BURST_POD = {
    "systemd": "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podc467c713f7198867c11de53e93050336.slice",
    "cgroupfs": "kubepods/burstable/podc467c713f7198867c11de53e93050336",
}


@pytest.mark.parametrize("driver", CAPTURES)
def test_files_of_a_captured_pod_are_read_and_the_mounts_of_its_node(driver: str) -> None:
    """tests/cli/test_view.py has the values of the other captured files."""
    capture = load_capture(driver)
    files = {name: text.encode() for name, text in capture["cgroups"][BURST_POD[driver]].items() if "." in name}
    assert parse_number(files["cpu.max.burst"], "cpu.max.burst") == 0
    assert parse_number(files["cgroup.freeze"], "cgroup.freeze") == 0
    events = parse_flat_keyed(files["memory.events"], "memory.events")
    assert events == {"low": 0, "high": 0, "max": 0, "oom": 0, "oom_kill": 0, "oom_group_kill": 0}
    assert parse_flat_keyed(files["cgroup.events"], "cgroup.events") == {"populated": 1, "frozen": 0}
    assert parse_cgroup2_mounts("".join(capture["mountinfo"]).encode()) == ("/sys/fs/cgroup",)


NOT_NUMBERS = [
    pytest.param(b"", id="empty"),
    pytest.param(b"\n", id="newline-only"),
    pytest.param(b"-1\n", id="negative"),
    pytest.param(b"+1\n", id="plus"),
    pytest.param(b"1_0\n", id="underscore"),
    pytest.param(b" 1\n", id="leading-space"),
    pytest.param(b"1 \n", id="trailing-space"),
    pytest.param(b"1\n\n", id="two-newlines"),
    pytest.param(b"1\n2\n", id="two-lines"),
    pytest.param(b"1\x00", id="nul"),
    pytest.param(b"1.0\n", id="fraction"),
    pytest.param(b"0x10\n", id="hex"),
    pytest.param(b"\xff\xfe\n", id="not-utf8"),
    pytest.param("\u0661\n".encode(), id="arabic-digit"),
    pytest.param(b"18446744073709551616\n", id="more-than-64-bit"),
    pytest.param(b"9" * 21, id="more-than-20-digits"),
    pytest.param(b"9" * 5000, id="huge"),
]


@pytest.mark.parametrize("data", [*NOT_NUMBERS, pytest.param(b"max\n", id="max")])
def test_number_refuses_anything_but_digits(data: bytes) -> None:
    with pytest.raises(MalformedError, match=r"memory\.current"):
        parse_number(data, "memory.current")


@pytest.mark.parametrize("data", [*NOT_NUMBERS, pytest.param(b"max 1\n", id="max-and-more")])
def test_limit_refuses_anything_but_digits_and_max(data: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_limit(data, "memory.max")


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


@pytest.mark.parametrize(
    "data",
    [
        *NOT_NUMBERS,
        pytest.param(b"max", id="no-period"),
        pytest.param(b"1000", id="quota-only"),
        pytest.param(b"100000 max\n", id="max-as-period"),
        pytest.param(b"max max\n", id="max-twice"),
        pytest.param(b"MAX 100000\n", id="upper-case"),
        pytest.param(b"-1 100000\n", id="negative-quota"),
        pytest.param(b"1000 -1\n", id="negative-period"),
        pytest.param(b"1000 100000 5\n", id="three-fields"),
        pytest.param(b"1000  100000\n", id="two-spaces"),
        pytest.param(b"1000\n100000\n", id="newline-between"),
        pytest.param(b"max 100000\n\n", id="two-newlines-at-end"),
        pytest.param(b"max 100000\x00", id="nul-at-end"),
        pytest.param(b"9" * 21 + b" 100000", id="huge-quota"),
    ],
)
def test_cpu_max_refuses_what_the_kernel_never_writes(data: bytes) -> None:
    with pytest.raises(MalformedError, match=r"cpu\.max"):
        parse_cpu_max(data)


@given(quota=st.none() | st.integers(0, 2**64 - 1), period=st.integers(0, 2**64 - 1))
def test_cpu_max_survives_the_round_trip(quota: int | None, period: int) -> None:
    assert parse_cpu_max(f"{CpuMax(quota, period)}\n".encode()) == CpuMax(quota, period)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"oom_kill\n", id="no-value"),
        pytest.param(b"oom_kill 1 2\n", id="two-values"),
        pytest.param(b"oom_kill -1\n", id="negative"),
        pytest.param(b"oom_kill max\n", id="max"),
        pytest.param(b"oom_kill 1\n\noom 0\n", id="empty-line"),
        pytest.param(b"oom_kill 1\x00\n", id="nul"),
        pytest.param(b"oom_kill 999999999999999999999\n", id="huge"),
    ],
)
def test_flat_keyed_file_with_a_bad_line_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError, match=r"memory\.events"):
        parse_flat_keyed(data, "memory.events")


def test_flat_keyed_file_may_be_empty_and_hold_keys_we_do_not_know() -> None:
    assert parse_flat_keyed(b"", "memory.events") == {}
    assert parse_flat_keyed(b"n\xc3\xa4w 7\noom_kill 1\n", "memory.events")["oom_kill"] == 1


def test_reclaimable_counts_neither_tmpfs_nor_unreclaimable_slab() -> None:
    stat = b"file 1000\nshmem 900\ninactive_file 1\nactive_file 20\nslab_reclaimable 300\nslab_unreclaimable 4000\n"
    assert parse_reclaimable(stat) == 321
    assert parse_shmem(stat) == 900


def test_reclaimable_finds_its_keys_in_any_order() -> None:
    assert parse_reclaimable(b"slab_reclaimable 1\nactive_file 2\ninactive_file 3") == 6


@pytest.mark.parametrize(
    "stat",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"inactive_file 1\nactive_file 2\n", id="truncated-before-a-key"),
        pytest.param(b"inactive_file 1\nactive_file 2\nslab_reclaimable ", id="truncated-before-a-value"),
        pytest.param(b"inactive_file 1\nslab_reclaimable 2\n", id="inactive-is-not-active"),
        pytest.param(b"inactive_file -1\nactive_file 2\nslab_reclaimable 3\n", id="negative"),
        pytest.param(b"inactive_file max\nactive_file 2\nslab_reclaimable 3\n", id="max"),
        pytest.param(b"inactive_file 1\nactive_file 2\nslab_reclaimable " + b"9" * 21 + b"\n", id="huge"),
        pytest.param(b"inactive_file 1\x00\nactive_file 2\nslab_reclaimable 3\n", id="nul"),
        pytest.param(b"inactive_file 1x\nactive_file 2\nslab_reclaimable 3\n", id="letters-behind-the-number"),
    ],
)
def test_memory_stat_without_the_file_lru_and_slab_is_malformed(stat: bytes) -> None:
    with pytest.raises(MalformedError, match=r"memory\.stat"):
        parse_reclaimable(stat)


@pytest.mark.parametrize("stat", [b"", b"shmem_thp 5\n", b"shmem \n", b"shmem -1\n", b"anon 1\nshmem"])
def test_memory_stat_without_shmem_is_malformed(stat: bytes) -> None:
    with pytest.raises(MalformedError, match=r"memory\.stat"):
        parse_shmem(stat)


def test_free_swap_is_no_memory() -> None:
    memory = b"MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    400 kB\n"
    swap = b"SwapTotal:      5000 kB\nSwapFree:       5000 kB\n"
    assert parse_meminfo(memory + swap) == parse_meminfo(memory)


def test_pages_of_hugetlb_are_no_memory_for_pods() -> None:
    """They are not part of MemAvailable, and no ordinary allocation gets them."""
    memory = b"MemTotal:       1000 kB\nMemAvailable:    400 kB\nHugePages_Total:     3\nHugetlb:  300 kB\n"
    assert parse_meminfo(memory) == (700 * 1024, 400 * 1024, 1000 * 1024)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"MemTotal: 100 kB\nMemAvailable: 50 kB\nHugetlb: 100 kB\n", id="all-of-hugetlb"),
        pytest.param(b"MemTotal: 100 kB\nMemAvailable: 50 kB\nHugetlb: x kB\n", id="odd-hugetlb"),
        pytest.param(b"MemTotal:  100 kB\nMemFree: 5 kB\n", id="no-MemAvailable"),
        pytest.param(b"MemAvailable: 100 kB\n", id="no-MemTotal"),
        pytest.param(b"MemTotal: 100 kB\nMemAvailable:", id="truncated"),
        pytest.param(b"MemTotal: 100 kB\nMemAvailable: 50", id="no-unit"),
        pytest.param(b"MemTotal: 100 MB\nMemAvailable: 50 MB\n", id="another-unit"),
        pytest.param(b"MemTotal: 0 kB\nMemAvailable: 0 kB\n", id="no-memory-at-all"),
        pytest.param(b"MemTotal: -1 kB\nMemAvailable: 50 kB\n", id="negative"),
        pytest.param(b"MemTotal: max kB\nMemAvailable: 50 kB\n", id="max"),
        pytest.param(b"MemTotal: " + b"9" * 21 + b" kB\nMemAvailable: 50 kB\n", id="huge"),
        pytest.param(b"MemTotal: 1\x00 kB\nMemAvailable: 50 kB\n", id="nul"),
    ],
)
def test_meminfo_that_lacks_what_we_need_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError, match="meminfo"):
        parse_meminfo(data)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"full avg10=0.00 avg60=0.00 avg300=0.00 total=1\n", id="no-some"),
        pytest.param(b"some avg10=0.00 avg60=0.00 avg300=0.00\n", id="no-total"),
        pytest.param(b"some avg10=0.00 avg60=0.00 avg30", id="truncated"),
        pytest.param(b"some avg10=-1.00 avg60=0.00 avg300=0.00 total=1\n", id="negative"),
        pytest.param(b"some avg10=max avg60=0.00 avg300=0.00 total=1\n", id="max"),
        pytest.param(b"some avg10=nan avg60=0.00 avg300=0.00 total=1\n", id="nan"),
        pytest.param(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=999999999999999999999\n", id="huge"),
        pytest.param(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=1\x00\n", id="nul"),
    ],
)
def test_pressure_that_the_kernel_never_writes_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError, match="pressure"):
        parse_pressure(data)


def test_pressure_without_a_full_line_counts_it_as_zero() -> None:
    data = b"some avg10=1.50 avg60=0.00 avg300=0.00 total=12345\n"
    assert parse_pressure(data) == Pressure(1.5, 12345, 0.0, 0)


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


@pytest.mark.parametrize("data", [b"", b"Name:\tsh\n", b"PPid:\tx\n", b"PPid:\t\n"])
def test_a_process_without_a_parent_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_process_status(data)


@pytest.mark.parametrize("name", ["sh", "a b", ") S 1", "(((", "", "x) 1 2 3"])
def test_a_process_may_be_called_anything(name: str) -> None:
    stat = f"42 ({name}) S 1 42 42 0 -1 4194560 95 0 0 0 0 0 0 0 20 0 1 0 777 2523136 200 18446744073709551615 1"
    assert parse_start_ticks(stat.encode()) == 777


@pytest.mark.parametrize("data", [b"", b"42 (sh) S 1 2", b"42 (sh)" + b" x" * 30])
def test_a_process_without_a_start_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_start_ticks(data)


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


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"UDP: inuse 1\n",
        b"TCP: inuse -1 orphan 0\n",
        b"TCP: inuse x\n",
        b"xTCP: inuse 1\n",
        b"TCP: inuse " + b"1" * 21,
    ],
    ids=["empty", "no-tcp", "negative", "word", "another-key", "huge"],
)
def test_a_sockstat_without_a_count_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError, match="sockstat"):
        parse_tcp_in_use(data)


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


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(LISTENS, id="no-header"),
        pytest.param(b"cpu.max\n" + LISTENS, id="another-header"),
        pytest.param(TCP + LISTENS[:30], id="cut-off-before-the-state"),
        pytest.param(TCP + LISTENS.replace(b" 0A ", b" 0G "), id="not-hex"),
        pytest.param(TCP + LISTENS.replace(b"0100007F", b"0100007F0"), id="no-address"),
        pytest.param(TCP + LISTENS.replace(b"   0:", b"\x00  0:"), id="nul"),
        pytest.param(TCP + b"\n" + LISTENS, id="empty-line"),
    ],
)
def test_a_table_of_sockets_that_the_kernel_never_writes_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError, match="/proc/net/tcp"):
        parse_first_listens(data)


@pytest.mark.parametrize("data", [b"", b"user_usec 1\n", b"usage_usec \n", b"usage_usec -1\n", b"usage_usec max\n"])
def test_a_cpu_stat_without_its_usage_is_malformed(data: bytes) -> None:
    assert parse_cpu_usage(b"usage_usec 123456\nuser_usec 100000\nsystem_usec 23456\n") == 123456
    with pytest.raises(MalformedError, match=r"cpu\.stat"):
        parse_cpu_usage(data)


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
    assert parse_cpu_stat(data) == stat


@pytest.mark.parametrize("data", [b"", b"usage_usec x\n", CPU_STAT + b"nr_throttled -1\nthrottled_usec 1\n"])
def test_cpu_stat_that_the_kernel_never_writes_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_cpu_stat(data)


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
