"""Rules for pods: the rule that wins for protection, class and priority."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cgpause.config.settings import Config, PodClass, PodRule, ProtectConfig
from cgpause.core.model import OwnWord, QosClass
from cgpause.core.pod_names import PodName
from cgpause.policy.rules import heeds_word, pod_class, priority, protection, ruled_class

UUID = "0f9d1a2b-3c4d-4e5f-8a6b-7c8d9e0f1a2b"
STATIC = "b1f4499cb83e8ce3e7de136e9e81cb0d"
WEB, DB = PodName("default", "web"), PodName("default", "db")
BURSTABLE, GUARANTEED, BEST_EFFORT = QosClass.BURSTABLE, QosClass.GUARANTEED, QosClass.BEST_EFFORT
DEFAULTS = Config()
ALLOW_ALL = ProtectConfig(namespaces=(), static_pods=False, guaranteed=False)


def reason(config: Config = DEFAULTS, **facts: Any) -> str | None:  # noqa: ANN401 - facts of a pod
    """Return why a pod is protected; `facts` are those in which it differs from an ordinary pod."""
    pod = {"uid": UUID, "qos": BURSTABLE, "name": WEB, "opt_outs": (), "holds_us": False}
    return protection(**{**pod, **facts}, config=config)


@pytest.mark.parametrize("qos", [BURSTABLE, BEST_EFFORT])
def test_an_ordinary_pod_may_be_paused(qos: QosClass) -> None:
    assert reason(qos=qos) is None


@pytest.mark.parametrize(
    ("facts", "words", "can_be_turned_off"),
    [
        pytest.param({"name": PodName("kube-system", "dns")}, "kube-system", True, id="kube-system"),
        pytest.param({"uid": STATIC}, "static pod", True, id="static-pod"),
        pytest.param({"qos": GUARANTEED}, "Guaranteed", True, id="guaranteed"),
        pytest.param({"name": None}, "name is unknown", True, id="unnamed"),
        pytest.param({"opt_outs": ("user.oomd_omit",)}, "user.oomd_omit", False, id="oomd_omit"),
        pytest.param({"opt_outs": ("user.oomd_avoid",)}, "user.oomd_avoid", False, id="oomd_avoid"),
        pytest.param({"holds_us": True}, "cgpause itself", False, id="our-own"),
    ],
)
def test_defaults_protect_and_nothing_allows_touching_ourselves_or_what_root_marked(
    facts: dict[str, Any], words: str, can_be_turned_off: bool
) -> None:
    assert words in str(reason(**facts))
    assert (reason(**facts, config=Config(protect=ALLOW_ALL)) is None) is can_be_turned_off
    if not can_be_turned_off:
        assert words in str(reason(**facts, config=Config(protect=ALLOW_ALL, pods=(PodRule("*/*", protect=False),))))


def test_a_pod_that_is_critical_for_the_node_is_protected_unless_a_rule_allows_a_pause() -> None:
    config = Config(protect=ALLOW_ALL)
    for qos in (BURSTABLE, BEST_EFFORT):
        assert reason(config, qos=qos, node_critical=True) == "critical for the node (oom_score_adj -997)"
    assert reason(replace(config, pods=(PodRule("*/*", protect=False),)), node_critical=True) is None
    assert reason(config, qos=GUARANTEED, node_critical=True) is None, "kubelet gives each of these the same value"


def test_a_rule_that_allows_wins_over_the_defaults() -> None:
    config = Config(pods=(PodRule("kube-system/dns", protect=False),))
    assert reason(config, uid=STATIC, qos=GUARANTEED, name=PodName("kube-system", "dns")) is None
    assert reason(name=PodName("kube-system", "other"), config=config) is not None


def test_the_first_rule_that_matches_wins() -> None:
    config = Config(pods=(PodRule("default/web", protect=False), PodRule("default/*", protect=True)))
    assert reason(config) is None
    assert reason(config, name=DB) == "rule 2 ([[pods]] match = 'default/*')"


def test_a_rule_for_some_classes_leaves_the_others_to_the_next() -> None:
    config = Config(pods=(PodRule("*/*", protect=False, qos=(BURSTABLE,)), PodRule("*/*", protect=True)))
    assert reason(config, qos=BURSTABLE) is None
    assert reason(config, qos=BEST_EFFORT) == "rule 2 ([[pods]] match = '*/*')"


@pytest.mark.parametrize(
    ("match", "matches"),
    [("default/web", True), ("*/web", True), ("d*/[vw]?b", True), ("default/we", False), ("web/*", False)],
)
def test_rules_are_globs_on_namespace_and_name(match: str, matches: bool) -> None:
    assert (reason(Config(pods=(PodRule(match, protect=True),))) is not None) is matches


OPT_IN = Config(
    protect=ProtectConfig(all=True, namespaces=()),
    pods=(PodRule("team/*", class_=PodClass.BATCH), PodRule("batch/*", protect=False)),
)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param(PodName("batch", "job"), None, id="of-a-rule-that-allows"),
        pytest.param(PodName("team", "job"), "no rule allows a pause (protect.all)", id="of-a-rule-that-gives-a-class"),
        pytest.param(WEB, "no rule allows a pause (protect.all)", id="of-no-rule"),
        pytest.param(None, "its name is unknown while rules depend on names", id="without-a-name"),
    ],
)
def test_in_an_allow_list_only_a_rule_allows_a_pause(name: PodName | None, words: str | None) -> None:
    assert reason(name=name, config=OPT_IN) == words


def test_namespaces_are_globs() -> None:
    config = Config(protect=ProtectConfig(namespaces=("kube-*",)))
    assert reason(name=PodName("kube-node-lease", "x"), config=config) is not None
    assert reason(config) is None


def test_a_pod_without_a_name_is_protected_while_protection_depends_on_names() -> None:
    ruled = Config(protect=ALLOW_ALL, pods=(PodRule("a/b", protect=False),))
    for config in (ruled, replace(OPT_IN, pods=())):
        assert reason(config, name=None) == "its name is unknown while rules depend on names"


# --- class and priority --------------------------------------------------------------------------------------------


def test_without_rules_the_kernel_decides_on_the_class_and_nobody_has_priority() -> None:
    assert ruled_class(BURSTABLE, WEB, Config()) is PodClass.AUTO
    assert priority(BURSTABLE, WEB, Config()) == 0


def test_for_each_of_the_three_the_first_rule_that_sets_it_wins() -> None:
    config = Config(
        pods=(
            PodRule("default/web", priority=7),
            PodRule("other/*", protect=True, class_=PodClass.SERVICE, priority=8),
            PodRule("default/*", class_=PodClass.BATCH, priority=9),
            PodRule("*/*", protect=True, class_=PodClass.SERVICE),
        )
    )
    assert priority(BURSTABLE, WEB, config) == 7
    assert ruled_class(BURSTABLE, WEB, config) is PodClass.BATCH
    assert reason(config) == "rule 4 ([[pods]] match = '*/*')"


def test_auto_ends_the_search_for_a_class_and_zero_that_for_a_priority() -> None:
    first = PodRule("default/web", class_=PodClass.AUTO, priority=0)
    config = Config(pods=(first, PodRule("*/*", class_=PodClass.SERVICE, priority=-3)))
    assert (ruled_class(BURSTABLE, WEB, config), priority(BURSTABLE, WEB, config)) == (PodClass.AUTO, 0)
    assert (ruled_class(BURSTABLE, DB, config), priority(BURSTABLE, DB, config)) == (PodClass.SERVICE, -3)


def test_a_pod_without_a_name_matches_no_rule() -> None:
    config = Config(protect=ALLOW_ALL, pods=(PodRule("*/*", protect=True, class_=PodClass.BATCH, priority=5),))
    assert ruled_class(BURSTABLE, None, config) is PodClass.AUTO
    assert priority(BURSTABLE, None, config) == 0
    assert reason(config, name=None) == "its name is unknown while rules depend on names"


# --- own words ------------------------------------------------------------------------------------------------------


def with_word(config: Config, word: OwnWord | None = OwnWord.PROTECT, name: PodName | None = WEB) -> str | None:
    return reason(config, name=name, word=word if heeds_word(BURSTABLE, name, config) else None)


OWN = "its own word (CGPAUSE=protect)"
UNHEEDED = ProtectConfig(own_word=False)
ALLOW = PodRule("default/*", protect=False)


@pytest.mark.parametrize(
    ("config", "protected"),
    [
        pytest.param(Config(), OWN, id="by-default"),
        pytest.param(Config(protect=UNHEEDED), None, id="not-heeded"),
        pytest.param(Config(pods=(ALLOW,)), OWN, id="declines-what-a-rule-allows"),
        pytest.param(Config(protect=ProtectConfig(all=True), pods=(ALLOW,)), OWN, id="keeps-out-of-an-allow-list"),
        pytest.param(Config(pods=(PodRule("default/*", protect=False, own_word=False),)), None, id="rule-ends-it"),
        pytest.param(Config(protect=UNHEEDED, pods=(PodRule("*/*", own_word=True),)), OWN, id="rule-heeds-it"),
        pytest.param(
            Config(pods=(PodRule("default/*", protect=True),)),
            "rule 1 ([[pods]] match = 'default/*')",
            id="a-rule-that-protects-is-named-first",
        ),
    ],
)
def test_a_pod_protects_itself_unless_the_operator_says_otherwise(config: Config, protected: str | None) -> None:
    assert with_word(config) == protected


@pytest.mark.parametrize("word", [None, *OwnWord])
def test_no_word_allows_a_pause(word: OwnWord | None) -> None:
    assert with_word(Config(protect=ProtectConfig(all=True)), word) is not None
    assert with_word(Config(), word, PodName("kube-system", "dns")) is not None
    assert with_word(Config(), word, None) == "its name is unknown while rules depend on names"


@pytest.mark.parametrize("ruled", PodClass)
@pytest.mark.parametrize("word", [None, *OwnWord])
def test_a_word_gives_a_class_only_where_no_rule_does(word: OwnWord | None, ruled: PodClass) -> None:
    found = pod_class(ruled, word)
    if ruled is not PodClass.AUTO:
        assert found is ruled
    else:
        assert found == (word if word in (OwnWord.BATCH, OwnWord.SERVICE) else PodClass.AUTO)
