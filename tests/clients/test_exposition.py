"""The gateway exposes what the dashboards ask for as it is recorded for tests that have no gateway."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from scripts.dashboards.gateway import METRICS
from scripts.recorded_gateway import recorded
from tests.deploy.live import GATEWAY


def families(text: str) -> dict[str, tuple[str, set[str]]]:
    """Kind and labels of every family that is shown."""
    shown = {metric.name for metric in METRICS}
    return {
        family.name: (family.type, {label for sample in family.samples for label in sample.labels})
        for family in text_string_to_metric_families(text)
        if family.name in shown
    }


def test_the_recording_is_what_this_gateway_exposes() -> None:
    assert families(recorded()) == families(GATEWAY.read_text())
