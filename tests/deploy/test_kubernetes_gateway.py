"""deploy/kubernetes/gateway: schemas, and that names, ports and rights lead where they should and no further."""

from __future__ import annotations

import re
from typing import Any

import pytest

from specsplit import __version__
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
    of_kind,
    pod,
    ports,
    settings,
)

FOLDER = KUBERNETES / "gateway"
WHOLE = kustomization(FOLDER)
OBJECTS = load(FOLDER, [name for name in WHOLE["resources"] if name.endswith(".yaml")])
(GATEWAY,) = [each for each in OBJECTS if each["kind"] == "Deployment"]
LABELS: dict[str, str] = GATEWAY["spec"]["template"]["metadata"]["labels"]


def named(kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in OBJECTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def option(name: str) -> str:
    (value,) = [each.partition("=")[2] for each in container(GATEWAY)["args"] if each.startswith(f"--{name}=")]
    return value


@pytest.mark.parametrize("manifest", [each for each in OBJECTS if each["kind"] not in WITHOUT_SCHEMA], ids=name_of)
def test_a_manifest_has_its_schema_with_no_unknown_field(manifest: dict[str, Any]) -> None:
    assert_valid(manifest)


def test_every_file_is_part_of_the_kustomization_and_the_image_is_of_this_version() -> None:
    used = {*WHOLE["resources"], *(patch["path"] for patch in WHOLE["patches"])}
    assert {file.name for file in FOLDER.glob("*.yaml")} - {"kustomization.yaml"} == used - {"../base"}
    assert WHOLE["images"] == [{"name": container(GATEWAY)["image"], "newTag": __version__}]


def test_the_coordinator_takes_callers_without_a_token_since_the_gateway_shows_none() -> None:
    (patch,) = load(FOLDER, ["coordinator.yaml"])
    found = settings("coordinator", container(WORKLOADS["coordinator"]), container(patch)).resolved()
    assert found["anonymous_clients"] is True


def test_it_looks_for_the_coordinator_by_labels_that_it_has_at_the_port_for_clients() -> None:
    args = container(GATEWAY)["args"]
    at = args.index("--selector") + 1
    wanted = dict(each.split("=") for each in args[at : at + 2])
    assert wanted == WORKLOADS["coordinator"]["spec"]["template"]["metadata"]["labels"]
    assert int(option("service-discovery-port")) == ports(WORKLOADS["coordinator"])["grpc"]


def test_it_may_ask_which_pods_there_are_and_nothing_else() -> None:
    (rule,) = named("Role", "gateway")["rules"]
    assert rule == {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    binding = named("RoleBinding", "gateway")
    assert binding["roleRef"]["name"] == "gateway"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": pod(GATEWAY)["serviceAccountName"]}]
    assert named("ServiceAccount", "gateway")["automountServiceAccountToken"] is False
    assert not [each for each in OBJECTS if each["kind"].startswith("Cluster")]


def test_ports_of_options_probes_services_and_policies_are_those_of_the_pod() -> None:
    numbers = ports(GATEWAY)
    assert [option(name) for name in ("port", "health-check-port", "prometheus-port")] == [
        str(numbers[name]) for name in ("http", "health", "metrics")
    ]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container(GATEWAY)[probe]["httpGet"]["port"] in numbers
    assert named("Service", "gateway")["spec"]["ports"][0]["targetPort"] in numbers
    assert named("PodMonitor", "specsplit-gateway")["spec"]["podMetricsEndpoints"][0]["port"] in numbers
    assert f"EXPOSE {numbers['http']} {numbers['metrics']}\n" in (ROOT / "Dockerfile").read_text()
    assert pod(GATEWAY)["terminationGracePeriodSeconds"] > float(option("shutdown-grace-period-secs"))


def test_it_is_none_of_those_that_members_let_in_and_reaches_the_coordinators_port_for_clients() -> None:
    for policy in of_kind("NetworkPolicy"):
        for rule in policy["spec"]["ingress"]:
            for peer in rule["from"]:
                selected = peer.get("podSelector", {}).get("matchLabels", {"": "no pods"})
                assert not selected.items() <= LABELS.items(), policy["metadata"]["name"]
    way = named("NetworkPolicy", "gateway-to-coordinator")["spec"]
    assert way["podSelector"]["matchLabels"] == WORKLOADS["coordinator"]["spec"]["template"]["metadata"]["labels"]
    ((peer,),) = [rule["from"] for rule in way["ingress"]]
    assert peer["podSelector"]["matchLabels"].items() <= LABELS.items()
    assert [port["port"] for rule in way["ingress"] for port in rule["ports"]] == ["grpc"]


def test_selectors_find_its_pods() -> None:
    assert GATEWAY["spec"]["selector"]["matchLabels"] == LABELS == named("Service", "gateway")["spec"]["selector"]
    for kind, name, key in (
        ("PodMonitor", "specsplit-gateway", "selector"),
        ("NetworkPolicy", "gateway", "podSelector"),
    ):
        assert named(kind, name)["spec"][key]["matchLabels"].items() <= LABELS.items()


def test_it_does_not_run_as_root_and_its_key_comes_from_a_secret() -> None:
    base = WORKLOADS["coordinator"]
    assert pod(GATEWAY)["securityContext"] == pod(base)["securityContext"]
    assert container(GATEWAY)["securityContext"] == container(base)["securityContext"]
    variable = re.fullmatch(r"\$\((\w+)\)", option("api-key"))
    assert variable is not None
    (entry,) = [each for each in container(GATEWAY)["env"] if each["name"] == variable[1]]
    assert "secretKeyRef" in entry["valueFrom"]
