"""Pod references as operators write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from cgpause.core.errors import PodLookupError
from cgpause.core.lookup import find_pod, find_pods
from cgpause.core.model import CgroupId, Pod, QosClass

ROOT = "/sys/fs/cgroup"
BURSTABLE = "kubepods.slice/kubepods-burstable.slice"


def make_pod(uid: str, name: str | None, namespace: str = "default") -> Pod:
    path = f"{BURSTABLE}/kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    namespace_of = None if name is None else namespace
    return Pod(CgroupId(path, 1), uid, QosClass.BURSTABLE, namespace_of, name, None, None)


WEB = make_pod("0f9d1a2b-3c4d-4e5f-8a6b-7c8d9e0f1a2b", "web")
OTHER_WEB = make_pod("0f9d1a2c-3c4d-4e5f-8a6b-7c8d9e0f1a2b", "web", "prod")
STATIC = make_pod("b1f4499cb83e8ce3e7de136e9e81cb0d", "etcd-node1", "kube-system")
NAMELESS = make_pod("deadbeef-0000-4000-8000-000000000001", None)
# A name may look like another kind of pod reference.
LIKE_A_PREFIX = make_pod("11111111-0000-4000-8000-000000000001", "deadbeef")
LIKE_A_UID = make_pod("22222222-0000-4000-8000-000000000001", "b1f4499cb83e8ce3e7de136e9e81cb0d")
HEIR = replace(OTHER_WEB, namespace="default")
PODS = (WEB, OTHER_WEB, STATIC, NAMELESS, LIKE_A_PREFIX)


@pytest.mark.parametrize(
    ("ref", "pod"),
    [
        pytest.param("default/web", WEB, id="namespace-and-name"),
        pytest.param("prod/web", OTHER_WEB, id="same-name-elsewhere"),
        pytest.param("etcd-node1", STATIC, id="name"),
        pytest.param("0f9d1a2b-3c4d-4e5f-8a6b-7c8d9e0f1a2b", WEB, id="uid"),
        pytest.param("0f9d1a2b_3c4d_4e5f_8a6b_7c8d9e0f1a2b", WEB, id="uid-as-systemd-writes-it"),
        pytest.param("0F9D1A2B_3C4D_4E5F_8A6B_7C8D9E0F1A2B", WEB, id="uid-in-upper-case-with-underscores"),
        pytest.param(STATIC.uid, STATIC, id="a-uid-that-is-another-pod's-name"),
        pytest.param("b1f4", STATIC, id="static-prefix-of-four"),
        pytest.param("0f9d1a2b", WEB, id="shortest-unique-prefix"),
        pytest.param("0f9d1a2b_3c", WEB, id="prefix-with-underscore"),
        pytest.param("deadbeef-", NAMELESS, id="prefix-of-a-pod-without-a-name"),
        pytest.param("deadbeef", LIKE_A_PREFIX, id="a-name-wins-over-another-pod's-prefix"),
        pytest.param(WEB.cgroup.path, WEB, id="relative-path"),
        pytest.param(f"/{WEB.cgroup.path}", WEB, id="path-as-in-proc-pid-cgroup"),
        pytest.param(f"{ROOT}/{WEB.cgroup.path}", WEB, id="absolute-path"),
        pytest.param(f"{ROOT}/{WEB.cgroup.path}/", WEB, id="absolute-path-with-slash"),
    ],
)
def test_every_form_of_reference_finds_its_pod(ref: str, pod: Pod) -> None:
    assert find_pod(ref, (*PODS, LIKE_A_UID), ROOT) is pod


def refusal(find: Callable[..., object], *args: object) -> str:
    """Return the message of a reference that is refused."""
    with pytest.raises(PodLookupError) as error:
        find(*args)
    return str(error.value)


@pytest.mark.parametrize("root", ["/", "/sys/fs/cgroup/", "/tmp/tree"])
def test_an_absolute_path_is_below_the_root_in_use(root: str) -> None:
    assert find_pod(f"{root.rstrip('/')}/{WEB.cgroup.path}", PODS, root) is WEB


@pytest.mark.parametrize(
    "ref",
    [
        pytest.param("", id="empty"),
        pytest.param("nothing", id="unknown"),
        pytest.param("default/", id="namespace-alone"),
        pytest.param("/web", id="name-alone-after-slash"),
        pytest.param("Default/web", id="names-are-lower-case"),
        pytest.param("b1f", id="prefix-of-three"),
        pytest.param("0f9d1a2b-3c4d-4e5f-8a6b-7c8d9e0f1a2b0", id="longer-than-the-uid"),
        pytest.param("None", id="not-the-name-of-the-nameless"),
        pytest.param("kubepods.slice", id="kubepods-itself"),
        pytest.param(f"{ROOT}", id="the-root-itself"),
        pytest.param(f"{WEB.cgroup.path}/cri-containerd-00.scope", id="a-container"),
        pytest.param(f"/somewhere/else/{WEB.cgroup.path}", id="another-root"),
        pytest.param("web\n", id="newline-at-the-end"),
        pytest.param("\x1b[31mweb", id="control-characters"),
        pytest.param("\udcff\udcfe", id="not-utf-8"),
        pytest.param("nothing/*", id="a-glob-of-nothing"),
        pytest.param("x" * 100_000, id="huge"),
    ],
)
def test_what_means_no_pod_is_refused_in_one_printable_line(ref: str) -> None:
    message = refusal(find_pod, ref, PODS, ROOT)
    assert message.startswith("no pod ")
    assert "cgpause status" in message
    assert message.isprintable()


@pytest.mark.parametrize(
    ("glob", "namespace", "names"),
    [
        pytest.param("*", None, [pod.label for pod in PODS], id="all"),
        pytest.param("*", "prod", ["prod/web"], id="all-of-a-namespace"),
        pytest.param("we?", None, ["default/web", "prod/web"], id="name-in-any-namespace"),
        pytest.param("*/w[ae]b", None, ["default/web", "prod/web"], id="namespace-and-name"),
        pytest.param("default/*", None, [pod.label for pod in PODS if pod.namespace == "default"], id="namespace"),
        pytest.param("web", "prod", ["prod/web"], id="no-glob-but-a-namespace"),
    ],
)
def test_a_glob_means_all_pods_that_match(glob: str, namespace: str | None, names: list[str]) -> None:
    assert [pod.label for pod in find_pods(glob, PODS, ROOT, namespace)] == names


@pytest.mark.parametrize(
    ("ref", "namespace", "said"),
    [
        ("x*", None, "no pod matches 'x*' among the 5 on this node (see: cgpause status)"),
        ("x*", "prod", "no pod matches 'x*' among the 1 of namespace 'prod' on this node (see: cgpause status)"),
        ("default/web", "prod", "among the 1 of namespace 'prod' on this node"),
        ("we", "prod", "no pod 'we'; the nearest is prod/web (all 1: cgpause status)"),
        ("web", "empty", "among the 0 of namespace 'empty' on this node"),
    ],
)
def test_a_pod_of_another_namespace_is_none(ref: str, namespace: str | None, said: str) -> None:
    message = refusal(find_pods, ref, PODS, ROOT, namespace)
    assert said in message


BATCH = (make_pod("33333333-0000-4000-8000-000000000001", "batch-7"), make_pod("4" * 32, "batch-7", "prod"))


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        pytest.param("default/bacth-7", "no pod 'default/bacth-7'; the nearest is default/batch-7 (", id="letters"),
        pytest.param("bacth-7", "the nearest are default/batch-7, prod/batch-7 (", id="name-in-two-namespaces"),
        pytest.param("defualt/batch-7", "the nearest is default/batch-7 (", id="namespace"),
        pytest.param("/web", "the nearest are default/web, prod/web (", id="slash"),
        pytest.param("default/we", "the nearest is default/web (", id="beginning"),
        pytest.param("bat", "the nearest are default/batch-7, prod/batch-7 (", id="first-part-of-a-name"),
        pytest.param("etcd-nod1", "the nearest is kube-system/etcd-node1 (", id="left-out"),
        pytest.param("nothing", "among the 7 on this node; give namespace/name, name, UID", id="nothing-like-it"),
        pytest.param("deadbeff-0000", "among the 7 on this node", id="no-uid-is-guessed"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_names(ref: str, said: str) -> None:
    message = refusal(find_pod, ref, (*PODS, *BATCH), ROOT)
    assert said in message
    assert "among" in said or "(all 7: cgpause status)" in message


@pytest.mark.parametrize(
    ("ref", "pods", "matches"),
    [
        pytest.param("web", PODS, (WEB, OTHER_WEB), id="name"),
        pytest.param("0f9d", PODS, (WEB, OTHER_WEB), id="prefix"),
        pytest.param("default/web", (WEB, HEIR), (WEB, HEIR), id="a-pod-and-its-heir"),
    ],
)
def test_an_ambiguous_reference_lists_all_matches(ref: str, pods: tuple[Pod, ...], matches: tuple[Pod, ...]) -> None:
    message = refusal(find_pod, ref, pods, ROOT)
    first, *listed = message.splitlines()
    assert first == f"{ref!r} matches {len(matches)} pods; name one of them:"
    assert [re.findall(r"\(uid (.*)\)", line) for line in listed] == [[pod.uid] for pod in matches]
    assert all(line.startswith("  ") for line in listed)
