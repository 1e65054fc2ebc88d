"""On any bytes, a parser of foreign text either succeeds or reports them as malformed; see TARGETS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpause.config.load import parse_config
from cgpause.config.render import render_config
from cgpause.core import cgroup_names, parse, pod_names
from cgpause.core.errors import ConfigError, DamagedRecordError, MalformedError, PodLookupError, printable
from cgpause.core.lookup import find_pod
from cgpause.core.model import CgroupId, Pod, QosClass
from cgpause.kernel.logfmt import fields
from cgpause.ledger import high, record
from cgpause.pods.kubeletconfig import parse_thresholds

MOST_64_BIT = 2**64
SPLICES = st.binary(max_size=8) | st.sampled_from(
    [b"\0", b"\n", b"\r", b"-1", b"1e999", b"nan", b"9" * 20, b"9" * 30, b"\xff", b"{", b'"']
)


@dataclass(frozen=True, slots=True)
class Target:
    """A parser's complete contract on arbitrary bytes."""

    run: Callable[[bytes], bool]
    """A function that returns True if the parser accepts the bytes; any exception is a bug."""
    seeds: tuple[bytes, ...]
    """Accepted inputs to start from."""


def _text(data: bytes) -> str:
    """Return the text as Python decodes file names and command lines: invalid UTF-8 becomes surrogates."""
    return data.decode("utf-8", "surrogateescape")


def _parsed(parse_it: Callable[[bytes], object], data: bytes) -> bool:
    try:
        parse_it(data)
    except MalformedError:
        return False
    return True


def _number(data: bytes) -> None:
    limit = parse.parse_limit(data, "memory.max")
    assert limit is None or 0 <= limit < MOST_64_BIT


def _cpu_max(data: bytes) -> None:
    value = parse.parse_cpu_max(data)
    assert parse.parse_cpu_max(f"{value}\n".encode()) == value


def _eviction(data: bytes) -> None:
    for found in parse_thresholds(data.decode("utf-8", "replace")):
        assert found.size_bytes >= 0
        assert 0 <= found.node_ratio < 1


def _pause_record(data: bytes) -> bool:
    try:
        value = record.decode_record(data)
    except DamagedRecordError:
        return False
    assert record.decode_record(record.encode_record(value)) == value
    return True


def _high_record(data: bytes) -> bool:
    try:
        value = high.decode_record(data)
    except DamagedRecordError:
        return False
    assert high.decode_record(high.encode_record(value)) == value
    return True


def _configuration(data: bytes) -> bool:
    text = data.decode("utf-8", "replace")
    try:
        config = parse_config(text, "fuzz")
    except ConfigError as e:
        lines = [problem.line for problem in e.problems if problem.line is not None]
    else:
        assert parse_config(render_config(config), "fuzz") == config
        return True
    assert all(1 <= line <= text.count("\n") + 1 for line in lines)
    return False


def _entry(data: bytes) -> bool:
    """Parse the name of a cgroup or of an entry in kubelet's log folders; return True if any parser accepts it."""
    entry = _text(data)
    uid, container = cgroup_names.pod_uid(entry), cgroup_names.container_id(entry)
    assert uid is None or set(uid) <= set("0123456789abcdef-")
    assert container is None or container.isalnum()
    pod_log, container_log = pod_names.parse_pod_log_dir(entry), pod_names.parse_container_log(entry)
    assert pod_log is None or "/" not in "".join((pod_log[0], *pod_log[1]))
    assert container_log is None or "/" not in "".join(container_log)
    found = (cgroup_names.root_driver(entry), cgroup_names.tier_class(entry), uid, container, pod_log, container_log)
    return any(one is not None for one in found)


def _reference(data: bytes) -> bool:
    """Return True if the text, as an operator types it after `cgpause pause`, finds the pod."""
    try:
        return find_pod(_text(data), [_POD], "/sys/fs/cgroup") is _POD
    except PodLookupError:
        return False


def _log_line(data: bytes) -> bool:
    text = _text(data)
    assert printable(text).isprintable()
    line = fields(pod=text, reason=text)
    assert "\n" not in line
    assert line.isprintable()
    return True


_UID = "b34aec46-c433-bacf-9596-b73dc9987f3a"
_POD = Pod(CgroupId("kubepods/pod1", 1), _UID, QosClass.BURSTABLE, "default", "web", None, None)
_RECORD = (
    b'{"schema":1,"mechanism":"throttle","owner":"daemon","reason":"x","since_ns":5,"expires_ns":null,'
    b'"original_cpu_max":"max 100000","original_cpu_max_burst":0,"written_cpu_max":"1000 100000"}'
)
_HIGH = (
    b'{"schema":1,"original_memory_high":"max","written_memory_high":"4096","replaced_memory_high":null,"since_ns":5}'
)
_PRESSURE = b"some avg10=0.00 avg60=0.12 avg300=0.00 total=57\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=12\n"
_TCP = (
    b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    b"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1\n"
)
_STATUS = b"Name:\tsleep\nPPid:\t1\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\nSigCgt:\t0000000000000000\n"
_MEMINFO = b"MemTotal:       16308988 kB\nMemFree:         1308988 kB\nMemAvailable:   12308988 kB\n"
_CONFIG = (
    b'policy = "reserve"\n[pause]\nmax_pause_s = 9.0\n[[pods]]\nmatch = "shop/*"\nclass = "service"\npriority = 3\n'
)
_KUBELET = b'evictionHard:\n  memory.available: "100Mi"\n  nodefs.available: 10%\n'
_ENTRIES = (
    b"kubepods-burstable-podb34aec46_c433_bacf_9596_b73dc9987f3a.slice",
    b"default_web_b34aec46-c433-bacf-9596-b73dc9987f3a",
    b"cri-containerd-" + b"a" * 64 + b".scope",
    b"web_default_nginx-" + b"a" * 64 + b".log",
)

TARGETS = {
    "numbers": Target(partial(_parsed, _number), (b"max\n", b"4096\n", b"18446744073709551615\n")),
    "cpu.max": Target(partial(_parsed, _cpu_max), (b"max 100000\n", b"1000 100000\n")),
    "memory.stat": Target(
        partial(_parsed, parse.parse_reclaimable), (b"anon 5\ninactive_file 3\nactive_file 7\nslab_reclaimable 2\n",)
    ),
    "memory.stat, tmpfs": Target(partial(_parsed, parse.parse_shmem), (b"anon 5\nshmem 3\nshmem_thp 0\n",)),
    "cpu.stat": Target(partial(_parsed, parse.parse_cpu_usage), (b"usage_usec 12\nuser_usec 1\n",)),
    "cpu.stat, throttled": Target(
        partial(_parsed, parse.parse_cpu_stat), (b"usage_usec 12\nnr_periods 7\nnr_throttled 3\nthrottled_usec 41\n",)
    ),
    "flat keyed": Target(
        lambda data: _parsed(lambda data: parse.parse_flat_keyed(data, "memory.events"), data),
        (b"low 0\noom_kill 3\n",),
    ),
    "meminfo": Target(partial(_parsed, parse.parse_meminfo), (_MEMINFO,)),
    "pressure": Target(partial(_parsed, parse.parse_pressure), (_PRESSURE,)),
    "mountinfo": Target(
        partial(_parsed, parse.parse_cgroup2_mounts),
        (b"30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n",),
    ),
    "process status": Target(partial(_parsed, parse.parse_process_status), (_STATUS,)),
    "process stat": Target(
        partial(_parsed, parse.parse_start_ticks), (b"1 (a) b) S 0 1 1 0 -1 4 1 1 1 1 1 1 1 1 20 0 1 0 12 1 1\n",)
    ),
    "locks": Target(
        lambda data: parse.parse_flock_holder(data, (0, 0x1B), 402117) is not None,
        (b"4: FLOCK  ADVISORY  READ 77 00:1b:402117 0 EOF\n",),
    ),
    "time span": Target(
        lambda data: _parsed(lambda data: parse.parse_timespan(_text(data)), data), (b"1min 30s", b"infinity")
    ),
    "sockstat": Target(partial(_parsed, parse.parse_tcp_in_use), (b"sockets: used 9\nTCP: inuse 5 orphan 0\n",)),
    "sockets": Target(partial(_parsed, parse.parse_sockets_used), (b"sockets: used 9\nTCP: inuse 5 orphan 0\n",)),
    "tcp": Target(partial(_parsed, parse.parse_first_listens), (_TCP,)),
    "pause record": Target(_pause_record, (_RECORD,)),
    "memory.high record": Target(_high_record, (_HIGH,)),
    "configuration": Target(_configuration, (_CONFIG,)),
    "kubelet's configuration": Target(
        partial(_parsed, _eviction), (_KUBELET, b'{"evictionHard":{"memory.available":"5%"}}')
    ),
    "names of cgroups and logs": Target(_entry, _ENTRIES),
    "reference": Target(_reference, (b"default/web", b"b34a", b"/sys/fs/cgroup/kubepods/pod1")),
    "log line": Target(_log_line, (b"a b", b'"\n\x1b[31m')),
}


@st.composite
def spoiled(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """Return nearly valid bytes: a seed with parts cut out, doubled, or replaced."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 20)))
        data = data[:start] + draw(SPLICES | st.just(data[start:end] * 2)) + data[end:]
    return data


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_what_the_parser_takes(name: str) -> None:
    for seed in TARGETS[name].seeds:
        assert TARGETS[name].run(seed), seed


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_any_bytes(target: Target, data: st.DataObject) -> None:
    target.run(data.draw(st.binary(max_size=300) | spoiled(target.seeds)))
