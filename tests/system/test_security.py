"""Real processes that ask one another who they are, by certificates or by tokens: requests are served, and nobody else gets anywhere."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from specsplit.cli.local import Child
from specsplit.cli.tokens import write
from specsplit.client import Client
from specsplit.errors import PermissionDenied, SpecsplitError, Unauthenticated, Unavailable
from specsplit.identity import CallerRole
from specsplit.rpc import dial_blocking, from_rpc_error
from specsplit.settings import TransportSettings
from specsplit.values import PlanChanges
from tests.support.certificates import Authority

from .conftest import SERIAL

POCKET = Path("models/pocket/target")
ROLES = {"alice": CallerRole.CLIENT, "member": CallerRole.MEMBER, "ops": CallerRole.OPERATOR}


@dataclass
class Guarded:
    """A cluster of processes that know their callers."""

    shows: Callable[[str], TransportSettings]
    """What a caller of this name is to use."""
    anonymous: TransportSettings
    """What somebody has who knows the addresses, and is nobody."""
    coordinator: Child
    verifier: Child
    drafter: Child
    members: str
    """host:port of the coordinator's port for members."""
    lines: list[str]
    """What all of them have written."""


def by_certificates(
    folder: Path,
) -> tuple[Mapping[str, Any], Mapping[str, Any], Callable[[str], TransportSettings], TransportSettings]:
    authority = Authority(folder)
    shown = {name: authority.certify(name).shown for name in ROLES}
    file = folder / "roles.toml"
    file.write_text("".join(f'{name} = ["{role}"]\n' for name, role in ROLES.items()))
    serving = {"tls_client_ca": authority.pem, "roles_file": file}
    return (
        serving,
        {"tls_ca": authority.pem, **shown["member"]},
        lambda name: TransportSettings(tls_ca=authority.pem, **shown[name]),
        TransportSettings(tls_ca=authority.pem),
    )


def by_tokens(
    folder: Path,
) -> tuple[Mapping[str, Any], Mapping[str, Any], Callable[[str], TransportSettings], TransportSettings]:
    write(folder, ROLES)
    return (
        {"tokens_file": folder / "members/tokens.toml"},
        {"token_file": folder / "members/member.token"},
        lambda name: TransportSettings(token_file=folder / f"{ROLES[name]}s" / f"{name}.token"),
        TransportSettings(),
    )


@pytest.fixture(scope="module", params=[by_certificates, by_tokens], ids=["certificates", "tokens"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    serving, dialling, shows, anonymous = request.param(tmp_path_factory.mktemp("secrets"))
    common, lines = {"listen": "localhost:0", **serving, **dialling}, list[str]()

    def listener(_: str, line: str) -> None:
        lines.append(line)

    with ExitStack() as stack:

        def child(name: str, **options: object) -> Child:
            started = Child(name, name, {**common, **options}, listener)
            stack.callback(started.kill)
            return started

        coordinator = child("coordinator", model=POCKET, members_listen="localhost:0")
        coordinator.wait_listening(60)
        (members,) = re.findall(r"listening for members on (\S+)", "\n".join(lines))
        verifier = child("verifier", model=POCKET, coordinator=members, member_id="v1")
        drafter = child("drafter", kind="ngram", coordinator=members, member_id="d1")
        cluster = Guarded(shows, anonymous, coordinator, verifier, drafter, members, lines)
        with Client(coordinator.address, shows("alice")) as client:
            until = time.monotonic() + 120
            while len(client.cluster(timeout_s=30).members) < 2:
                assert time.monotonic() < until, "\n".join(lines)
                time.sleep(0.05)
        yield cluster


def refusal(address: str, method: str, transport: TransportSettings) -> SpecsplitError:
    """What a call of a method ends with."""
    with dial_blocking(address, transport) as channel, pytest.raises(grpc.RpcError) as caught:
        list(channel.unary_stream(method)(b"", timeout=30))
    return from_rpc_error(caught.value)


def test_a_client_that_shows_who_he_is_is_served_with_drafts(guarded: Guarded) -> None:
    with Client(guarded.coordinator.address, guarded.shows("alice")) as client:
        results = [
            client.generate(
                "a b c a b c a b c a b", drafter=kind, max_tokens=24, ignore_eos=True, plan=SERIAL, timeout_s=120
            )
            for kind in ("ngram", "none")
        ]
    assert results[0].tokens == results[1].tokens
    assert results[0].done.drafter == "d1"
    assert results[0].speculation.drafted > 0, "the verifier was let in by the drafter"


def test_a_client_can_neither_change_the_plan_nor_join_nor_reach_past_the_coordinator(guarded: Guarded) -> None:
    alice = guarded.shows("alice")
    with (
        Client(guarded.members, alice) as client,
        pytest.raises(PermissionDenied, match="SetPlan needs the role operator"),
    ):
        client.set_plan(reset=True, timeout_s=30)
    for address, method in reach(guarded):
        assert isinstance(refusal(address, method, alice), PermissionDenied), method
    refused = refusal(guarded.coordinator.address, "/specsplit.v1.CoordinatorService/SetPlan", guarded.shows("ops"))
    assert isinstance(refused, PermissionDenied) and "this port is for clients alone" in str(refused)


def reach(guarded: Guarded) -> list[tuple[str, str]]:
    """What members call of one another."""
    return [
        (guarded.members, "/specsplit.v1.ClusterService/Join"),
        (guarded.verifier.address, "/specsplit.v1.VerifierService/Decode"),
        (guarded.verifier.address, "/specsplit.v1.VerifierService/Watch"),
        (guarded.drafter.address, "/specsplit.v1.DrafterService/Draft"),
    ]


def test_who_may_not_change_the_plan_may_look_at_it(guarded: Guarded) -> None:
    for address, name in ((guarded.coordinator.address, "alice"), (guarded.members, "ops")):
        with Client(address, guarded.shows(name)) as client:
            assert client.plan(timeout_s=30).members == 1
            assert client.tracing(timeout_s=30).members == 2
    with (
        Client(guarded.members, guarded.shows("member")) as client,
        pytest.raises(PermissionDenied, match="GetPlan needs the role client or operator, and member is member"),
    ):
        client.plan(timeout_s=30)


def test_an_operator_changes_the_plan_which_is_logged_with_his_name_and_sends_no_request(guarded: Guarded) -> None:
    with Client(guarded.members, guarded.shows("ops")) as client:
        assert client.set_plan(PlanChanges(topk=3), timeout_s=30).members == 1
        assert client.set_plan(reset=True, timeout_s=30).members == 1
        told = [json.loads(line) for line in waited(guarded.lines, '"message": "plan changed"', 2)]
        assert [(each["topk"], each["by"]) for each in told] == [("as set -> 3", "ops"), ("3 -> as set", "ops")]
        assert all(re.fullmatch(r"ipv[46]:.*:\d+", each["peer"]) for each in told)
        with pytest.raises(PermissionDenied, match="Generate needs the role client, and ops is operator"):
            client.generate("x", timeout_s=30)


def waited(lines: list[str], what: str, number: int) -> list[str]:
    """The lines with this text, once there are so many of them."""
    until = time.monotonic() + 60
    while len(found := [line for line in lines if what in line]) < number:
        assert time.monotonic() < until, "\n".join(lines)
        time.sleep(0.05)
    return found


def test_who_shows_nothing_gets_nowhere(guarded: Guarded) -> None:
    for address, method in [
        *reach(guarded),
        (guarded.coordinator.address, "/specsplit.v1.CoordinatorService/Generate"),
    ]:
        assert isinstance(refusal(address, method, guarded.anonymous), Unauthenticated | Unavailable), method
