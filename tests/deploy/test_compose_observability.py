"""The profile `observability`: what one container is told of another is where that other one is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from specsplit.cli.serve import SETTINGS
from tests.support.command import run

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def load(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


SERVICES = load(ROOT / "docker-compose.yml")["services"]
COLLECTOR, STORE = load(DEPLOY / "otel" / "collector.yaml"), load(DEPLOY / "otel" / "tempo.yaml")


def port_of(address: str) -> str:
    return address.rpartition(":")[2]


def test_every_service_sends_its_spans_to_the_collector() -> None:
    takes = port_of(COLLECTOR["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"])
    for name in SETTINGS:
        sends = SERVICES[name]["environment"][f"SPECSPLIT_{name.upper()}_TRACE_ENDPOINT"]
        assert sends == f"collector:{takes}"
    assert "collector" in SERVICES


def test_the_collector_sends_them_on_to_the_store() -> None:
    takes = port_of(STORE["distributor"]["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"])
    (pipeline,) = COLLECTOR["service"]["pipelines"].values()
    (exporter,) = pipeline["exporters"]
    assert COLLECTOR["exporters"][exporter]["endpoint"] == f"traces:{takes}"
    assert set(pipeline["receivers"]) <= set(COLLECTOR["receivers"])
    assert set(pipeline["processors"]) <= set(COLLECTOR["processors"])
    assert "traces" in SERVICES
    (data,) = SERVICES["traces"]["tmpfs"]
    assert STORE["storage"]["trace"]["local"]["path"].startswith(f"{data}/")
    assert STORE["storage"]["trace"]["wal"]["path"].startswith(f"{data}/")


def test_prometheus_looks_for_every_service_at_the_port_of_its_metrics() -> None:
    jobs = load(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
    found = {name: look["port"] for job in jobs for look in job["dns_sd_configs"] for name in look["names"]}
    listens = {name: SERVICES[name]["environment"][f"SPECSPLIT_{name.upper()}_METRICS_LISTEN"] for name in SETTINGS}
    stage = (ROOT / "Dockerfile").read_text().partition(" AS gateway\n")[2].partition("\nFROM ")[0]
    assert f"--prometheus-host :: --prometheus-port {found.pop('gateway')} " in stage
    assert {name: f"[::]:{port}" for name, port in found.items()} == listens


def test_grafana_finds_its_sources_and_dashboards_where_they_are() -> None:
    grafana = SERVICES["grafana"]
    assert port_of(grafana["environment"]["PROMETHEUS_URL"]) == port_of(SERVICES["prometheus"]["ports"][0])
    assert grafana["environment"]["TRACES_URL"] == f"http://traces:{STORE['server']['http_listen_port']}"
    provisioning = DEPLOY / "grafana" / "provisioning"
    (provider,) = load(next((provisioning / "dashboards").iterdir()))["providers"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"]
    sources = (provisioning / "datasources" / "specsplit.yml").read_text()
    assert all(f"${{{variable}}}" in sources for variable in ("PROMETHEUS_URL", "TRACES_URL"))


def test_what_turns_tracing_on_is_a_command_that_there_is(tmp_path: Path) -> None:
    token = tmp_path / "operator.token"
    token.write_text("secret")
    program, *arguments = SERVICES["tracing"]["entrypoint"]
    assert program == "specsplit"
    here = {"coordinator:50049": "127.0.0.1:9", "/secrets/operators/operator.token": str(token)}
    given = [here.get(str(each), str(each)) for each in arguments]
    assert len({*arguments} - {*given}) == 2, "it shows an operator's token at the members' port"
    assert run(*given) == 1, "nobody listens there; a wrong option would be 2"
