"""deploy/kubernetes/replicas: schemas, and that what many machines need leads where it should."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from specsplit.observe.metric import Service
from specsplit.observe.metric_table import metrics_of
from specsplit.settings.addresses import Addresses
from tests.deploy.test_kubernetes import (
    KUBERNETES,
    ROOT,
    WITHOUT_SCHEMA,
    WORKLOADS,
    assert_valid,
    container,
    kustomization,
    load,
    name_of,
    ports,
    settings,
)

FOLDER = KUBERNETES / "replicas"
WHOLE = kustomization(FOLDER)
OBJECTS = load(FOLDER, [name for name in WHOLE["resources"] if name.endswith(".yaml")])
PATCHES = {each["metadata"]["name"]: each for each in load(FOLDER, [patch["path"] for patch in WHOLE["patches"]])}
LABELS = {name: each["spec"]["template"]["metadata"]["labels"] for name, each in WORKLOADS.items()}


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for each in OBJECTS if each["kind"] == kind]


@pytest.mark.parametrize("manifest", OBJECTS, ids=name_of)
def test_a_manifest_has_its_schema_with_no_unknown_field(manifest: dict[str, Any]) -> None:
    assert_valid(manifest)


def test_every_file_is_part_of_the_kustomization() -> None:
    used = {*WHOLE["resources"], *(patch["path"] for patch in WHOLE["patches"])}
    assert {file.name for file in FOLDER.glob("*.yaml")} - {"kustomization.yaml"} == used - {"../base"}


@pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl here, which brings kustomize")
def test_kustomize_renders_it_and_the_result_has_its_schemas() -> None:
    command = ["kubectl", "kustomize", str(FOLDER)]
    rendered = [*yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout)]
    for manifest in rendered:
        if manifest["kind"] not in WITHOUT_SCHEMA:
            assert_valid(manifest)
    found = {each["metadata"]["name"]: each for each in rendered if each["kind"] in ("Deployment", "StatefulSet")}
    assert found["coordinator"]["spec"]["replicas"] == 2
    assert found["coordinator"]["spec"]["strategy"]["type"] == "RollingUpdate"
    assert all("replicas" not in found[name]["spec"] for name in ("verifier", "drafter")), "two would say how many"


def test_members_join_every_coordinator_by_a_name_that_has_all_their_addresses() -> None:
    (service,) = of_kind("Service")
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == LABELS["coordinator"]
    offered = {port["name"]: port for port in service["spec"]["ports"]}
    for name in ("verifier", "drafter"):
        found = settings(name, container(WORKLOADS[name]), container(PATCHES[name])).resolved()["coordinator"]
        assert str(found) == f"dns:///{service['metadata']['name']}:{offered['members']['port']}"
        assert Addresses.read("coordinator", str(found)).names == (f"coordinators:{offered['members']['port']}",)
    for port in offered.values():
        assert ports(WORKLOADS["coordinator"])[port["targetPort"]] == port["port"]


def test_pods_of_a_kind_are_spread_and_not_all_taken_at_once() -> None:
    for name, labels in LABELS.items():
        (spread,) = PATCHES[name]["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"] == labels
    budgets = {each["metadata"]["name"]: each["spec"] for each in of_kind("PodDisruptionBudget")}
    assert {name: spec["selector"]["matchLabels"] for name, spec in budgets.items()} == LABELS
    assert {spec["maxUnavailable"] for spec in budgets.values()} == {1}


def test_drafters_are_near_verifiers_and_follow_a_metric_that_the_documented_rule_makes_of_ours() -> None:
    affinity = PATCHES["drafter"]["spec"]["template"]["spec"]["affinity"]["podAffinity"]
    (near,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert near["podAffinityTerm"]["labelSelector"]["matchLabels"] == LABELS["verifier"]
    (scaler,) = of_kind("HorizontalPodAutoscaler")
    target = scaler["spec"]["scaleTargetRef"]
    assert WORKLOADS[target["name"]]["kind"] == target["kind"] == "Deployment"
    (metric,) = scaler["spec"]["metrics"]
    rules = (ROOT / "docs" / "operations.md").read_text()
    (query,) = re.findall(rf"as: {metric['external']['metric']['name']}.*?metricsQuery: ([^\n]+)", rules, re.DOTALL)
    used = set(re.findall(r"specsplit_\w+", query))
    assert used == {"specsplit_misses_total", "specsplit_hits_total"}
    assert {name.removesuffix("_total") for name in used} <= {each.name for each in metrics_of(Service.VERIFIER)}
