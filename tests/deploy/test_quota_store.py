"""The quota store of deploy/kubernetes/quotas and deploy/compose.replicas.yaml: settings that lead there, and a server started as there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from specsplit.cli.drawn_port import DrawnPort
from specsplit.errors import Unavailable
from specsplit.settings import CoordinatorSettings
from specsplit_coordinator.requests.quota_ledger import Answer
from specsplit_coordinator.requests.quotas import Quota
from tests.deploy.overlays import rendered
from tests.deploy.test_compose import COMPOSE, REPLICAS, settings_of
from tests.deploy.test_compose import load as load_compose
from tests.deploy.test_kubernetes import KUBERNETES, container, environment, kustomization, load, ports, settings
from tests.support.certificates import Authority
from tests.support.redis_server import THERE, needs_redis, wait_listening

FOLDER = KUBERNETES / "quotas"
OBJECTS = {(each["kind"], each["metadata"]["name"]): each for each in rendered(FOLDER)}
COORDINATOR, STORE = OBJECTS["Deployment", "coordinator"], OBJECTS["Deployment", "quota-store"]
MOUNT = "/quota-store"
SECRET = {"password", "valkey.conf", "ca.pem", "store.pem", "store.key"}
"""What docs/operations.md puts into it."""


def test_every_file_is_part_of_the_kustomization() -> None:
    whole = kustomization(FOLDER)
    used = {*whole["resources"], *(patch["path"] for patch in whole["patches"])}
    assert {file.name for file in FOLDER.glob("*.yaml")} - {"kustomization.yaml"} == used - {"../replicas"}


def test_every_coordinator_counts_with_the_service_over_tls_and_is_one_of_two() -> None:
    found = settings("coordinator", container(COORDINATOR)).resolved()
    store, service = urlsplit(str(found["quota_store"])), OBJECTS["Service", "quota-store"]
    (port,) = service["spec"]["ports"]
    assert (store.scheme, store.hostname, store.port) == ("rediss", "quota-store", port["port"])
    assert ports(STORE)[port["targetPort"]] == port["port"]
    assert service["spec"]["selector"] == STORE["spec"]["template"]["metadata"]["labels"]
    assert COORDINATOR["spec"]["replicas"] == 2


def test_a_coordinator_is_given_the_password_and_the_authority_and_no_key_of_the_server() -> None:
    (volume,) = [each for each in COORDINATOR["spec"]["template"]["spec"]["volumes"] if each["name"] == "quota-store"]
    given = {item["path"]: item["key"] for item in volume["secret"]["items"]}
    assert given == {"password": "password", "ca.pem": "ca.pem"}
    named = environment(container(COORDINATOR))
    files = {named["SSL_CERT_FILE"], named["SPECSPLIT_COORDINATOR_QUOTA_STORE_PASSWORD_FILE"]}
    assert files == {f"{MOUNT}/{name}" for name in given}


def test_nobody_but_coordinators_reaches_the_store_and_members_do_not_let_it_in() -> None:
    labels = STORE["spec"]["template"]["metadata"]["labels"]
    policy = OBJECTS["NetworkPolicy", "quota-store"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    ((peer,),) = [rule["from"] for rule in policy["ingress"]]
    assert peer["podSelector"]["matchLabels"] == COORDINATOR["spec"]["template"]["metadata"]["labels"]
    (members,) = load(KUBERNETES / "base", ["network.yaml"])[:1]
    assert not members["spec"]["podSelector"]["matchLabels"].items() <= labels.items()


def test_the_store_has_no_more_rights_than_the_rest() -> None:
    pods = [each["spec"]["template"]["spec"] for each in (STORE, COORDINATOR)]
    assert pods[0]["securityContext"] == pods[1]["securityContext"]
    assert container(STORE)["securityContext"] == container(COORDINATOR)["securityContext"]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """The folder of the secret, as the documented commands make it."""
    authority = Authority(tmp_path, "ca")
    authority.certify("store")
    (tmp_path / "password").write_text("hunter2")
    (tmp_path / "valkey.conf").write_text("requirepass hunter2\n")
    assert all((tmp_path / name).exists() for name in SECRET)
    return tmp_path


@pytest.fixture
def started(secret: Path) -> Iterator[CoordinatorSettings]:
    """The server of the manifest with this secret, and the settings of a coordinator with it as its manifest has them."""
    with closing(DrawnPort("127.0.0.1:0")) as drawn:
        port = drawn.listen.rpartition(":")[2]
    (_, file), args = container(STORE)["command"], container(STORE)["args"]
    words = [word.replace(MOUNT, str(secret)).replace("6379", port) for word in (file, *args)]
    with subprocess.Popen([str(shutil.which(THERE[0])), *words], stdout=subprocess.DEVNULL) as server:
        wait_listening(server, int(port))
        found = settings("coordinator", container(COORDINATOR)).resolved()
        yield CoordinatorSettings(
            model=secret,
            client_max_requests=int(str(found["client_max_requests"])),
            quota_store=str(found["quota_store"]).replace("quota-store:6379", f"127.0.0.1:{port}"),
            quota_store_password_file=secret / "password",
        )
        server.kill()


async def told(settings: CoordinatorSettings) -> tuple[int, bool, list[Answer]]:
    """What the store answers a coordinator that has nothing to tell it."""
    from specsplit_coordinator.requests.quota_server import QuotaServer

    server = QuotaServer(settings, Quota(requests=1), lease_s=3.0)
    await server.connect()
    try:
        return await server.tell([], 1, renew=True)
    finally:
        await server.disconnect()


@needs_redis
async def test_a_server_as_in_the_manifest_answers_who_has_its_authority_and_the_password(
    started: CoordinatorSettings, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unavailable, match="certificate verify failed"):
        await told(started)
    monkeypatch.setenv("SSL_CERT_FILE", str(secret / "ca.pem"))
    assert await told(started) == (1, True, [])
    (secret / "password").write_text("another")
    with pytest.raises(Unavailable, match="AuthenticationError"):
        await told(started)


def test_with_compose_both_coordinators_count_with_the_store_and_members_and_gateway_know_both() -> None:
    services = load_compose(REPLICAS)["services"]
    first = settings_of("coordinator", COMPOSE, REPLICAS).resolved()
    second = services["coordinator-2"]["environment"]
    for name in ("quota_store", "client_max_requests"):
        assert str(first[name]) == second[f"SPECSPLIT_COORDINATOR_{name.upper()}"]
    assert urlsplit(str(first["quota_store"])).hostname in services
    for member in ("verifier", "drafter"):
        dialled = str(settings_of(member, COMPOSE, REPLICAS).resolved()["coordinator"])
        assert dialled == "coordinator:50049,coordinator-2:50049"
    workers = services["gateway"]["environment"]["SPECSPLIT_GATEWAY_WORKERS"]
    assert workers == "grpc://coordinator:50050 grpc://coordinator-2:50050"


def test_with_compose_the_second_coordinator_is_like_the_first() -> None:
    first, second = (
        load_compose(COMPOSE)["services"]["coordinator"],
        load_compose(REPLICAS)["services"]["coordinator-2"],
    )
    ours = {name: value for name, value in first["environment"].items() if name.startswith("SPECSPLIT_COORDINATOR_")}
    theirs = second["environment"]
    only_first = {"WEB_LISTEN", "TRACE_ENDPOINT", "TRACE_LEVEL"}
    assert {name for name in ours if name not in theirs} == {f"SPECSPLIT_COORDINATOR_{name}" for name in only_first}
    assert all(theirs[name] == value for name, value in ours.items() if name in theirs)
    assert all(first[name] == second[name] for name in ("image", "restart", "read_only", "cap_drop", "security_opt"))
    assert "members:/secrets/members:ro" in second["volumes"], "it finds the tokens that the first has drawn"
