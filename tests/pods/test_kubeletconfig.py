"""kubelet's hard eviction threshold: valid forms in a node's configuration, and malformed ones that count as none."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from helpers.fixtures import Log
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core.errors import MalformedError
from cgpause.pods.kubelet import KubeletFlags
from cgpause.pods.kubeletconfig import Threshold, eviction_bytes, parse_thresholds, read_thresholds

MIB, GIB = 1 << 20, 1 << 30
DEFAULT = Threshold(size_bytes=100 * MIB)
NONE = Threshold()
FIVE_PCT, ONE_GIB = "evictionHard: {memory.available: 5%}\n", "evictionHard:\n  memory.available: 1Gi\n"
OTHER, MERGE = "evictionHard: {pid.available: 5%}\n", '{"mergeDefaultEvictionSettings": true}'
FLAGS = {"hard_flag": "nodefs.available<10%, memory.available<2%", "soft_flag": "memory.available<3%"}

# Written by `kubeadm init` 1.32 in its own order of keys, plus an evictionHard.
KUBEADM = """\
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
{eviction}evictionPressureTransitionPeriod: 0s
kind: KubeletConfiguration
logging:
  options:
    json:
      infoBufferSize: "0"
memorySwap: {{}}
staticPodPath: /etc/kubernetes/manifests
"""


def kubeadm(eviction: str) -> str:
    return KUBEADM.format(eviction=eviction)


@pytest.mark.parametrize(
    ("eviction", "expected"),
    [
        pytest.param("", DEFAULT, id="absent"),
        pytest.param("evictionHard:\n", DEFAULT, id="null"),
        pytest.param("evictionHard: null\n", DEFAULT, id="null-in-words"),
        pytest.param("evictionHard: ~ # nothing\n", DEFAULT, id="null-and-a-comment"),
        pytest.param("evictionHard: {}\n", NONE, id="empty"),
        pytest.param("evictionHard: { }\n", NONE, id="empty-with-a-space"),
        pytest.param("evictionHard:\n  nodefs.available: 10%\n", NONE, id="only-other-signals"),
        pytest.param("mergeDefaultEvictionSettings: true\nevictionHard: {pid.available: 9%}\n", DEFAULT, id="merged"),
        pytest.param("evictionHard: {}\nmergeDefaultEvictionSettings: false\n", NONE, id="not-merged"),
        pytest.param(
            'evictionHard:\n    imagefs.available: "15%"\n\n# more\n    "memory.available" :  "1Gi"  # one\n'
            "    nodefs.inodesFree: '5%'\n",
            Threshold(GIB),
            id="block-among-others-quotes-and-comments",
        ),
        pytest.param("evictionHard:\r\n  memory.available: 1Gi\r\n", Threshold(GIB), id="windows-line-ends"),
        pytest.param('evictionHard: {"pid.available":"9%","memory.available":"100Mi"} # so\n', DEFAULT, id="as-json"),
        pytest.param(
            "evictionHard: {\n a: 1%, # disks\n memory.available: 1Gi,\n }\n", Threshold(GIB), id="flow-over-lines"
        ),
        pytest.param("evictionHard: {\n memory.available: 1Gi\n}\n", Threshold(GIB), id="flow-closed-at-the-margin"),
        pytest.param("evictionMinimumReclaim:\n  memory.available: 8Gi\n", DEFAULT, id="not-the-minimum"),
        pytest.param("# evictionHard: {memory.available: 200Mi}\n", DEFAULT, id="commented-out"),
    ],
)
def test_a_kubelet_configuration_in_yaml(eviction: str, expected: Threshold) -> None:
    assert parse_thresholds(kubeadm(eviction)) == (expected, NONE)
    assert parse_thresholds(f"---\n{kubeadm(eviction)}") == (expected, NONE)


@pytest.mark.parametrize(
    ("eviction", "expected"),
    [
        pytest.param({}, DEFAULT, id="absent"),
        pytest.param({"evictionHard": None}, DEFAULT, id="null"),
        pytest.param({"evictionHard": {}}, NONE, id="empty"),
        pytest.param({"evictionHard": {"nodefs.available": "10%"}}, NONE, id="only-other-signals"),
        pytest.param({"evictionHard": {}, "mergeDefaultEvictionSettings": True}, DEFAULT, id="merged"),
        pytest.param({"evictionHard": {"memory.available": "5%"}}, Threshold(node_ratio=0.05), id="percent"),
        pytest.param({"evictionHard": {"memory.available": 104857600}}, DEFAULT, id="number"),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_kubelet_configuration_in_json(eviction: dict[str, object], expected: Threshold, indent: int | None) -> None:
    document = {"kind": "KubeletConfiguration", "clusterDNS": ["10.96.0.10"], **eviction}
    assert parse_thresholds(json.dumps(document, indent=indent)) == (expected, NONE)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("104857600", DEFAULT),
        ("100Mi", DEFAULT),
        ("102400Ki", DEFAULT),
        ("1Gi", Threshold(GIB)),
        ("1.5Gi", Threshold(GIB * 3 // 2)),
        ("2Ti", Threshold(2 << 40)),
        ("500M", Threshold(500_000_000)),
        ("1G", Threshold(10**9)),
        ("1k", Threshold(1000)),
        ("1E", Threshold(10**18)),
        ("1Ei", Threshold(1 << 60)),
        ("1e8", Threshold(10**8)),
        ("1.5E+2", Threshold(150)),
        ("1500m", Threshold(2)),
        ("0.1", Threshold(1)),
        ("+1", Threshold(1)),
        ("0", NONE),
        ("0Mi", NONE),
        ("0%", NONE),
        ("100%", NONE),
        ("5%", Threshold(node_ratio=0.05)),
        ("2.5%", Threshold(node_ratio=0.025)),
        ("99.9%", Threshold(node_ratio=0.999)),
    ],
)
def test_a_threshold_is_a_quantity_or_a_percentage(value: str, expected: Threshold) -> None:
    """The text follows the grammar of resource.Quantity; kubelet ignores 0% and 100%."""
    for text in (f"evictionHard:\n  memory.available: {value}\n", f'evictionHard: {{memory.available: "{value}"}}'):
        found, _ = parse_thresholds(text)
        assert found.size_bytes == expected.size_bytes
        assert found.node_ratio == pytest.approx(expected.node_ratio)


@pytest.mark.parametrize(
    "value",
    [
        *("", '""', "~", "null", "-1", "-5%", "101%", "1000%", "5 %", "%", "Mi", "100mi", "100MB", "100 Mi", "1.2.3Mi"),
        *["NaN", "inf", "1e", "1e999", "0x10", "1_000", "\u0661", "100Mi,", "[1]", "*anchor", "|", ">-", "'1Gi"],
        *("9" * 30, "{a: b}", "&a 1Gi", "!!str 1Gi", "1Gi\n    more", "1Gi\n  memory.available: 2Gi"),
        "1Gi\n   nodefs.available: 5%",
    ],
)
def test_a_value_kubelet_would_refuse_or_only_yaml_knows_is_malformed(value: str) -> None:
    with pytest.raises(MalformedError):
        parse_thresholds(f"evictionHard:\n  memory.available: {value}\n")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n# nothing\n",
        "---\n",
        "\x00\xff",
        "garbage",
        "some words\nevictionHard: {}\n",
        "<html>evictionHard: {memory.available: 1Gi}</html>",
        "- evictionHard\n",
        "  evictionHard:\n    memory.available: 1Gi\n",
        "\tevictionHard: {}\n",
        "evictionHard:\n\tmemory.available: 1Gi\n",
        "evictionHard: {}\nevictionHard:\n  memory.available: 1Gi\n",
        "evictionHard: {}\n---\nevictionHard:\n  memory.available: 1Gi\n",
        "evictionHard: none\n",
        "evictionHard: null\n  memory.available: 1Gi\n",
        "evictionHard:\n- memory.available: 1Gi\n",
        "evictionHard:\n  - memory.available\n",
        "evictionHard: &hard\n  memory.available: 1Gi\n",
        "evictionHard: {memory.available: 1Gi\n",
        "evictionHard: {memory.available: 1Gi} and more\n",
        "evictionHard: {,}\n",
        "evictionHard: {memory.available}\n",
        "evictionHard: {memory.available: 1Gi, memory.available: 2Gi}\n",
        "{",
        "{}}",
        "[{}]",
        "{kind: KubeletConfiguration}",
        '{"evictionHard": []}',
        '{"evictionHard": "1Gi"}',
        '{"evictionHard": {"memory.available": true}}',
        '{"evictionHard": {"memory.available": 1.5}}',
        '{"evictionHard": {"memory.available": null}}',
        '{"evictionHard": {"memory.available": "\\udc80"}}',
        '{"evictionHard": {"memory.available": ' + "9" * 5000 + "}}",
        '{"a":' * 100_000,
    ],
    ids=lambda text: ascii(text)[1:40],
)
def test_what_is_no_kubelet_configuration_is_malformed(text: str) -> None:
    with pytest.raises(MalformedError) as e:
        parse_thresholds(text)
    assert len(str(e.value)) < 300


signals = st.sampled_from(["nodefs.available", "nodefs.inodesFree", "imagefs.available", "pid.available"])
others = st.dictionaries(signals, st.integers(0, 100).map("{}%".format))


@given(others, st.integers(1, 1 << 60), st.integers(0, 4), st.sampled_from(['"', "'", ""]))
def test_all_ways_to_write_a_map_say_the_same(other: dict[str, str], size_bytes: int, place: int, quote: str) -> None:
    entries = list(other.items())
    entries.insert(place, ("memory.available", str(size_bytes)))
    written = [f"{quote}{key}{quote}: {quote}{value}{quote}" for key, value in entries]
    block = "evictionHard:\n" + "".join(f"  {entry}\n" for entry in written)
    flow = f"evictionHard: {{{', '.join(written)}}}\n"
    document = json.dumps({"evictionHard": dict(entries)})
    for text in (block, flow, document, kubeadm(block), kubeadm(flow)):
        assert parse_thresholds(text) == (Threshold(size_bytes), NONE)


@pytest.mark.parametrize(
    ("text", "hard", "soft"),
    [
        pytest.param("evictionSoft:\n  memory.available: 900Mi\n", DEFAULT, Threshold(900 * MIB), id="alone"),
        pytest.param(f"evictionSoft: {{memory.available: 1}}\n{ONE_GIB}", Threshold(GIB), Threshold(1), id="both"),
        pytest.param("evictionSoft: {nodefs.available: 5%}\n", DEFAULT, NONE, id="of-a-disk"),
        pytest.param('{"evictionSoft": {"memory.available": "1Gi"}}', DEFAULT, Threshold(GIB), id="json"),
    ],
)
def test_the_soft_threshold_has_no_default(text: str, hard: Threshold, soft: Threshold) -> None:
    assert parse_thresholds(text) == (hard, soft)


def test_a_soft_threshold_that_is_not_understood_costs_only_itself(caplog: Log) -> None:
    text = "evictionSoft: &soft\n  memory.available: 2Gi\nevictionHard:\n  memory.available: 1Gi\n"
    assert parse_thresholds(text) == (Threshold(GIB),)
    assert [record.getMessage().partition(" error")[0] for record in caplog.records] == [
        "kubelet's soft eviction threshold is not known"
    ]


@pytest.mark.parametrize(
    ("texts", "flags", "expected"),
    [
        pytest.param([], {}, (DEFAULT, NONE), id="neither-files-nor-flags"),
        pytest.param([FIVE_PCT], FLAGS, (Threshold(node_ratio=0.02), Threshold(node_ratio=0.03)), id="flags-win"),
        pytest.param([kubeadm("")], {"hard_flag": ""}, (NONE, NONE), id="an-empty-flag"),
        pytest.param([kubeadm("")], {"hard_flag": "a<10%"}, (NONE, NONE), id="a-flag-with-only-other-signals"),
        pytest.param([FIVE_PCT, ONE_GIB], {}, (Threshold(GIB), NONE), id="a-drop-in-wins"),
        pytest.param([ONE_GIB, OTHER], {}, (Threshold(GIB), NONE), id="a-drop-in-with-another-signal"),
        pytest.param([OTHER, MERGE], {}, (DEFAULT, NONE), id="a-drop-in-that-merges-the-defaults"),
        pytest.param([OTHER, MERGE, MERGE.replace("true", "false")], {}, (NONE, NONE), id="a-drop-in-that-does-not"),
    ],
)
def test_files_and_flags_are_combined_as_by_kubelet(
    texts: list[str], flags: dict[str, str], expected: tuple[Threshold, ...]
) -> None:
    assert parse_thresholds(*texts, **flags) == expected


@pytest.mark.parametrize("flag", ["memory.available", "memory.available=1Gi", "memory.available<lots"])
def test_a_flag_that_kubelet_would_refuse_is_malformed(flag: str) -> None:
    with pytest.raises(MalformedError):
        parse_thresholds(hard_flag=flag)


# --- reading it ----------------------------------------------------------------------------------------------------


def test_a_configuration_is_read_from_its_file(tmp_path: Path, caplog: Log) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(kubeadm("evictionHard:\n  memory.available: 5%\n"))
    with caplog.at_level(logging.DEBUG):
        assert read_thresholds(KubeletFlags(str(path))) == (Threshold(node_ratio=0.05), NONE)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("content", "level", "why"),
    [
        pytest.param(None, "INFO", 'cannot be read file="{}" error="No such file or directory"', id="no-such-file"),
        pytest.param(b"garbage\nforged pod=x\n", "WARNING", "malformed kubelet configuration, line 1", id="garbage"),
        pytest.param(b"\xff\xfe\x00", "WARNING", 'cannot be understood file="{}" error="not UTF-8"', id="not-utf8"),
        pytest.param(b"a: b\n" * 300_000, "INFO", 'cannot be read file="{}" error="larger than 1Mi"', id="huge"),
    ],
)
def test_what_cannot_be_read_is_told_once_and_unknown(
    tmp_path: Path, caplog: Log, content: bytes | None, level: str, why: str
) -> None:
    path = tmp_path / "con\nfig.yaml"
    if content is not None:
        path.write_bytes(content)
    with caplog.at_level(logging.DEBUG):
        assert read_thresholds(KubeletFlags(str(path))) is None
    assert [record.levelname for record in caplog.records] == [level]
    said = caplog.records[0].getMessage()
    assert said.startswith("kubelet's eviction threshold is taken to be its default, as its configuration cannot be ")
    assert why.format(str(path).replace("\n", r"\n")) in said
    assert "\n" not in said
    assert "Errno" not in said


def test_drop_ins_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    """A folder has its place among the files."""
    (tmp_path / "15").mkdir()
    for name, mib in (("20-b.conf", 300), ("10-a.conf", 200), ("30-c.yaml", 400), ("15/x.conf", 500)):
        (tmp_path / name).write_text(f"evictionHard:\n  memory.available: {mib}Mi\n")
    assert read_thresholds(KubeletFlags(None, str(tmp_path))) == (Threshold(300 * MIB), NONE)
    (tmp_path / "20-b.conf").unlink()
    assert read_thresholds(KubeletFlags(None, str(tmp_path))) == (Threshold(500 * MIB), NONE)


def test_a_folder_in_the_wrong_place_leaves_the_thresholds_unknown(tmp_path: Path) -> None:
    assert read_thresholds(KubeletFlags(str(tmp_path))) is None
    assert read_thresholds(KubeletFlags(None, str(tmp_path / "missing"))) is None


@pytest.mark.parametrize(
    ("thresholds", "node", "capacity", "expected"),
    [
        pytest.param((Threshold(5), NONE), 100, 50, 5, id="bytes"),
        pytest.param((Threshold(node_ratio=0.25), NONE), 100, 50, 25, id="share-of-the-node-not-of-kubepods"),
        pytest.param((Threshold(5), Threshold(node_ratio=0.25)), 100, 50, 25, id="the-soft-one-is-higher"),
        pytest.param((Threshold(30), Threshold(node_ratio=0.25)), 100, 50, 30, id="the-hard-one-is-higher"),
        pytest.param((NONE, NONE), 100, 50, 0, id="no-threshold"),
        pytest.param(None, 8 * GIB, 8 * GIB, 100 * MIB, id="unknown-on-a-node"),
        pytest.param(None, 4000 * MIB, 4000 * MIB, 100 * MIB, id="unknown-at-the-bend"),
        pytest.param(None, 3999 * MIB, 3999 * MIB, 3999 * MIB // 40, id="unknown-below-the-bend"),
        pytest.param(None, 8 * GIB, 400 * MIB, 10 * MIB, id="unknown-with-small-kubepods"),
    ],
)
def test_a_threshold_in_bytes(
    thresholds: tuple[Threshold, ...] | None, node: int, capacity: int, expected: int
) -> None:
    assert eviction_bytes(thresholds, node_total_bytes=node, capacity_bytes=capacity) == expected
