"""A trace's lines: they read back as written."""

from __future__ import annotations

from dataclasses import replace

from helpers.traces import MIB, S, decoded, make_moment, make_pod, written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cgpause.core.model import CgroupId, Headroom, Mechanism, Owner, Pod, PodKind, PodUsage, QosClass, Sample
from cgpause.core.pod_names import workload_of
from cgpause.telemetry.trace.encode import Encoder, hasher
from cgpause.telemetry.trace.values import MAX_TEXT, QUANTUM_BYTES, TracedSample, pause_seen

FUZZED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def pod_id(pod: Pod) -> CgroupId:
    """Return the id of a pod in a trace, from QoS class, UID and inode: the cgroup's path has the UID, maybe hidden."""
    return CgroupId(f"{pod.qos.lower()}/{pod.uid}", pod.cgroup.inode)


def as_read(moment: TracedSample) -> TracedSample:
    """Return a moment as a trace stores it: pods by QoS class and UID, CPU time in the facts, times in µs."""
    sample = moment.sample
    pods = tuple(PodUsage(amount, pod_as_read(pod)) for amount, pod in sample.pods)
    named = {pod.cgroup: pod_id(pod) for _, pod in sample.pods}
    return replace(
        moment,
        sample=replace(sample, pods=pods),
        oom_kills={named[key]: count for key, count in moment.oom_kills.items()},
        own_ooms={named[key]: count for key, count in moment.own_ooms.items()},
        time_s=0.0,
        begins=False,
    )


def pod_as_read(pod: Pod) -> Pod:
    workload = None if pod.namespace is None or pod.name is None else workload_of(pod.namespace, pod.name)
    return replace(pod, cgroup=pod_id(pod), cpu_usage_usec=None, workload=workload)


times = st.integers(0, 10**12).map(lambda us: us * 1000)
amounts = st.integers(0, 1 << 50)
texts = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)


@st.composite
def pods(draw: st.DrawFn, number: int) -> Pod:
    paused = draw(st.none() | st.builds(pause_seen, st.sampled_from(Mechanism), st.sampled_from(Owner), times))
    name = draw(st.none() | texts)
    return Pod(
        cgroup=CgroupId(f"kubepods/{number}", number + 7),
        uid=f"uid-{number}",
        qos=list(QosClass)[number % 3],
        namespace=None if name is None else draw(texts),
        name=name,
        memory_max_bytes=draw(st.none() | amounts),
        protected=draw(st.none() | texts),
        changed_at_ns=draw(times),
        settled_at_ns=draw(times),
        spared_until_ns=draw(times),
        no_program=draw(st.booleans()),
        paused=paused,
        kind=draw(st.sampled_from(PodKind)),
        priority=draw(st.integers(-1000, 1000)),
        reclaimable_bytes=draw(amounts),
    )


@st.composite
def histories(draw: st.DrawFn) -> list[TracedSample]:
    """Return some samples of up to four pods, which appear, vanish, return and change."""
    at_ns, found = draw(times), []
    for _ in range(draw(st.integers(1, 6))):
        at_ns += draw(st.integers(0, 10**8)) * 1000
        numbers = draw(st.lists(st.integers(0, 3), unique=True))
        there = [draw(pods(number)) for number in numbers]
        headroom = Headroom(
            draw(st.integers(1, 1 << 50)), draw(amounts), draw(st.none() | amounts), draw(amounts), draw(amounts)
        )
        counted = {pod.cgroup: draw(st.integers(1, 99)) for pod in there if draw(st.booleans())}
        found.append(
            TracedSample(
                Sample(
                    at_ns,
                    headroom,
                    tuple(PodUsage(draw(amounts), pod) for pod in there),
                    read_at_ns=draw(st.integers(0, at_ns // 1000)) * 1000,
                    late_ns=draw(st.integers(0, 10**6)) * 1000,
                    cpus=draw(st.sampled_from([64, 65])),
                    idle_cpus=draw(st.integers(0, 640)) / 10,
                    limit_kills=draw(st.integers(0, 9)),
                ),
                oom_kills=counted,
                own_ooms=counted,
            )
        )
    return found


@FUZZED
@given(histories())
def test_what_is_written_is_read_back(moments: list[TracedSample]) -> None:
    found = decoded(written(moments))

    expected = [as_read(moment) for moment in moments]
    known: dict[CgroupId, int] = {}
    for index, moment in enumerate(expected):
        # A count stays until it changes; a pod that vanishes takes its count with it.
        there = [pod.cgroup for _, pod in moment.sample.pods]
        known = {key: count for key, count in known.items() if key in there} | dict(moment.oom_kills)
        expected[index] = replace(moment, oom_kills=dict(known), own_ooms=dict(known))
    # Earlier pods come first in a sample that was read, so the order of the pods may differ.
    assert [as_set(moment) for moment in expected] == [as_set(moment) for moment in found]
    assert found[0].begins


def as_set(moment: TracedSample) -> tuple[TracedSample, frozenset[PodUsage]]:
    sample = moment.sample
    return replace(moment, sample=replace(sample, pods=()), time_s=0.0, begins=False), frozenset(sample.pods)


@given(st.lists(amounts, min_size=1, max_size=20))
def test_amounts_are_off_by_less_than_a_quantum_and_do_not_flutter(found: list[int]) -> None:
    pod = make_pod(0)
    moments = decoded(written([make_moment(i * S, {pod: amount}) for i, amount in enumerate(found)], QUANTUM_BYTES))

    for amount, moment in zip(found, moments, strict=True):
        assert abs(moment.sample.pods[0].memory_current_bytes - amount) < QUANTUM_BYTES


def test_what_does_not_change_is_not_written() -> None:
    pods = {make_pod(i): 100 * MIB for i in range(100)}
    first, second, third = (written([make_moment(i * S, pods) for i in range(n)]) for n in (1, 2, 3))

    assert len("".join(third)) - len("".join(second)) == len("".join(second)) - len("".join(first)) < 20


def test_the_newest_header_needs_nothing_before_it() -> None:
    encoder = Encoder(1.0)
    pods = {make_pod(i): i * MIB for i in range(3)}
    encoder.begin(S, 1e9)
    encoder.add(make_moment(S, pods))
    again = [encoder.begin(2 * S, 1e9 + 1), *encoder.add(make_moment(2 * S, pods))]

    (moment,) = decoded(again)
    assert [usage.memory_current_bytes for usage in moment.sample.pods] == [0, MIB, 2 * MIB]
    assert moment.time_s == 1e9 + 1


def test_a_long_reason_is_cut_so_that_the_trace_can_be_read() -> None:
    (moment,) = decoded(written([make_moment(0, {make_pod(1, protected="x" * 9999): 1})]))

    assert moment.sample.pods[0].pod.protected == "x" * MAX_TEXT


def test_hidden_names_are_not_in_it_and_stay_apart() -> None:
    encoder = Encoder(1.0, hasher(b"salt"))
    secret = make_pod(
        1,
        uid="secret-uid",
        namespace="secret-team",
        name="secret-app",
        protected="rule 2 ([[pods]] match = 'secret/*')",
    )
    system = make_pod(2, namespace="kube-system", protected="namespace kube-system (protect.namespaces)")
    unread = make_pod(3, protected="its cgroup cannot be read: cannot read /sys/fs/cgroup/secret: EACCES")
    lines = [encoder.begin(0, 1e9), *encoder.add(make_moment(0, {secret: 1, system: 2, unread: 3}))]

    assert "secret" not in "".join(lines)
    one, two, three = (pod for _, pod in decoded(lines)[0].sample.pods)
    assert one.protected == "rule 2"
    assert (two.namespace, two.protected) == ("kube-system", "its namespace is protected")
    assert three.protected == "its cgroup cannot be read"
    assert len({one.uid, two.uid, three.uid, one.name, one.namespace, one.cgroup.path}) == 6


def test_hidden_pods_of_one_workload_are_known_as_such() -> None:
    """Otherwise a replay would share no peaks between them, and decide otherwise."""
    encoder = Encoder(1.0, hasher(b"salt"))
    names = ("job-x7k2p", "job-2bq4z", "db-0", "db-1", "alone")
    pods = [
        make_pod(i, namespace="team", name=name, workload=workload_of("team", name)) for i, name in enumerate(names)
    ]
    lines = [encoder.begin(0, 1e9), *encoder.add(make_moment(0, dict.fromkeys(pods, 1)))]

    found = [pod for _, pod in decoded(lines)[0].sample.pods]
    assert len({pod.name for pod in found}) == 5
    first, second, third, fourth, fifth = (pod.workload for pod in found)
    assert first == second != third == fourth != fifth
