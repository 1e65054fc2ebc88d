"""The shipped rules and dashboard use only existing metrics; tests/vm asks Prometheus itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from helpers.generated import current
from helpers.monitoring import MONITORING, alerts, dashboard, expressions

from cgpause.telemetry.metrics import BY_NAME, FAMILIES, MetricType

REPO = Path(__file__).parents[2]
MANUAL = REPO / "docs/metrics.md"
NAME = re.compile(r"\bcgpause_[a-z0-9_]+")
SUFFIXES = {MetricType.HISTOGRAM: ("_bucket", "_sum", "_count")}


def exported() -> dict[str, tuple[str, ...]]:
    """Return the name and labels of every series, as Prometheus scrapes it."""
    found = {}
    for family in FAMILIES:
        for suffix in SUFFIXES.get(family.kind, ("",)):
            found[family.name + suffix] = (*family.labels, *(("le",) if suffix == "_bucket" else ()))
    return found


def table() -> str:
    rows: list[tuple[str, ...]] = [("Metric", "Type", "Labels", "Meaning")]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        meaning = family.help
        if family.buckets:
            meaning += f" Buckets: {', '.join(f'{bound:g}' for bound in family.buckets)} s."
        rows.append((f"`{family.name}`", family.kind, labels, meaning))
    rows.insert(1, ("---",) * len(rows[0]))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def test_the_table_in_the_manual_is_current() -> None:
    text = MANUAL.read_text(encoding="utf-8")
    before, marker, rest = text.partition("<!-- metrics: ")
    comment, _, _ = rest.partition("\n")
    assert comment.endswith(" -->"), "else the page shows no table"
    _, end, after = rest.partition("<!-- end of metrics -->")
    expected = f"{before}{marker}{comment}\n\n{table()}\n{end}{after}"

    assert current(MANUAL, expected), "run: CGPAUSE_REGENERATE=1 pytest tests/release/test_monitoring.py"


def test_rules_tests_dashboard_and_manual_name_only_what_is_exported() -> None:
    for path in (MONITORING / "alerts.yml", MONITORING / "alerts_test.yml", MONITORING / "dashboard.json", MANUAL):
        named = set(NAME.findall(path.read_text()))
        assert len(named) > 5, path
        assert named <= exported().keys() | BY_NAME.keys(), path


def test_every_metric_has_its_place_on_the_dashboard() -> None:
    """A metric without a panel need not be exported."""
    shown = set(NAME.findall(" ".join(expressions())))
    families = {
        family.name for family in FAMILIES if any(name in shown for name in (family.name, f"{family.name}_bucket"))
    }

    assert BY_NAME.keys() - families == {"cgpause_pod_pauses_total"}


def test_expressions_name_labels_that_are_there() -> None:
    selectors = re.compile(r"(cgpause_[a-z0-9_]+)\{([^}]*)\}")
    for text in (alerts(), *expressions()):
        for name, inside in selectors.findall(text):
            labels = re.findall(r"(\w+)\s*(?:=|!|~)", inside)
            assert set(labels) <= {*exported()[name], "instance", "job"}, (name, inside)
    known = {label for labels in exported().values() for label in labels} | {"instance", "job"}
    for text in (alerts(), *expressions()):
        for inside in re.findall(r"\b(?:by|without|on|group_left) ?\(([^)]*)\)", text):
            assert set(re.split(r",\s*", inside)) <= known, text


def test_every_alert_is_in_the_manual_and_tested() -> None:
    named = re.findall(r"- alert: (\w+)", alerts())
    tested = set(re.findall(r'alertname="(\w+)"', (MONITORING / "alerts_test.yml").read_text()))

    assert len(named) == len(set(named)) > 5
    assert re.findall(r"^\| `(Cgpause\w+)` \|", MANUAL.read_text(), re.MULTILINE) == named
    assert tested == set(named)


def alert_rules() -> list[dict[str, Any]]:
    import yaml  # noqa: PLC0415 - not in the guests, whose tests import this module

    return [rule for group in yaml.safe_load(alerts())["groups"] for rule in group["rules"]]


def test_every_alert_leads_to_its_section_in_the_runbooks() -> None:
    sections = dict(re.findall(r"^## (\w+)\n\n(.*)$", (REPO / "docs/runbooks.md").read_text(), re.MULTILINE))
    rules = alert_rules()

    assert list(sections) == [rule["alert"] for rule in rules]
    assert all(text.startswith("**Meaning.** ") for text in sections.values())
    for rule in rules:
        url = f"https://runbooks.example/cgpause/runbooks.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == url


def test_only_what_needs_a_hand_at_once_is_critical() -> None:
    rules = alert_rules()
    critical = {rule["alert"] for rule in rules if rule["labels"]["severity"] == "critical"}

    assert critical == {"CgpauseDown", "CgpauseRestoreFailed"}


def test_on_many_nodes_the_dashboard_shows_a_choice() -> None:
    """A panel shows chosen nodes, one figure for all nodes, or ten of them; and no choice means all."""
    [nodes] = [entry for entry in dashboard()["templating"]["list"] if entry["name"] == "instance"]
    assert (nodes["multi"], nodes["includeAll"], nodes["current"]) == (True, False, {})
    for expression in expressions():
        chosen = expression.count('{instance=~"$instance"}') == len(NAME.findall(expression))
        assert chosen or re.match(r"(min|sum|count|(top|bottom)k)\(", expression), expression
        if not chosen:
            assert "$instance" not in expression


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    """Checked without Grafana: ids, places, data sources and variables."""
    found = dashboard()
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {entry["name"] for entry in found["templating"]["list"]} == {"datasource", "instance"}
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["description"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0
        for source in (panel["datasource"], *(target["datasource"] for target in panel["targets"])):
            assert source == {"type": "prometheus", "uid": "${datasource}"}
    for expression in expressions():
        assert set(re.findall(r"\$(\w+)", expression)) <= {"instance", "__rate_interval", "__range"}
    assert "id" not in found, "Grafana gives it one"
