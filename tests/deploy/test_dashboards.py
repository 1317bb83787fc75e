"""The dashboards: what the code gives, over metrics that exist, with units, descriptions and ways to the traces."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from scripts.dashboards.__main__ import FOLDER, stale, texts
from scripts.dashboards.expressions import of_dashboards, of_rules, unfiltered
from scripts.dashboards.gateway import METRICS
from scripts.dashboards.overview import BLAMELESS
from scripts.dashboards.panels import TRACES
from scripts.printed import ROOT
from specsplit.observe.metric_table import CODE, TABLE
from specsplit.observe.span_table import SPANS
from tests.deploy.live import GATEWAY, needs_promtool, promtool

NAME = re.compile(r"\bspecsplit_\w+")
MATCHER = re.compile(r"(\w+)(?:=~|!~|!=|=)\"([^\"]*)\"")
EXPRESSIONS = [*of_dashboards(), *of_rules()]
PAGES: list[dict[str, Any]] = [json.loads(text) for text in texts().values()]
PANELS: list[tuple[str, dict[str, Any]]] = [
    (f"{page['title']}: {panel['title']}", panel)
    for page in PAGES
    for panel in page["panels"]
    if panel["type"] != "row"
]
FAMILIES = [*text_string_to_metric_families(GATEWAY.read_text())]
"""What the gateway exposes, as recorded."""
PROVISIONED = ROOT / "deploy" / "grafana" / "provisioning"


def named(text: str) -> set[str]:
    return set(NAME.findall(text))


def test_the_committed_dashboards_are_what_the_code_gives() -> None:
    assert stale() == [], "run .venv/bin/python -m scripts.dashboards"
    assert len(list(FOLDER.glob("*.json"))) == 3


def test_every_metric_is_on_a_dashboard_or_in_a_rule_or_unused_on_purpose() -> None:
    shown = {name for expression in EXPRESSIONS for name in named(expression.text)}
    used = {metric.name for metric in TABLE if shown & set(metric.series)}
    unused = {metric.name for metric in TABLE if metric.unused}
    assert used | unused == {metric.name for metric in TABLE}
    assert used & unused == set()


def test_every_series_in_a_query_is_one_of_the_table() -> None:
    series = {name for metric in TABLE for name in metric.series}
    assert {name for expression in EXPRESSIONS for name in named(expression.text)} <= series


def test_every_label_value_in_a_query_is_one_of_the_table() -> None:
    known = {(label.name, value) for metric in TABLE for label in metric.labels for value in label.values}
    labels = {name for name, _ in known}
    for expression in EXPRESSIONS:
        for label, values in MATCHER.findall(expression.text):
            if label in labels:
                assert {(label, value) for value in values.split("|")} <= known, expression


def test_errors_are_the_same_in_the_rules_and_on_the_dashboards() -> None:
    assert set(BLAMELESS.split("|")) < set(CODE.values)
    in_rules = {values for each in of_rules() for label, values in MATCHER.findall(each.text) if "|" in values}
    assert in_rules == {BLAMELESS}


def test_what_is_asked_of_the_gateway_is_what_it_exposes() -> None:
    exposed = {name: kind.value for metric in METRICS for name in metric.series for kind in [metric.kind]}
    recorded = {sample.name: family.type for family in FAMILIES for sample in family.samples}
    asked = {name for expression in EXPRESSIONS for name in re.findall(r"\bsmg_\w+", expression.text)}
    assert asked <= exposed.keys() and exposed.items() <= recorded.items()
    for metric in METRICS:
        assert asked & set(metric.series), f"{metric.name} is on no panel"


def test_a_label_that_the_gateway_is_asked_by_is_one_of_that_metric() -> None:
    labels = {sample.name: set(sample.labels) for family in FAMILIES for sample in family.samples}
    for expression in EXPRESSIONS:
        for name, matchers in re.findall(r"\b(smg_\w+)(?:\{([^}]*)\})?", expression.text):
            by = re.findall(r"sum by \(([^)]*)\)", expression.text)
            used = {label for label, _ in MATCHER.findall(matchers)} | {
                each for group in by for each in group.split(", ")
            }
            assert used <= labels[name], expression


def test_the_recorded_gateway_is_of_the_version_that_is_installed_and_tried() -> None:
    version = GATEWAY.read_text().splitlines()[0].split()[2].rstrip(",")
    assert f"smg=={version} " in (ROOT / ".ci" / "clients").read_text()
    assert f"ARG SMG={version}\n" in (ROOT / "Dockerfile").read_text()


@needs_promtool
def test_every_expression_parses(tmp_path: Path) -> None:
    texts = [each.filled("1m") for each in of_dashboards()] + [unfiltered(each.text) for each in of_rules()]
    rules = [{"record": f"expression_{number}", "expr": text} for number, text in enumerate(texts)]
    path = tmp_path / "expressions.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "expressions", "rules": rules}]}))
    promtool("check", "rules", path)


@pytest.mark.parametrize(("where", "panel"), PANELS, ids=[where for where, _ in PANELS])
def test_a_panel_says_what_it_shows_and_in_what_unit(where: str, panel: dict[str, Any]) -> None:
    assert panel["description"].endswith("."), where
    unit = panel["options"]["yAxis"]["unit"] if panel["type"] == "heatmap" else panel["fieldConfig"]["defaults"]["unit"]
    assert unit, where
    assert panel["targets"], where


def test_panels_fill_the_width_and_never_overlap() -> None:
    for page in PAGES:
        taken: set[tuple[int, int]] = set()
        for panel in page["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken, panel["title"]
            taken |= cells
        assert len(taken) == 24 * (1 + max(y for _, y in taken)), page["title"]


def test_numbers_of_panels_are_unique() -> None:
    for page in PAGES:
        numbers = [panel["id"] for panel in page["panels"]]
        assert len(set(numbers)) == len(numbers) and 0 not in numbers


def test_a_link_to_traces_asks_the_provisioned_store_for_a_span_that_there_is() -> None:
    sources = yaml.safe_load((PROVISIONED / "datasources" / "specsplit.yml").read_text())["datasources"]
    assert {source["uid"]: source["type"] for source in sources}[TRACES] == "tempo"
    spans = {span.name for span in SPANS}
    linked: set[str] = set()
    for where, panel in PANELS:
        for link in panel.get("links") or ():
            pane = json.loads(unquote(link["url"].partition("panes=")[2]))["traces"]
            assert pane["range"] == {"from": "${__from}", "to": "${__to}"}, where
            linked |= set(re.findall(r'name = "(\w+)"', pane["queries"][0]["query"]))
    assert linked and linked <= spans


def test_panels_with_exemplars_are_over_metrics_that_leave_some() -> None:
    leave = {name for metric in TABLE if metric.exemplars for name in metric.series}
    for where, panel in PANELS:
        for target in panel["targets"]:
            assert not target.get("exemplar") or named(target["expr"]) <= leave, where
