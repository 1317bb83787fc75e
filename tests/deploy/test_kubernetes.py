"""deploy/kubernetes: every object has the schema that Kubernetes gives it, and names, ports and metrics lead somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from specsplit import __version__
from specsplit.cli.serve import SETTINGS
from specsplit.observe.metric import Kind, Service
from specsplit.observe.metric_table import metrics_of
from specsplit.settings import Settings
from tests.deploy.overlays import merged, rendered

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.30", "1.37")
"""Of Kubernetes: the oldest and the newest that the manifests are checked against."""

Object = dict[str, Any]


def load(folder: Path, names: list[str]) -> list[Object]:
    return [each for name in names for each in yaml.safe_load_all((folder / name).read_text())]


def kustomization(folder: Path) -> Object:
    return yaml.safe_load((folder / "kustomization.yaml").read_text())


BASE = load(KUBERNETES / "base", kustomization(KUBERNETES / "base")["resources"])
WORKLOADS = {each["metadata"]["name"]: each for each in BASE if each["kind"] in ("Deployment", "StatefulSet")}
WITHOUT_SCHEMA = {"PodMonitor"}
"""Kinds that Kubernetes itself does not have; what is checked of them stands below."""


def of_kind(kind: str) -> list[Object]:
    return [each for each in BASE if each["kind"] == kind]


def pod(workload: Object) -> Object:
    return workload["spec"]["template"]["spec"]


def container(workload: Object) -> Object:
    (only,) = pod(workload)["containers"]
    return only


def environment(*containers: Object) -> dict[str, str]:
    """Variables of a container, the later files' over the earlier ones', with references to other variables filled in."""
    entries = {entry["name"]: entry for each in containers for entry in each.get("env", ())}
    values = {name: entry.get("value", f"10.0.0.1-{name}") for name, entry in entries.items()}
    return {name: re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], value) for name, value in values.items()}


def settings(service: str, *containers: Object) -> Settings:
    prefix = f"SPECSPLIT_{service.upper()}_"
    own = {name: value for name, value in environment(*containers).items() if name.startswith("SPECSPLIT_")}
    assert all(name.startswith(prefix) for name in own)
    listen = f"[::]:{ports(WORKLOADS[service])['grpc']}"  # the image's
    values = {name.removeprefix(prefix).lower(): own[name] for name in own}
    return SETTINGS[service].model_validate({"listen": listen, **values})


def ports(workload: Object) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container(workload)["ports"]}


def name_of(manifest: Object) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def assert_valid(manifest: Object) -> None:
    for version in VERSIONS:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("manifest", [each for each in BASE if each["kind"] not in WITHOUT_SCHEMA], ids=name_of)
def test_a_manifest_has_its_schema_with_no_unknown_field(manifest: Object) -> None:
    assert_valid(manifest)


def test_a_field_that_the_schema_does_not_have_would_be_found() -> None:
    wrong = {**of_kind("Service")[0], "specification": {}}
    with pytest.raises(kubernetes_validate.ValidationError, match="specification"):
        assert_valid(wrong)


@pytest.mark.parametrize("overlay", sorted(file.parent.name for file in KUBERNETES.glob("*/kustomization.yaml")))
def test_every_overlay_has_its_schemas_with_its_patches_in_place(overlay: str) -> None:
    for manifest in rendered(KUBERNETES / overlay):
        if manifest["kind"] not in WITHOUT_SCHEMA:
            assert_valid(manifest)


def test_a_patch_worked_by_hand() -> None:
    base = {"a": 1, "b": 2, "env": [{"name": "x", "value": "1"}, {"name": "y", "value": "2"}], "args": ["old"]}
    change = {"b": None, "env": [{"name": "y", "value": "3"}, {"name": "z", "value": "4"}], "args": ["new"]}
    env = [{"name": "x", "value": "1"}, {"name": "y", "value": "3"}, {"name": "z", "value": "4"}]
    assert merged(base, change) == {"a": 1, "env": env, "args": ["new"]}
    wrong = merged(WORKLOADS["coordinator"], {"spec": {"template": {"spec": {"topologySpread": []}}}})
    with pytest.raises(kubernetes_validate.ValidationError, match="topologySpread"):
        assert_valid(wrong)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl here, which brings kustomize")
@pytest.mark.parametrize("overlay", ["base", "gpu", "ranks"])
def test_kustomize_renders_it_and_the_result_has_its_schemas(overlay: str) -> None:
    command = ["kubectl", "kustomize", str(KUBERNETES / overlay)]
    rendered = [
        each
        for each in yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        if each["kind"] not in WITHOUT_SCHEMA
    ]
    missing = WITHOUT_SCHEMA | ({"HorizontalPodAutoscaler"} if overlay == "ranks" else set())
    assert sorted(map(name_of, rendered)) == sorted(name_of(each) for each in BASE if each["kind"] not in missing)
    for manifest in rendered:
        assert_valid(manifest)
    images = {
        each["metadata"]["name"]: container(each)["image"]
        for each in rendered
        if each["kind"] in ("Deployment", "StatefulSet")
    }
    suffix = "-gpu" if overlay == "gpu" else ""
    assert images == {
        "coordinator": f"specsplit-coordinator:{__version__}",
        "verifier": f"specsplit-verifier:{__version__}{suffix}",
        "drafter": f"specsplit-drafter:{__version__}{suffix}",
    }


def test_every_file_of_the_folder_is_part_of_a_kustomization() -> None:
    for folder in (KUBERNETES / "base", KUBERNETES / "gpu", KUBERNETES / "ranks"):
        whole = kustomization(folder)
        named = {*whole["resources"], *(patch["path"] for patch in whole.get("patches", ()))}
        assert {file.name for file in folder.glob("*.yaml")} - {"kustomization.yaml"} == {
            name for name in named if name.endswith(".yaml")
        }


@pytest.mark.parametrize("service", SETTINGS)
def test_every_variable_of_a_service_is_a_setting_with_a_value_that_it_takes(service: str) -> None:
    found = settings(service, container(WORKLOADS[service])).resolved()
    assert found["metrics_listen"] == f"[::]:{ports(WORKLOADS[service])['metrics']}"
    drain_s = found["drain_s"]
    assert isinstance(drain_s, float)
    assert pod(WORKLOADS[service])["terminationGracePeriodSeconds"] > drain_s, "killed before it could drain"


@pytest.mark.parametrize(
    ("pod_ip", "advertised"), [("10.244.0.7", "10.244.0.7:50052"), ("fd00:10:244::7", "[fd00:10:244::7]:50052")]
)
def test_a_drafter_advertises_the_address_of_its_pod_of_either_family(pod_ip: str, advertised: str) -> None:
    drafter = container(WORKLOADS["drafter"])
    at = {"env": [{"name": "POD_IP", "value": pod_ip}]}
    assert settings("drafter", drafter, at).resolved()["advertise"] == advertised


@pytest.mark.parametrize("service", ["verifier", "drafter"])
def test_on_a_gpu_the_variables_are_settings_too_and_each_pod_has_one_gpu(service: str) -> None:
    (patch,) = load(KUBERNETES / "gpu", [f"{service}.yaml"])
    base = WORKLOADS[service]
    assert (patch["kind"], patch["metadata"]["name"]) == (base["kind"], service)
    found = settings(service, container(base), container(patch)).resolved()
    assert (found["device"], found["dtype"], found["attention"]) == ("cuda", "bfloat16", "flashinfer")
    assert container(patch)["resources"]["limits"]["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize("service", SETTINGS)
def test_probes_ask_the_port_that_the_service_listens_on(service: str) -> None:
    workload = container(WORKLOADS[service])
    assert f"EXPOSE {ports(WORKLOADS[service])['grpc']}\n" in (ROOT / "Dockerfile").read_text()
    for probe in ("startupProbe", "readinessProbe"):
        assert workload[probe]["grpc"]["port"] == ports(WORKLOADS[service])["grpc"]
    assert workload["livenessProbe"]["tcpSocket"]["port"] == "grpc", (
        "a drain is NOT_SERVING, and no reason to be killed"
    )


def test_selectors_find_the_pods_that_they_mean() -> None:
    for service, workload in WORKLOADS.items():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"] == labels
        assert labels["app.kubernetes.io/component"] == service
    for service in of_kind("Service"):
        name = service["metadata"]["name"]
        assert service["spec"]["selector"] == WORKLOADS[name]["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["ports"][0]["targetPort"] in ports(WORKLOADS[name])


def test_members_dial_names_that_exist() -> None:
    services = {
        each["metadata"]["name"]: {port["name"]: port["port"] for port in each["spec"]["ports"]}
        for each in of_kind("Service")
    }
    for service in ("verifier", "drafter"):
        host, _, port = environment(container(WORKLOADS[service]))[
            f"SPECSPLIT_{service.upper()}_COORDINATOR"
        ].partition(":")
        assert services[host]["members"] == int(port) == ports(WORKLOADS[host])["members"]
    assert WORKLOADS["verifier"]["spec"]["serviceName"] in services


def test_no_pod_runs_as_root_or_writes_to_its_image() -> None:
    for workload in WORKLOADS.values():
        assert pod(workload)["securityContext"]["runAsNonRoot"] is True
        assert container(workload)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_prometheus_scrapes_every_pod_at_a_port_that_it_has() -> None:
    (monitor,) = of_kind("PodMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for workload in WORKLOADS.values():
        assert wanted <= workload["spec"]["template"]["metadata"]["labels"].items()
        assert endpoint["port"] in ports(workload)


def test_the_autoscaler_follows_metrics_of_the_coordinator_and_scales_what_is_there() -> None:
    (scaler,) = of_kind("HorizontalPodAutoscaler")
    target = scaler["spec"]["scaleTargetRef"]
    assert WORKLOADS[target["name"]]["kind"] == target["kind"]
    assert "replicas" not in WORKLOADS[target["name"]]["spec"], "two would say how many"
    gauges = {each.name for each in metrics_of(Service.COORDINATOR) if each.kind is Kind.GAUGE}
    used = [each["external"]["metric"]["name"] for each in scaler["spec"]["metrics"]]
    assert used == ["specsplit_queued_requests", "specsplit_running_requests"]
    assert set(used) <= gauges


def test_every_pod_asks_for_tokens_and_shows_one_from_the_secret() -> None:
    for service, workload in WORKLOADS.items():
        found = settings(service, container(workload)).resolved()
        assert (found["tokens_file"], found["token_file"]) == ("/secrets/tokens.toml", "/secrets/member.token")
        mounted = {each["name"]: each["mountPath"] for each in container(workload)["volumeMounts"]}
        (secrets,) = [each for each in pod(workload)["volumes"] if "secret" in each]
        assert mounted[secrets["name"]] == "/secrets"
        assert secrets["secret"]["secretName"] == "specsplit-tokens"
        given = {item["path"] for item in secrets["secret"]["items"]}
        assert given == {"tokens.toml", "member.token"}, "no pod has the tokens of operators"


def test_programs_reach_the_public_port_of_the_coordinator_and_no_other() -> None:
    coordinator = settings("coordinator", container(WORKLOADS["coordinator"])).resolved()
    numbers = ports(WORKLOADS["coordinator"])
    assert coordinator["members_listen"] == f"[::]:{numbers['members']}"
    (programs,) = [each for each in of_kind("NetworkPolicy") if each["metadata"]["name"] == "programs"]
    ((rule,),) = [each["ports"] for each in programs["spec"]["ingress"]]
    assert numbers[rule["port"]] == 50050
