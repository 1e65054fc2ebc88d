"""Options of the protection of pods, and rules for single pods."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from cgpause.config.options import Conflict, option
from cgpause.core.model import QosClass

# Names of namespaces and pods are RFC 1123 labels and subdomains. A glob with other characters matches none of them.
_GLOB = re.compile(r"(?:[a-z0-9.*?-]|\[!?[a-z0-9.-]+\])+")
_GLOB_CHARACTERS = "lower-case letters, digits, - and ., with the wildcards * ? [abc] [!abc]"


def _is_name_glob(text: str) -> bool:
    return _GLOB.fullmatch(text) is not None


def _is_pod_glob(text: str) -> bool:
    namespace, slash, name = text.partition("/")
    return bool(slash) and _is_name_glob(namespace) and _is_name_glob(name)


@dataclass(frozen=True, slots=True)
class ProtectConfig:
    """Pods that are never paused, unless a rule allows it."""

    all: bool = field(
        default=False,
        metadata=option("Protect every pod. Only pods of a rule with protect = false are paused then (an allow-list)."),
    )
    namespaces: tuple[str, ...] = field(
        default=("kube-system",),
        metadata=option(
            "Namespaces whose pods are protected.",
            pattern=_is_name_glob,
            allowed=f"globs on a namespace ({_GLOB_CHARACTERS})",
            empty="An empty list protects none.",
        ),
    )
    static_pods: bool = field(
        default=True,
        metadata=option("Protect static pods, which kubelet starts from files (the control plane)."),
    )
    guaranteed: bool = field(default=True, metadata=option("Protect pods of QoS class Guaranteed."))
    own_word: bool = field(
        default=True,
        metadata=option(
            "Heed a pod's own word: CGPAUSE=protect, service or batch in the environment of a container, from the "
            "pod's manifest (docs/configuration.md)."
        ),
    )


class PodClass(StrEnum):
    """The class that a rule gives to pods; with AUTO the daemon infers it from the kernel's facts."""

    AUTO = "auto"
    BATCH = "batch"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class PodRule:
    """One [[pods]] rule; it decides only the options that it sets."""

    match: str = field(
        metadata=option(
            "The pods to which the rule applies.",
            pattern=_is_pod_glob,
            allowed=f'a glob on "namespace/name", with exactly one / ({_GLOB_CHARACTERS})',
        ),
    )
    protect: bool | None = field(
        default=None, metadata=option("Whether these pods are protected (true) or may be paused (false).")
    )
    class_: PodClass | None = field(
        default=None,
        metadata=option(
            "The class of these pods. Batch pods are paused before services, and for longer. auto, which is also the "
            "default, takes a pod for batch if no process in it listens on TCP (docs/configuration.md)."
        ),
    )
    priority: int | None = field(
        default=None,
        metadata=option(
            "Of two pods, the one with the higher priority is paused later, regardless of class and size; 0 without a "
            "rule.",
            low=-1000,
            high=1000,
        ),
    )
    own_word: bool | None = field(
        default=None, metadata=option("Whether the own word of these pods counts, in place of [protect] own_word.")
    )
    qos: tuple[QosClass, ...] = field(
        default=(),
        metadata=option("Only pods of these QoS classes.", empty="An empty list means all."),
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a conflict if the rule decides nothing."""
        if all(value is None for value in (self.protect, self.class_, self.priority, self.own_word)):
            yield Conflict(
                ("protect", "class", "priority", "own_word"),
                "the rule decides nothing; allowed: at least one of protect, class, priority and own_word",
            )
