"""docs/metrics.md is what the table and the rules give."""

from __future__ import annotations

from scripts.print_metrics import PAGE, page
from specsplit.observe.metric_table import TABLE


def test_the_metrics_page_is_what_the_table_gives() -> None:
    assert PAGE.read_text() == page(), "run .venv/bin/python -m scripts.print_metrics"


def test_the_page_has_every_metric() -> None:
    text = page()
    assert [metric.name for metric in TABLE if f"`{metric.name}" not in text] == []
