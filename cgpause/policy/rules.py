"""The operator's rules for a pod: its protection, class and priority, and whether its own word counts; pure.

For each of the four, the first [[pods]] rule that matches the pod and sets it wins. Protection has more sources, in
this order: cgpause's own pod, root's marks on the cgroup, the rules, an unknown name if any of these need names, the
defaults in [protect], the PriorityClass system-node-critical, the pod's own word (the variable CGPAUSE in its
environment), protect.all. A rule with protect = false ends the search, except that the pod's own word can still protect
the pod.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase

from cgpause.config.settings import Config, PodClass, PodRule
from cgpause.core.cgroup_names import is_static_uid
from cgpause.core.model import OwnWord, QosClass
from cgpause.core.pod_names import PodName

OPT_OUT_XATTRS = ("user.cgpause.protect", "user.oomd_omit", "user.oomd_avoid")
"""Our own mark and those of systemd-oomd; as there, they count only if root owns the cgroup
(systemd.resource-control(5)). systemd removes its own two marks from a slice whenever it applies the unit again, unless
the unit's ManagedOOMPreference= asks for them (cgroup_xattr_apply in systemd's src/core/cgroup.c)."""
OWN_POD = "cgpause itself runs in it"
"""The protection of cgpause's own pod. No command overrides it, because cgpause could not resume the pod any more."""
VARIABLE = "CGPAUSE"
"""The environment variable with a pod's own word."""


def protection(
    *,
    uid: str,
    qos: QosClass,
    name: PodName | None,
    opt_outs: Collection[str],
    holds_us: bool,
    config: Config,
    node_critical: bool = False,
    word: OwnWord | None = None,
) -> str | None:
    """Return the rule that protects a pod, as a phrase for people, or None if the pod may be paused.

    `opt_outs` are the OPT_OUT_XATTRS that root set on its cgroup; `holds_us` is True if cgpause runs inside the pod;
    `node_critical` is True if kubelet treats it as critical for the node (or Guaranteed); `word` is the pod's own word,
    None where it does not count.
    """
    if holds_us:
        return OWN_POD
    for xattr in opt_outs:
        return f"xattr {xattr} is set on its cgroup"
    protect = config.protect
    own = f"its own word ({VARIABLE}=protect)" if word is OwnWord.PROTECT else None
    if name is not None:
        for number, rule in _matching(qos, name, config):
            if rule.protect is not None:
                return f"rule {number} ([[pods]] match = {rule.match!r})" if rule.protect else own
        for glob in protect.namespaces:
            if fnmatchcase(name.namespace, glob):
                return f"namespace {name.namespace} (protect.namespaces)"
    elif config.pods or protect.namespaces or protect.all:
        return "its name is unknown while rules depend on names"
    if protect.static_pods and is_static_uid(uid):
        return "static pod (protect.static_pods)"
    if protect.guaranteed and qos is QosClass.GUARANTEED:
        return "QoS class Guaranteed (protect.guaranteed)"
    if node_critical and qos is not QosClass.GUARANTEED:
        return "critical for the node (oom_score_adj -997)"
    return own or ("no rule allows a pause (protect.all)" if protect.all else None)


def heeds_word(qos: QosClass, name: PodName | None, config: Config) -> bool:
    """Return True if a pod's own word counts."""
    ruled = (rule.own_word for _, rule in _matching(qos, name, config) if rule.own_word is not None)
    return next(ruled, config.protect.own_word)


def ruled_class(qos: QosClass, name: PodName | None, config: Config) -> PodClass:
    """Return a pod's class by the rules; AUTO if none sets it."""
    return next((rule.class_ for _, rule in _matching(qos, name, config) if rule.class_ is not None), PodClass.AUTO)


def pod_class(ruled: PodClass, word: OwnWord | None) -> PodClass:
    """Return a pod's class by the rules (`ruled_class`), else by its own word; AUTO: the kernel's facts decide."""
    return PodClass(word) if ruled is PodClass.AUTO and word in (OwnWord.SERVICE, OwnWord.BATCH) else ruled


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
