"""Commands for operators, as docs and alerts print them, do what they say where the docs say that they work."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from specsplit.settings import CoordinatorSettings
from specsplit_coordinator.edge.service import Coordinator
from tests.deploy.test_compose import COMPOSE, load
from tests.deploy.test_kubernetes import BASE, WORKLOADS, container, of_kind, ports
from tests.support.command import run

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules" / "specsplit.yml"
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("operations", "traces", "metrics", "design", "settings")),
    COMPOSE,
)
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
COMMAND = re.compile(r"\bspecsplit ((?:plan|trace)\b(?: --[a-z][\w-]*(?: [\w./:|]*\w)?)*)")
"""A command of an operator, with its options."""
IN_COMPOSE = "docker compose exec coordinator"


def told_by_alerts() -> Iterator[str]:
    for group in load(RULES)["groups"]:
        for rule in group["rules"]:
            yield from rule.get("annotations", {}).values()


def commands(texts: Iterator[str]) -> set[str]:
    return {command for text in texts for command in COMMAND.findall(text)}


PRINTED = sorted(
    command
    for command in commands(page.read_text() for page in PAGES) | commands(told_by_alerts())
    if "--address" not in command  # those are for somewhere else
)


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[Coordinator]:
    """One that asks who calls, as in compose, with the tokens of `tmp_path`."""
    assert await asyncio.to_thread(run, "tokens", str(tmp_path)) == 0
    made = Coordinator(
        CoordinatorSettings(
            model=ROOT / "models" / "pocket" / "target",
            listen="127.0.0.1:0",
            members_listen="127.0.0.1:0",
            tokens_file=tmp_path / "members" / "tokens.toml",
            anonymous_clients=True,
        )
    )
    await made.service.start()
    yield made
    await made.stop()


def test_there_are_such_commands() -> None:
    assert {"plan", "plan --num-steps 0", "plan --adaptive static", "plan --reset", "trace --level 2"} <= {*PRINTED}


@pytest.fixture
def container_of_compose(coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is that of the coordinator's container, for commands."""
    environment: dict[str, Any] = load(COMPOSE)["services"]["coordinator"]["environment"]
    members = str(environment["SPECSPLIT_COORDINATOR_MEMBERS_LISTEN"]).rpartition(":")[2]
    here = str(coordinator.service.server.members_bound)
    for name, value in environment.items():
        if name.startswith("SPECSPLIT_CLIENT_"):
            monkeypatch.setenv(name, value.replace(f"127.0.0.1:{members}", here).replace("/secrets", str(tmp_path)))


@pytest.mark.usefixtures("container_of_compose")
async def test_in_the_coordinators_container_every_command_works_as_it_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in [*PRINTED, "status --once"]:
        status = await asyncio.to_thread(run, *command.split())
        assert status == 0, f"specsplit {command}: {capsys.readouterr().err}"


@pytest.mark.usefixtures("container_of_compose")
async def test_a_request_in_that_container_is_refused_with_whose_token_to_show_and_with_that_it_is_let_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = re.findall(rf"`{IN_COMPOSE} specsplit (generate [^`]+)`", OPERATIONS)
    *request, option, file = shlex.split(command)
    assert option == "--token-file"
    assert await asyncio.to_thread(run, *request) == 1
    said = capsys.readouterr().err
    assert "Generate needs the role client, and operator is operator; show the token" in said and option in said
    assert "clients' commands go to that of clients" in said
    assert await asyncio.to_thread(run, *request, option, file.replace("/secrets", str(tmp_path))) == 1
    assert "no verifier" in capsys.readouterr().err, "which is all that is missing here"


async def test_elsewhere_the_refusal_says_what_to_show_and_where(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SPECSPLIT_CLIENT_ADDRESS", "SPECSPLIT_CLIENT_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert await asyncio.to_thread(run, "plan", "--topk", "2", "--address", coordinator.service.server.bound) == 1
    said = capsys.readouterr().err
    assert all(each in said for each in ("the role operator", "--token-file", "--address"))


def test_an_alert_that_prints_a_command_says_how_it_is_given_with_compose() -> None:
    for text in told_by_alerts():
        if COMMAND.search(text):
            assert IN_COMPOSE in text and "As an operator" in text, text
    assert "\n### As an operator\n" in OPERATIONS and f"`{IN_COMPOSE} specsplit plan" in OPERATIONS


async def test_the_way_to_the_members_port_in_kubernetes_leads_there(
    coordinator: Coordinator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (forward,) = re.findall(
        r"kubectl port-forward --namespace (\S+) service/(\S+) (\d+)\n\s*specsplit (.+)\n", OPERATIONS
    )
    namespace, name, port, command = forward
    assert namespace == yaml.safe_load((ROOT / "deploy/kubernetes/base/kustomization.yaml").read_text())["namespace"]
    assert namespace in [each["metadata"]["name"] for each in of_kind("Namespace")]
    (service,) = [each for each in BASE if each["kind"] == "Service" and each["metadata"]["name"] == name]
    (target,) = [each["targetPort"] for each in service["spec"]["ports"] if each["port"] == int(port)]
    listening = {each["name"]: each.get("value") for each in container(WORKLOADS[name])["env"]}
    assert listening["SPECSPLIT_COORDINATOR_MEMBERS_LISTEN"] == f"[::]:{ports(WORKLOADS[name])[target]}"
    assert f" --address 127.0.0.1:{port} " in command and " secrets/" in command
    here = command.replace(f"127.0.0.1:{port}", coordinator.service.server.members_bound)
    given = here.replace("secrets/", f"{tmp_path}/").split()
    assert await asyncio.to_thread(run, *given) == 0, capsys.readouterr().err
