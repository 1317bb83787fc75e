"""Every expression that the dashboards and the rules hold, and whether a live Prometheus has data for each.

`python -m scripts.dashboards.expressions URL` asks the Prometheus at URL and prints those without.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from scripts.printed import ROOT

DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"
RULES = ROOT / "deploy" / "prometheus" / "rules"
VARIABLES: Mapping[str, str] = {"$verifier": ".*", "$drafter": ".*"}
"""What stands for "all" in Grafana."""
_COMPARISON = re.compile(r"(==|!=|<=|>=|<|>)(?!\s*bool)")
_BRACES = re.compile(r"(\{[^}]*\})")
_VARIABLE_QUERY = re.compile(r"label_values\((\w+), \w+\)")


@dataclass(frozen=True)
class Expression:
    """One query and who asks it."""

    where: str
    text: str

    def filled(self, window: str) -> str:
        """As Grafana sends it, with rates over `window`."""
        text = self.text.replace("$__rate_interval", window)
        for name, value in VARIABLES.items():
            text = text.replace(name, value)
        return text


def of_dashboards() -> Iterator[Expression]:
    """Panels and variables of the committed dashboards."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        page: dict[str, Any] = json.loads(path.read_text())
        for variable in page["templating"]["list"]:
            found = _VARIABLE_QUERY.fullmatch(str(variable.get("query", "")))
            if found:
                yield Expression(f"{page['title']}, variable {variable['name']}", found[1])
        for panel in page["panels"]:
            for target in panel.get("targets", []):
                yield Expression(f"{page['title']}, {panel['title']}, {target['refId']}", target["expr"])


def rules() -> Iterator[dict[str, Any]]:
    """Every rule as it stands in its file: recordings and alerts."""
    for path in sorted(RULES.glob("*.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def of_rules() -> Iterator[Expression]:
    """Recordings and alerts."""
    for rule in rules():
        yield Expression(str(rule.get("alert") or rule.get("record")), rule["expr"])


def unfiltered(text: str) -> str:
    """An expression whose comparisons give 0 or 1 in place of nothing: an alert that does not fire has data all the same."""
    parts = _BRACES.split(text)
    return "".join(part if part.startswith("{") else _COMPARISON.sub(r"\1 bool", part) for part in parts)


def check_expressions(prometheus_url: str, window: str = "1m") -> list[str]:
    """Run every expression of every panel and rule against a live Prometheus: one sentence for each without data.

    `window` is what rates are taken over: a few scrapes at least. Nothing but NaN (0 / 0) is no data.
    """
    asked = [(each, each.filled(window)) for each in of_dashboards()]
    asked += [(each, unfiltered(each.text)) for each in of_rules()]
    answers = {text: _problem(prometheus_url, text) for _, text in asked}
    return [f"{each.where}: {answers[text]}: {text}" for each, text in asked if answers[text]]


def _problem(prometheus_url: str, text: str) -> str:
    try:
        with urlopen(f"{prometheus_url}/api/v1/query", urlencode({"query": text}).encode(), timeout=30) as reply:
            result: list[dict[str, Any]] = json.load(reply)["data"]["result"]
    except HTTPError as error:
        return str(json.load(error)["error"])
    if not result:
        return "no series"
    return "only NaN" if all(math.isnan(float(series["value"][1])) for series in result) else ""


if __name__ == "__main__":
    problems = check_expressions(sys.argv[1])
    print("\n".join(problems) or "every expression has data")
    raise SystemExit(1 if problems else 0)
