"""A group of ranks with compose and in Kubernetes: torchrun is told what it takes, ranks find one another, and nobody is killed too soon.

`.ci/containers` starts both for real.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from scripts.containers.pods import StatefulSet
from specsplit.settings import VerifierSettings
from tests.deploy.test_compose import COMPOSE, RANKS, load, settings_of
from tests.deploy.test_kubernetes import BASE, KUBERNETES, container

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SERVICE = load(RANKS)["services"]["verifier"]
SIZE = 2
PODS = StatefulSet()
(OVERLAY,) = yaml.safe_load_all((KUBERNETES / "ranks" / "verifier.yaml").read_text())
(BASE_SET,) = (each for each in BASE if each["kind"] == "StatefulSet")


def run_in_shell(command: Sequence[str], variables: dict[str, str], folder: Path) -> list[str]:
    """The arguments with which a container's command starts torchrun, or asks for the health of ranks."""
    for name in ("torchrun", "specsplit"):
        (folder / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def options_of(arguments: Sequence[str]) -> Any:
    """The options as the installed torchrun reads them; what it starts has to be the verifier."""
    parser = get_args_parser()
    if "--shutdown-timeout" not in parser.format_help():  # that of torch 2.11; the image has the pinned torch
        parser.add_argument("--shutdown-timeout", type=float)
    options = parser.parse_args(arguments)
    assert options.module
    assert [options.training_script, *options.training_script_args] == ["specsplit", "serve", "verifier"]
    return options


def of_compose(words: Sequence[str]) -> list[str]:
    """Words of a compose file as the container gets them."""
    return [word.replace("$$", "$") for word in words]


def test_the_container_starts_as_many_ranks_as_the_setting_says_and_gives_them_the_time_to_drain(
    tmp_path: Path,
) -> None:
    settings = settings_of("verifier", COMPOSE, RANKS)
    assert isinstance(settings, VerifierSettings)
    assert settings.dp_size == SIZE
    variables = {"SPECSPLIT_VERIFIER_DP_SIZE": str(SIZE)}
    options = options_of(run_in_shell(of_compose(SERVICE["entrypoint"]), variables, tmp_path))
    assert (options.standalone, options.nproc_per_node) == (True, str(SIZE))
    grace = load(COMPOSE)["services"]["verifier"]["stop_grace_period"]
    assert settings.drain_s < options.shutdown_timeout < int(grace.removesuffix("s"))


def test_the_health_of_every_rank_is_asked(tmp_path: Path) -> None:
    kind, command = of_compose(SERVICE["healthcheck"]["test"])
    asked = run_in_shell(["/bin/sh", "-c", command], {"SPECSPLIT_VERIFIER_DP_SIZE": "3"}, tmp_path)
    assert kind == "CMD-SHELL"
    assert asked == ["health", "127.0.0.1:50051", "127.0.0.1:50052", "127.0.0.1:50053"]


def test_prometheus_scrapes_what_it_always_does_and_the_port_of_every_rank() -> None:
    usual, ranks = (load(DEPLOY / "prometheus" / f"{name}.yml") for name in ("prometheus", "ranks"))
    (job,) = (each for each in usual["scrape_configs"] if each["job_name"] == "specsplit-verifier")
    (first,) = job["dns_sd_configs"]
    job["dns_sd_configs"] = [{**first, "port": first["port"] + rank} for rank in range(SIZE)]
    assert ranks == usual
    (mount,) = load(RANKS)["services"]["prometheus"]["volumes"]
    assert mount == "./deploy/prometheus/ranks.yml:/etc/prometheus/prometheus.yml:ro"


def test_there_are_as_many_pods_as_ranks_and_they_start_and_are_replaced_together() -> None:
    assert len(PODS.pods) == SIZE == int(PODS.variables("verifier-0")["SPECSPLIT_VERIFIER_DP_SIZE"])
    assert BASE_SET["spec"]["podManagementPolicy"] == "Parallel"
    assert OVERLAY["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert "livenessProbe" in container(BASE_SET)
    assert container(OVERLAY)["livenessProbe"] is None, "a rank that waits for another listens nowhere"


@pytest.mark.parametrize("pod", PODS.pods)
def test_pods_meet_at_the_first_which_its_service_names_before_it_is_ready(pod: str, tmp_path: Path) -> None:
    options = options_of(run_in_shell(PODS.command, PODS.variables(pod), tmp_path))
    assert (options.nnodes, options.nproc_per_node, options.rdzv_backend) == (str(SIZE), "1", "c10d")
    host, _, port = options.rdzv_endpoint.partition(":")
    service = BASE_SET["spec"]["serviceName"]
    assert host == f"{PODS.pods[0]}.{service}"
    assert {"name": "meeting", "containerPort": int(port)} in container(OVERLAY)["ports"]
    assert options.rdzv_conf == f"is_host={int(pod == PODS.pods[0])}"
    assert options.local_addr == f"{pod}.{service}"
    (headless,) = (each["spec"] for each in BASE if each["kind"] == "Service" and each["metadata"]["name"] == service)
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"] is True


def test_a_pod_is_told_its_own_address_and_that_the_store_is_new_with_each_start() -> None:
    variables = PODS.variables("verifier-1")
    assert variables["SPECSPLIT_VERIFIER_ADVERTISE"] == "verifier-1.verifier:50051"
    assert variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


def test_a_pod_has_the_time_to_drain(tmp_path: Path) -> None:
    variables = PODS.variables("verifier-0")
    options = options_of(run_in_shell(PODS.command, variables, tmp_path))
    grace = BASE_SET["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert float(variables["SPECSPLIT_VERIFIER_DRAIN_S"]) < options.shutdown_timeout < grace
