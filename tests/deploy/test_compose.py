"""docker-compose.yml and what belongs to it: valid for both generations of compose, and in step with the settings and the Dockerfile.

`.ci/containers` brings it up for real.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from specsplit.build import COMMIT_VARIABLE
from specsplit.cli.serve import SETTINGS
from specsplit.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE, GPU, RANKS, REPLICAS = (
    ROOT / "docker-compose.yml",
    ROOT / "deploy" / "compose.gpu.yaml",
    ROOT / "deploy" / "compose.ranks.yaml",
    ROOT / "deploy" / "compose.replicas.yaml",
)
DOCKERFILE = (ROOT / "Dockerfile").read_text()
TOO_NEW = {"name", "start_interval", "required"}
"""Keys of Compose v2 that docker-compose 1.29 refuses; `version` would be obsolete for v2."""


def load(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text())


def keys_of(node: object) -> Iterator[str]:
    """Every key in a file, at any depth."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield str(key)
            yield from keys_of(value)
    elif isinstance(node, list):
        for each in node:
            yield from keys_of(each)


def settings_of(service: str, *files: Path) -> Settings:
    """The settings that a service finds in its container: those of the image, then those of the files."""
    environment = dict(re.findall(rf"SPECSPLIT_{service.upper()}_(\w+)=(\[\S+)", DOCKERFILE))
    for file in files:
        for name, value in load(file)["services"][service]["environment"].items():
            if name.startswith("SPECSPLIT_CLIENT_"):  # for the commands of operators
                continue
            prefix, _, field = name.partition(f"SPECSPLIT_{service.upper()}_")
            assert prefix == "", f"{name} is not a setting of {service}"
            environment[field] = re.sub(r"\$\{\w+:-(.*)\}", r"\1", value)
    values: dict[str, object] = {name.lower(): value for name, value in environment.items()}
    if service != "coordinator":
        values["advertise"] = "host:1"  # the entry point says the container's own
    return SETTINGS[service].model_validate(values)


@pytest.mark.parametrize("file", [COMPOSE, GPU, RANKS, REPLICAS], ids=lambda file: file.name)
def test_the_file_has_the_schema_of_compose_v2_and_nothing_that_compose_1_refuses(file: Path) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", file]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert TOO_NEW.isdisjoint(keys_of(load(file)))
    assert "version" not in load(file)


@pytest.mark.skipif(not shutil.which("docker-compose"), reason="there is no docker-compose (Debian's package) here")
@pytest.mark.parametrize(
    "more",
    [[], ["--profile", "observability"], ["--file", str(GPU)], ["--file", str(RANKS)], ["--file", str(REPLICAS)]],
)
def test_docker_compose_takes_the_file(more: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    models = str(tmp_path_factory.mktemp("models"))
    command = ["docker-compose", "--file", str(COMPOSE), *more, "--project-directory", str(ROOT), "config", "--quiet"]
    environment = {**os.environ, "SPECSPLIT_MODELS": models}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("service", SETTINGS)
def test_every_variable_of_a_service_is_a_setting_with_a_value_that_it_takes(service: str) -> None:
    settings = settings_of(service, COMPOSE).resolved()
    assert settings["listen"] == f"[::]:{ {'coordinator': 50050, 'verifier': 50051, 'drafter': 50052}[service] }"
    assert settings["trace_level"] == 0, (
        "until the profile observability turns tracing on there is nobody to send spans to"
    )


@pytest.mark.parametrize("service", ["verifier", "drafter"])
def test_on_a_gpu_the_variables_are_settings_too_and_each_service_has_a_gpu_of_its_own(service: str) -> None:
    settings = settings_of(service, COMPOSE, GPU).resolved()
    assert (settings["device"], settings["dtype"], settings["attention"]) == ("cuda", "bfloat16", "flashinfer")
    services = load(GPU)["services"]
    devices = {
        name: services[name]["deploy"]["resources"]["reservations"]["devices"] for name in ("verifier", "drafter")
    }
    assert devices["verifier"][0]["device_ids"] != devices["drafter"][0]["device_ids"]


def test_the_images_on_a_gpu_have_flashinfer_and_its_kernels_in_the_same_release() -> None:
    for service in ("verifier", "drafter"):
        assert load(GPU)["services"][service]["build"]["args"] == {"VARIANT": "gpu"}
    stage = DOCKERFILE.partition(" AS engine\n")[2].partition("\nFROM ")[0]
    on_gpu = stage.partition('[ "$VARIANT" = cpu ] || {')[2]
    assert "-c constraints.txt -r gpu.txt" in on_gpu
    (release,) = re.findall(r"flashinfer-jit-cache==\$\((.+)\)\"", on_gpu)
    found = subprocess.run(["sh", "-c", release], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert f"flashinfer-python=={found}\n" in (ROOT / "constraints.txt").read_text()


def test_kernels_find_a_compiler_and_folders_that_the_user_may_write() -> None:
    """Those in C of a CPU, and the launchers of triton's."""
    stage = DOCKERFILE.partition(" AS engine\n")[2].partition("\nFROM ")[0]
    (command,) = (line for line in stage.splitlines() if line.startswith("RUN apt-get"))
    installed = command.partition("apt-get install ")[2].partition("&&")[0].split()
    assert {"--no-install-recommends", "gcc", "libc6-dev"} <= set(
        installed
    ) and "rm -rf /var/lib/apt/lists/*" in command
    for name in ("TRITON_CACHE_DIR", "XDG_CACHE_HOME"):
        (folder,) = re.findall(rf"^ENV {name}=(\S+)$", stage, re.MULTILINE)
        assert Path(folder).parent == Path("/tmp"), "any user may make it there"


def test_any_number_of_drafters_may_run_since_nothing_of_theirs_is_fixed() -> None:
    drafter = load(COMPOSE)["services"]["drafter"]
    assert {"container_name", "hostname", "ports"}.isdisjoint(drafter)
    assert "SPECSPLIT_DRAFTER_MEMBER_ID" not in drafter["environment"]
    assert "SPECSPLIT_DRAFTER_ADVERTISE" not in drafter["environment"]


def test_what_has_no_tls_and_no_password_is_published_to_this_machine_alone() -> None:
    for name, service in load(COMPOSE)["services"].items():
        for port in service.get("ports", ()):
            assert re.sub(r"\$\{\w+:-(.*)\}", r"\1", port).startswith("127.0.0.1:"), f"{name} publishes {port}"


def test_every_file_that_a_container_mounts_is_there() -> None:
    for service in load(COMPOSE)["services"].values():
        for volume in service.get("volumes", ()):
            source = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", volume).partition(":")[0]
            assert not source.startswith(".") or (ROOT / source).exists(), volume


def test_images_of_others_have_a_tag_and_belong_to_the_profile() -> None:
    for service in load(COMPOSE)["services"].values():
        if "build" not in service and not service["image"].startswith("specsplit-"):
            assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"])
            assert service["profiles"] == ["observability"]


def test_the_services_are_targets_of_the_dockerfile_and_their_ports_those_of_the_health_checks() -> None:
    targets = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE)
    for service in SETTINGS:
        assert load(COMPOSE)["services"][service]["build"]["target"] == service
        stage = DOCKERFILE.partition(f" AS {service}\n")[2].partition("\nFROM ")[0]
        (port,) = re.findall(r"EXPOSE (\d+)", stage)
        assert service in targets
        assert f'CMD ["specsplit", "health", "127.0.0.1:{port}"]' in stage
        assert "\nUSER 10001:10001\n" in stage


@pytest.mark.parametrize("service", SETTINGS)
def test_every_image_carries_the_commit_that_it_was_built_from(service: str) -> None:
    assert load(COMPOSE)["services"][service]["build"]["args"]["COMMIT"] == f"${{{COMMIT_VARIABLE}:-}}"
    stage = DOCKERFILE.partition(f" AS {service}\n")[2].partition("\nFROM ")[0]
    assert f"ARG COMMIT=\nENV {COMMIT_VARIABLE}=$COMMIT\n" in stage


def test_what_the_dockerfile_copies_is_in_the_context_and_the_context_holds_nothing_else() -> None:
    copied = {
        word for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE) for word in line.split()
    }
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert copied == {rule[1:] for rule in rules if rule.startswith("!")}
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    assert {package.split("/")[0] for package in packages} <= copied
    assert any(fnmatch("specsplit/__pycache__", rule) for rule in rules)


def test_the_image_installs_the_extras_that_the_project_has() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = set(re.findall(r"-r (\w+)\.txt", DOCKERFILE)) - {"base"}
    assert asked <= set(extras)


@pytest.mark.parametrize("service", SETTINGS)
def test_every_service_asks_for_tokens_and_shows_one_that_the_coordinator_has_drawn(service: str) -> None:
    found = settings_of(service, COMPOSE).resolved()
    assert (found["tokens_file"], found["token_file"]) == (
        "/secrets/members/tokens.toml",
        "/secrets/members/member.token",
    )
    services = load(COMPOSE)["services"]
    assert "specsplit tokens /secrets" in services["coordinator"]["entrypoint"][-1]
    members = "members:/secrets/members"
    assert (members if service == "coordinator" else f"{members}:ro") in services[service]["volumes"]


def test_members_dial_the_port_of_their_own_which_is_not_published() -> None:
    services = load(COMPOSE)["services"]
    members = str(settings_of("coordinator", COMPOSE).resolved()["members_listen"]).rpartition(":")[2]
    assert not any(port.endswith(f":{members}") for port in services["coordinator"]["ports"])
    for service in ("verifier", "drafter"):
        assert settings_of(service, COMPOSE).resolved()["coordinator"] == f"coordinator:{members}"
    assert f"coordinator:{members}" in services["tracing"]["entrypoint"]


def test_the_gateway_is_a_target_too_in_the_release_that_programs_are_tried_with_and_has_nothing_secret() -> None:
    gateway = load(COMPOSE)["services"]["gateway"]
    stage = DOCKERFILE.partition(f" AS {gateway['build']['target']}\n")[2].partition("\nFROM ")[0]
    (release,) = re.findall(r"^ARG SMG=(\S+)$", stage, re.MULTILINE)
    assert f"smg=={release} " in (ROOT / ".ci" / "clients").read_text()
    assert "\nUSER 10001:10001\n" in stage
    assert gateway["volumes"] == []
    assert gateway["environment"]["SPECSPLIT_GATEWAY_WORKERS"] == "grpc://coordinator:50050"
    assert settings_of("coordinator", COMPOSE).resolved()["anonymous_clients"] is True, "it shows no token"


def test_what_the_gateway_is_told_in_variables_comes_to_it_as_whole_words() -> None:
    stage = DOCKERFILE.partition(" AS gateway\n")[2].partition("\nFROM ")[0]
    (entry,) = re.findall(r"^ENTRYPOINT (.+)$", stage, re.MULTILINE)
    shell, option, script, name = json.loads(entry)
    shown = script.replace("exec smg launch", "printf '%s\\n'")
    for key, given in (("a-key;$HOME'x'*", ["--api-key=a-key;$HOME'x'*"]), ("", [])):
        variables = {"SPECSPLIT_GATEWAY_WORKERS": "grpc://a:1 grpc://b:2", "SPECSPLIT_GATEWAY_API_KEY": key}
        command = [shell, option, shown, name, "--disable-retries"]
        words = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout.splitlines()
        assert words[:3] == ["--worker-urls", "grpc://a:1", "grpc://b:2"]
        assert words[words.index("--log-json") + 1 :] == [*given, "--disable-retries"]
