"""The operator's rules for a pod: its protection, its class and its priority; pure.

For each of the three, the first [[pods]] rule that matches the pod and sets it wins. Protection has more sources, in
this order: cgpause's own pod, root's marks on the cgroup, the rules, the defaults in [protect].
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase

from cgpause.config.settings import Config, PodClass, PodRule
from cgpause.core.kubepods import is_static_uid
from cgpause.core.model import QosClass
from cgpause.core.names import PodName

OPT_OUT_XATTRS = ("user.oomd_omit", "user.oomd_avoid")
"""Marks of systemd-oomd; as there, they count only if root owns the cgroup (systemd.resource-control(5))."""


def protection(
    *,
    uid: str,
    qos: QosClass,
    name: PodName | None,
    opt_outs: Collection[str],
    holds_us: bool,
    config: Config,
) -> str | None:
    """Return the rule that protects a pod, as a phrase for people, or None if the pod may be paused.

    `opt_outs` are the OPT_OUT_XATTRS that root set on its cgroup; `holds_us` is True if cgpause runs inside the pod.
    """
    if holds_us:
        return "cgpause itself runs in it"
    for xattr in opt_outs:
        return f"xattr {xattr} is set on its cgroup"
    protect = config.protect
    if name is not None:
        for number, rule in _matching(qos, name, config):
            if rule.protect is not None:
                return f"rule {number} ([[pods]] match = {rule.match!r})" if rule.protect else None
        for glob in protect.namespaces:
            if fnmatchcase(name.namespace, glob):
                return f"namespace {name.namespace} (protect.namespaces)"
    elif config.pods or protect.namespaces or protect.all:
        return "its name is unknown while rules depend on names"
    if protect.static_pods and is_static_uid(uid):
        return "static pod (protect.static_pods)"
    if protect.guaranteed and qos is QosClass.GUARANTEED:
        return "QoS class Guaranteed (protect.guaranteed)"
    return "no rule allows a pause (protect.all)" if protect.all else None


def pod_class(qos: QosClass, name: PodName | None, config: Config) -> PodClass:
    """Return a pod's class by the rules; AUTO if no rule sets it, so that the kernel's facts decide."""
    return next((rule.class_ for _, rule in _matching(qos, name, config) if rule.class_ is not None), PodClass.AUTO)


def priority(qos: QosClass, name: PodName | None, config: Config) -> int:
    """Return a pod's priority by the rules; 0 if no rule sets it."""
    return next((rule.priority for _, rule in _matching(qos, name, config) if rule.priority is not None), 0)


def _matching(qos: QosClass, name: PodName | None, config: Config) -> Iterator[tuple[int, PodRule]]:
    """Yield the rules that match a pod, in order, with their numbers from 1; none matches a pod without a name."""
    if name is None:
        return
    label = f"{name.namespace}/{name.name}"
    for number, rule in enumerate(config.pods, start=1):
        if fnmatchcase(label, rule.match) and (not rule.qos or qos in rule.qos):
            yield number, rule
