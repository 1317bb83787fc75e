"""Every container and pod finds the tokens of its own role, and no other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from specsplit.cli.serve import SETTINGS
from tests.deploy.test_compose import COMPOSE, DOCKERFILE, load, settings_of
from tests.deploy.test_kubernetes import WORKLOADS, pod
from tests.support.command import run

ROOT = Path(__file__).resolve().parents[2]
SERVICES = load(COMPOSE)["services"]
OPERATORS_TOKEN = "SPECSPLIT_CLIENT_TOKEN_FILE"
SECRETS = "/secrets"
"""Where the coordinator's container has the folder that it draws tokens into."""


@pytest.fixture
def drawn(tmp_path: Path) -> set[str]:
    """What `specsplit tokens` writes, below the folder that it is given."""
    assert run("tokens", str(tmp_path), "--client", "alice") == 0
    return {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}


def mounts(service: str) -> dict[str, tuple[str, bool]]:
    """Where a container has each named volume, and whether it may write there."""
    named = [volume.split(":") for volume in SERVICES[service].get("volumes", ()) if re.match(r"\w+:", volume)]
    return {volume: (target, not rights) for volume, target, *rights in named}


def found_in(service: str, drawn: set[str]) -> set[str]:
    """Files of tokens that a container finds: each volume holds what the coordinator draws into the folder where it mounts it."""
    where = {volume: target for volume, (target, _) in mounts(service).items()}
    folders = {volume: target for volume, (target, _) in mounts("coordinator").items()}
    return {
        f"{where[volume]}/{Path(file).name}"
        for file in drawn
        for volume, folder in folders.items()
        if volume in where and f"{SECRETS}/{file}".startswith(f"{folder}/")
    }


def test_no_container_of_compose_has_tokens_of_a_role_that_it_does_not_need(drawn: set[str]) -> None:
    assert SERVICES["coordinator"]["entrypoint"][-1].count(f"specsplit tokens {SECRETS} ") == 1
    assert found_in("coordinator", drawn) == {f"{SECRETS}/{file}" for file in drawn}, "it draws them"
    of_members = {f"{SECRETS}/members/member.token", f"{SECRETS}/members/tokens.toml"}
    of_operators = {f"{SECRETS}/operators/operator.token"}
    needed = {"verifier": of_members, "drafter": of_members, "tracing": of_operators}
    for service in SERVICES.keys() - {"coordinator"}:
        assert found_in(service, drawn) == needed.get(service, set()), service
        assert not any(writes for target, writes in mounts(service).values() if target.startswith(SECRETS))


@pytest.mark.parametrize(
    ("lost", "drawn_again"),
    [(None, False), ("members/tokens.toml", True), ("operators/operator.token", True), ("clients/alice.token", False)],
)
def test_the_coordinators_container_draws_what_it_lacks_or_has_it_said_and_then_serves(
    lost: str | None, drawn_again: bool, drawn: set[str], tmp_path: Path
) -> None:
    if lost is not None:
        (tmp_path / lost).unlink()
    shell, option, command = SERVICES["coordinator"]["entrypoint"]
    called = tmp_path / "called"
    (tmp_path / "specsplit").write_text(f'#!/bin/sh\necho "$*" >>{called}; echo shown; echo said >&2\n')
    (tmp_path / "specsplit").chmod(0o755)
    done = subprocess.run(
        [shell, option, command.replace(SECRETS, str(tmp_path))],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    draws = [f"tokens {tmp_path}"] if drawn_again else []
    assert called.read_text().splitlines() == [*draws, "serve coordinator"]
    assert done.stderr.count("said") == 1 + len(draws), "what is missing is in the log"


@pytest.mark.parametrize("service", SETTINGS)
def test_what_a_container_is_told_to_show_is_there(service: str, drawn: set[str]) -> None:
    found = settings_of(service, COMPOSE).resolved()
    named = {found["tokens_file"], found["token_file"], SERVICES[service]["environment"].get(OPERATORS_TOKEN)}
    assert named - {None} <= found_in(service, drawn)


def test_the_user_of_the_images_owns_the_folders_that_new_volumes_are_mounted_on() -> None:
    (folders,) = re.findall(r"install --directory --owner=10001 --group=10001 --mode=0700 (.+) \\", DOCKERFILE)
    secret = {target for service in SERVICES for target, _ in mounts(service).values() if target.startswith(SECRETS)}
    assert secret == set(folders.split())
    assert set(load(COMPOSE)["volumes"]) >= {Path(target).name for target in secret}


def test_the_secret_of_kubernetes_holds_what_members_need_and_nothing_else(drawn: set[str]) -> None:
    told = [ROOT / "docs" / "operations.md", *(ROOT / "deploy" / "kubernetes" / "base").glob("*.yaml")]
    folders = {
        folder
        for page in told
        for folder in re.findall(
            r"create secret generic specsplit-tokens .*--from-file=(\S+?)/?[\s`]", page.read_text()
        )
    }
    assert folders == {"secrets/members"}, "which `specsplit tokens secrets/` has written"
    held = {file.removeprefix("members/") for file in drawn if file.startswith("members/")}
    assert held == {"member.token", "tokens.toml"}
    for workload in WORKLOADS.values():
        (items,) = [volume["secret"]["items"] for volume in pod(workload)["volumes"] if "secret" in volume]
        assert {item["key"] for item in items} == held
