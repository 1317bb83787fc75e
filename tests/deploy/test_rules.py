"""The rules: promtool accepts them, every alert is tested both ways and says what to do."""

from __future__ import annotations

from pathlib import Path

import yaml

from scripts.dashboards.expressions import RULES, rules
from tests.deploy.live import FOLDER, configuration, needs_promtool, promtool

ALERTS = [rule for rule in rules() if "alert" in rule]
JOBS = ("specsplit-coordinator", "specsplit-verifier", "specsplit-drafter", "specsplit-gateway")


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    for path in RULES.glob("*.yml"):
        promtool("check", "rules", path)


@needs_promtool
def test_the_alerts_fire_when_they_must_and_only_then() -> None:
    for path in (FOLDER / "tests").glob("*.yml"):
        promtool("test", "rules", path)


@needs_promtool
def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    promtool("check", "config", FOLDER / "prometheus.yml")
    (tmp_path / "prometheus.yml").write_text(configuration({job: ["127.0.0.1:9464"] for job in JOBS}))
    promtool("check", "config", tmp_path / "prometheus.yml")


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    for rule in ALERTS:
        assert rule["alert"].startswith("Specsplit")
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert rule["annotations"].keys() == {"summary", "meaning", "action"}, rule["alert"]


def test_every_alert_has_a_unit_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases: list[tuple[str, bool]] = []
    for path in (FOLDER / "tests").glob("*.yml"):
        for test in yaml.safe_load(path.read_text())["tests"]:
            cases += [(case["alertname"], bool(case["exp_alerts"])) for case in test.get("alert_rule_test", [])]
    fired = {name for name, fires in cases if fires}
    silent = {name for name, fires in cases if not fires}
    names = {rule["alert"] for rule in ALERTS}
    assert fired == names
    assert silent == names
