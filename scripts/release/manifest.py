"""Translates a pod template into options of podman, so that tests run the manifest itself.

It translates the fields that docs/deploy/base/daemonset.yaml uses, and refuses every other field instead of ignoring
it. It ignores probes, because kubelet runs them.
"""

import re
from collections.abc import Mapping
from typing import Any

Yaml = Mapping[str, Any]

_POD = frozenset(
    [
        *("nodeSelector", "tolerations", "priorityClassName", "automountServiceAccountToken", "enableServiceLinks"),
        *("hostPID", "terminationGracePeriodSeconds", "securityContext", "containers", "volumes"),
    ]
)
_CONTAINER = frozenset(
    [
        *("name", "image", "args", "command", "env", "lifecycle", "ports", "resources", "securityContext"),
        *("livenessProbe", "readinessProbe", "volumeMounts"),
    ]
)
_SECURITY = frozenset(
    [
        *("runAsUser", "runAsGroup", "runAsNonRoot", "privileged", "allowPrivilegeEscalation"),
        *("readOnlyRootFilesystem", "capabilities"),
    ]
)
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def podman_options(pod: Yaml, name: str, folders: Mapping[str, str], uid: str) -> list[str]:
    """Return options of `podman run` for the container of this name in a pod's spec.

    `folders` has a folder of the host for each volume without a path on the host (emptyDir, configMap); `uid` is the
    pod's UID.

    Raises:
        ValueError: the manifest has a field or value that this module does not translate.
    """
    container = container_of(pod, name)
    _know("pod", pod, _POD)
    _know(f"container {name}", container, _CONTAINER)
    if pod["securityContext"] != {"seccompProfile": {"type": "RuntimeDefault"}}:
        raise ValueError(f"securityContext of the pod: {pod['securityContext']}")
    # As containerd and CRI-O do on cgroup v2: a cgroup namespace of its own.
    options = ["--cgroupns=private", "--network=none"]
    if pod["hostPID"]:
        options.append("--pid=host")
    options += _security(container["securityContext"])
    options += [f"--memory={_bytes(container['resources']['limits']['memory'])}"]
    options += [f"--stop-timeout={pod['terminationGracePeriodSeconds']}"]
    for variable in container.get("env", []):
        if variable.get("valueFrom") != {"fieldRef": {"fieldPath": "metadata.uid"}}:
            raise ValueError(f"env: {variable}")
        options.append(f"--env={variable['name']}={uid}")
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        volume = volumes[mount["name"]]
        source = volume["hostPath"]["path"] if "hostPath" in volume else folders[mount["name"]]
        mode = "ro" if mount.get("readOnly") else "rw"
        options.append(f"--volume={source}:{mount['mountPath']}:{mode},rprivate,rbind")
    return options


def arguments(container: Yaml) -> tuple[str | None, list[str]]:
    """Return the container's entry point, None if it is the image's, and its arguments."""
    command = list(container.get("command", []))
    if not command:
        return None, list(container.get("args", []))
    return command[0], [*command[1:], *container.get("args", [])]


def container_of(pod: Yaml, name: str) -> Yaml:
    """Return the container of this name."""
    found: Yaml = next(container for container in pod["containers"] if container["name"] == name)
    return found


def _security(context: Yaml) -> list[str]:
    _know("securityContext", context, _SECURITY)
    capabilities = context["capabilities"]
    options = [f"--user={context['runAsUser']}:{context['runAsGroup']}"]
    options += [f"--cap-drop={name.lower()}" for name in capabilities["drop"]]
    options += [f"--cap-add={name}" for name in capabilities.get("add", [])]
    if context["privileged"]:
        options.append("--privileged")
    if not context["allowPrivilegeEscalation"]:
        options.append("--security-opt=no-new-privileges")
    if context["readOnlyRootFilesystem"]:
        # podman's own --read-only has folders in memory that can be written to; kubelet's has none.
        options += ["--read-only", "--read-only-tmpfs=false"]
    return options


def _bytes(quantity: str) -> int:
    found = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", quantity)
    if not found:
        raise ValueError(f"a quantity of memory: {quantity}")
    return int(found[1]) * _UNITS[found[2]]


def _know(what: str, given: Yaml, known: frozenset[str]) -> None:
    unknown = given.keys() - known
    if unknown:
        raise ValueError(f"{what}: nothing is known of {', '.join(sorted(unknown))}")
