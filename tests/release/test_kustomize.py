"""The kustomize base and overlays build, and their objects are valid for the oldest and the newest Kubernetes."""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from lab.vm.apt_source import host_source
from lab.vm.host import building, cache_dir, run_tool

from cgpause.config.load import load_config
from cgpause.config.settings import PodRule
from cgpause.core.model import QosClass

REPO = Path(__file__).parents[2]
DEPLOY = REPO / "docs/deploy"
FOLDERS = {str(path.parent.relative_to(DEPLOY)): path.parent for path in sorted(DEPLOY.rglob("kustomization.yaml"))}
[OLDEST] = re.findall(r"\*\*Kubernetes (1\.\d+) or later\*\*", (REPO / "docs/deployment.md").read_text())
OLDEST_AND_NEWEST = (OLDEST, kubernetes_validate.latest_version())
FOREIGN = ("monitoring.coreos.com/", "kustomize.config.k8s.io/")
"""API groups without a schema in Kubernetes itself."""
SUITE = "trixie"
"""The first stable Debian with kustomize. Its program runs on Debian 12, too (libc6 2.34)."""


def build(folder: Path) -> list[dict[str, Any]]:
    """Return the documents that kustomize, from PATH or from Debian, makes of a folder."""
    program = shutil.which("kustomize") or _from_debian()
    return list(yaml.safe_load_all(run_tool([program, "build", folder])))


def _from_debian() -> Path:
    target = cache_dir() / f"kustomize-{SUITE}"
    with building(target) as work:
        if work is not None:
            with tempfile.TemporaryDirectory(prefix="cgpause-apt-") as scratch:
                _download(Path(scratch))
                [package] = Path(scratch).glob("kustomize_*.deb")
                run_tool(["dpkg-deb", "--extract", package, work])
    return target / "usr/bin/kustomize"


def _download(folder: Path) -> None:
    source, _ = host_source()
    (folder / "sources.list").write_text(f"{replace(source, suite=SUITE).line()}\n")
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    settings = {
        "APT::Sandbox::User": "root",  # the folder is ours alone
        "Dir::Cache": folder / "cache",
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
    }
    apt = ["apt-get", *(f"-o{name}={value}" for name, value in settings.items())]
    run_tool([*apt, "update"])
    run_tool([*apt, "download", "kustomize"], cwd=folder)


@cache
def built(folder: str) -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in build(FOLDERS[folder])}


@pytest.mark.parametrize("version", OLDEST_AND_NEWEST)
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_object_is_valid(folder: str, version: str) -> None:
    for document in built(folder).values():
        if not document["apiVersion"].startswith(FOREIGN):
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*.yaml")), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_file_is_valid_by_itself(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        if "kind" in document and not document["apiVersion"].startswith(FOREIGN):
            kubernetes_validate.validate(document, OLDEST, strict=True)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_overlay_has_the_whole_base(folder: str) -> None:
    base = built("base")

    assert set(built(folder)) >= set(base) == {"ConfigMap", "DaemonSet"}
    assert built(folder)["DaemonSet"] == base["DaemonSet"]
    assert {document["metadata"]["namespace"] for document in built(folder).values()} == {"kube-system"}


def test_the_opt_in_overlay_adds_one_rule_to_the_allow_list(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(built("overlays/opt-in")["ConfigMap"]["data"]["config.toml"])
    config = load_config(str(path), must_exist=True)

    assert config.protect.all
    assert config.metrics.publish
    assert config.pods == (PodRule(match="batch/*", protect=False, qos=(QosClass.BURSTABLE, QosClass.BEST_EFFORT)),)


def test_prometheus_reaches_the_sidecar_and_nothing_else_is_allowed() -> None:
    documents = built("overlays/metrics")
    pod = documents["DaemonSet"]["spec"]["template"]
    policy, monitor = documents["NetworkPolicy"]["spec"], documents["PodMonitor"]["spec"]

    ports = {port["name"] for container in pod["spec"]["containers"] for port in container.get("ports", [])}
    assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} == ports
    assert [rule["ports"] for rule in policy["ingress"]] == [[{"port": port} for port in ports]]
    dropped = {one.get("regex") for one in monitor["podMetricsEndpoints"][0]["relabelings"]}
    assert "pod|container|endpoint" in dropped  # else each rollout begins new series
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    assert "egress" not in policy
    for selector in (policy["podSelector"], monitor["selector"]):
        assert selector["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_labels_of_nodes_have_a_prefix() -> None:
    selector = built("base")["DaemonSet"]["spec"]["template"]["spec"]["nodeSelector"]

    assert all("/" in label for label in selector)
