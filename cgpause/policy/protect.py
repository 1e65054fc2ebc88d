"""What the operator's rules say about a pod: whether it may be touched at all, its class and its priority; pure.

For each of the three the first [[pods]] rule that matches and sets it wins. Protection has more to it, in order: our
own cgroup, then what root marked on the cgroup, then the rules, then the defaults in [protect].
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase

from cgpause.config.settings import Config, PodClass, PodRule
from cgpause.core.kubepods import is_static_uid
from cgpause.core.model import QosClass
from cgpause.core.names import PodName

OPT_OUT_XATTRS = ("user.oomd_omit", "user.oomd_avoid")
"""systemd-oomd's marks, honoured as it does: only when root owns the cgroup (systemd.resource-control(5))."""


def protection(
    *,
    uid: str,
    qos: QosClass,
    name: PodName | None,
    opt_outs: Collection[str],
    holds_us: bool,
    config: Config,
) -> str | None:
    """Rule that protects a pod, as a phrase for people, or None when it may be paused.

    `opt_outs` are those of OPT_OUT_XATTRS that root set on its cgroup; `holds_us` says that cgpause runs inside it.
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
    elif protect.unnamed and (config.pods or protect.namespaces):
        return "its name is unknown while rules depend on names (protect.unnamed)"
    if protect.static_pods and is_static_uid(uid):
        return "static pod (protect.static_pods)"
    if protect.guaranteed and qos is QosClass.GUARANTEED:
        return "QoS class Guaranteed (protect.guaranteed)"
    return None


def pod_class(qos: QosClass, name: PodName | None, config: Config) -> PodClass:
    """What the rules say that a pod is; AUTO where they leave it to what the kernel shows."""
    return next((rule.class_ for _, rule in _matching(qos, name, config) if rule.class_ is not None), PodClass.AUTO)


def priority(qos: QosClass, name: PodName | None, config: Config) -> int:
    """A pod's priority by the rules; 0 where they say nothing."""
    return next((rule.priority for _, rule in _matching(qos, name, config) if rule.priority is not None), 0)


def _matching(qos: QosClass, name: PodName | None, config: Config) -> Iterator[tuple[int, PodRule]]:
    """The rules a pod matches, in order, with their numbers from 1; without a name it matches none."""
    if name is None:
        return
    label = f"{name.namespace}/{name.name}"
    for number, rule in enumerate(config.pods, start=1):
        if fnmatchcase(label, rule.match) and (not rule.qos or qos in rule.qos):
            yield number, rule
