"""The DaemonSet's manifest matches the unit, and the lab turns it into podman options."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from release.manifest import container_of, podman_options
from release.oci import USELESS

from cgpause import __version__, contained
from cgpause.config.arguments import parse_options
from cgpause.config.load import load_config
from cgpause.config.settings import PodRule
from cgpause.core.paths import DEFAULT_CONFIG, DEFAULT_LISTEN, DEFAULT_LOG_DIR, DEFAULT_RUN_DIR, DEFAULT_STATE_DIR
from cgpause.pods.own_pod import POD_UID

REPO = Path(__file__).parents[2]
MANIFEST = REPO / "docs/deploy/base/daemonset.yaml"
UNIT = (REPO / "systemd/cgpause.service").read_text()
CONTAINERFILE = (REPO / "scripts/oci/Containerfile").read_text()
FOLDERS = {"config": "/host/config", "run": "/host/run"}


def documents() -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture
def pod() -> dict[str, Any]:
    found: dict[str, Any] = documents()["DaemonSet"]["spec"]["template"]["spec"]
    return found


@pytest.fixture
def daemon(pod: dict[str, Any]) -> dict[str, Any]:
    return dict(container_of(pod, "cgpause"))


def unit_says(key: str) -> str:
    [value] = re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


def test_the_configuration_is_one_the_daemon_takes(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(documents()["ConfigMap"]["data"]["config.toml"])

    config = load_config(str(path), must_exist=True)
    assert config.metrics.publish, "there is a container that shows them"
    assert config.protect.all, "a roll-out pauses only what a rule allows"
    assert config.pods == ()

    path.write_text(re.sub(r"^# (?=\[\[pods|match|protect)", "", path.read_text(), flags=re.MULTILINE))
    assert load_config(str(path), must_exist=True).pods == (PodRule(match="batch/*", protect=False),)


def test_what_mmdebstrap_cleans_up_itself_is_left_to_it() -> None:
    """Without the apt configuration in the new root's tmp/, the last apt-get would empty the host's own lists."""
    assert [path for path in USELESS if re.match(r"(tmp|run|var/lib/apt|var/cache/(apt|\*))", path)] == []


def test_the_names_in_it_agree(pod: dict[str, Any]) -> None:
    config, daemonset = documents()["ConfigMap"], documents()["DaemonSet"]
    spec = daemonset["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}

    assert config["metadata"]["namespace"] == daemonset["metadata"]["namespace"] == "kube-system"
    assert volumes["config"]["configMap"]["name"] == config["metadata"]["name"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
    assert mounted == set(volumes)
    assert {container["image"] for container in pod["containers"]} == {f"registry.example/cgpause:{__version__}"}


def test_the_daemon_may_do_what_the_unit_may_and_lock_its_memory(daemon: dict[str, Any]) -> None:
    security = daemon["securityContext"]
    added = {f"CAP_{name}" for name in security["capabilities"]["add"]}

    assert added - {"CAP_IPC_LOCK"} == set(unit_says("CapabilityBoundingSet").split())
    assert ("CAP_IPC_LOCK" in added) is (unit_says("LimitMEMLOCK") == "infinity")
    assert security["capabilities"]["drop"] == ["ALL"]
    assert (security["runAsUser"], security["privileged"]) == (0, False)
    assert (not security["allowPrivilegeEscalation"]) is (unit_says("NoNewPrivileges") == "yes")
    assert security["readOnlyRootFilesystem"] is (unit_says("ProtectSystem") == "strict")


def test_it_may_write_to_the_cgroup_tree_and_where_the_unit_may(pod: dict[str, Any], daemon: dict[str, Any]) -> None:
    writable = {mount["mountPath"] for mount in daemon["volumeMounts"] if not mount.get("readOnly")}
    units = {path.removeprefix("-") for path in unit_says("ReadWritePaths").split()}

    assert writable == {"/sys/fs/cgroup"} | units
    assert units == {DEFAULT_STATE_DIR, DEFAULT_RUN_DIR}
    seen = {mount["mountPath"] for mount in daemon["volumeMounts"]} - writable
    assert seen == {f"{DEFAULT_LOG_DIR}/pods", f"{DEFAULT_LOG_DIR}/containers", str(Path(DEFAULT_CONFIG).parent)}
    for volume in pod["volumes"]:
        mounts = [mount["mountPath"] for mount in daemon["volumeMounts"] if mount["name"] == volume["name"]]
        if "hostPath" in volume:
            assert mounts == [volume["hostPath"]["path"]], "a path means the same inside and outside"


def test_its_command_line_is_one_the_daemon_takes(daemon: dict[str, Any]) -> None:
    options = parse_options(daemon["args"])

    assert '"-m", "cgpause.contained"' in CONTAINERFILE
    assert options.config_path == DEFAULT_CONFIG, "a given file must exist"
    assert options.cgroup_root is None, "else neither history nor metrics would be the node's"
    assert options.metrics_path == f"{DEFAULT_RUN_DIR}/metrics.prom"
    assert options.history_path == f"{DEFAULT_STATE_DIR}/history.jsonl"


def test_what_it_gets_of_the_node(pod: dict[str, Any], daemon: dict[str, Any]) -> None:
    assert pod["hostPID"] is True
    assert not {"hostNetwork", "hostIPC"} & pod.keys()
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert daemon["env"] == [{"name": POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]


def test_it_is_there_when_the_node_is_not_well(pod: dict[str, Any], daemon: dict[str, Any]) -> None:
    assert pod["priorityClassName"] == "system-node-critical", "oom_score_adj -997 comes with it"
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert daemon["resources"]["limits"] == {"memory": unit_says("MemoryMax").replace("M", "Mi")}
    assert set(daemon["resources"]["requests"]) == {"cpu", "memory"}


def test_there_is_time_to_resume_everybody(pod: dict[str, Any], daemon: dict[str, Any]) -> None:
    # The hook and the clean-up need the time of the unit's clean-up, TimeoutStopSec=.
    needed_s = 2 * contained.STOP_S + contained.ABORT_S

    assert pod["terminationGracePeriodSeconds"] > needed_s
    command = daemon["lifecycle"]["preStop"]["exec"]["command"]
    assert command[0] == re.findall(r'ENTRYPOINT \["([^"]+)"', CONTAINERFILE)[0]
    assert command[1:] == ["-I", "-m", "cgpause.restore", "--daemon-only"]


def test_readiness_is_the_file_of_the_containers_first_process(daemon: dict[str, Any]) -> None:
    path = contained.ready_path(daemon["args"])

    assert daemon["readinessProbe"] == {"exec": {"command": ["test", "-e", path]}}
    assert "livenessProbe" not in daemon, "a watchdog notices more, and sooner"


def test_two_are_never_on_one_node() -> None:
    strategy = documents()["DaemonSet"]["spec"]["updateStrategy"]

    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}


def test_the_sidecar_can_read_figures_and_nothing_else(pod: dict[str, Any]) -> None:
    sidecar = container_of(pod, "metrics")

    assert sidecar["securityContext"]["runAsNonRoot"] is True
    assert sidecar["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert sidecar["volumeMounts"] == [{"name": "run", "mountPath": DEFAULT_RUN_DIR, "readOnly": True}]
    port = int(DEFAULT_LISTEN.rpartition(":")[2])
    assert [known["containerPort"] for known in sidecar["ports"]] == [port]
    assert sidecar["command"][-1] == f":{port}"
    assert sidecar["livenessProbe"] == sidecar["readinessProbe"]
    assert sidecar["readinessProbe"]["httpGet"] == {"path": "/metrics", "port": "metrics"}


# --- as options of podman ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda pod, _: pod.update(hostIPC=True), id="pod"),
        pytest.param(lambda _, container: container.update(volumeDevices=[]), id="container"),
        pytest.param(lambda _, container: container["securityContext"].update(procMount="Unmasked"), id="security"),
        pytest.param(lambda pod, _: pod["securityContext"]["seccompProfile"].update(type="Unconfined"), id="profile"),
        pytest.param(lambda _, container: container["env"][0].update(valueFrom={}), id="env"),
        pytest.param(lambda _, container: container["resources"]["limits"].update(memory="1G"), id="memory"),
    ],
)
def test_what_it_does_not_know_it_refuses(pod: dict[str, Any], change: Callable[[Any, Any], object]) -> None:
    change(pod, container_of(pod, "cgpause"))

    with pytest.raises(ValueError, match=r"\w"):
        podman_options(pod, "cgpause", FOLDERS, "")
