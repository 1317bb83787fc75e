"""Coordinators that count with a real server: together they let a client have its quota, and by shares while the server is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from specsplit.cli.tokens import write
from specsplit.client import AsyncClient
from specsplit.clock import SystemClock
from specsplit.errors import Exhausted, Unavailable
from specsplit.identity import CallerRole
from specsplit.observe.metric_table import QUOTA_STORE_DECIDES
from specsplit.rpc import Coordinators
from specsplit.settings import CoordinatorSettings, TransportSettings
from specsplit.values import ModelInfo
from specsplit_coordinator.requests.quota_store import QuotaStore
from specsplit_coordinator.requests.quotas import Quota, Quotas
from tests.support.certificates import Authority
from tests.support.eventually import eventually
from tests.support.redis_server import SERVERS, RedisServer, needs_redis

if TYPE_CHECKING:
    from .conftest import Cluster, StartCluster

pytestmark = needs_redis
POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
PATIENT_MS = 60_000
"""The store is waited for, however busy this machine is."""


@pytest.fixture(params=SERVERS)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(tmp_path, program=request.param) as running:
        yield running


class NoQueue:
    """Nothing waits."""

    def waits(self, asked: Iterable[tuple[str, int]]) -> list[int]:
        return [0 for _ in asked]


@asynccontextmanager
async def counting(
    server: RedisServer,
    quota: Quota,
    there: Callable[[], int],
    lease_s: float = 600.0,
    *,
    killed: bool = False,
    **settings: Any,
) -> AsyncIterator[tuple[Quotas, QuotaStore]]:
    """The quotas of one coordinator that counts with the server, and says nothing when it ends if it is to be `killed`."""
    from specsplit_coordinator.requests.quota_server import QuotaServer

    class Silent(QuotaServer):
        async def leave(self) -> None:
            await self.disconnect()

    values = {"quota_store": server.url, "client_max_requests": 1, "quota_store_timeout_ms": PATIENT_MS, **settings}
    made = CoordinatorSettings(model=POCKET, **values)
    timeout_s = made.quota_store_timeout_ms / 1000
    counts = (Silent if killed else QuotaServer)(made, quota, lease_s)
    store = QuotaStore(counts, there, timeout_s, queued=quota.queued is not None)
    task = asyncio.create_task(store.run(NoQueue()))
    try:
        yield Quotas(quota, SystemClock(), 1.0, there, store), store
    finally:
        task.cancel()
        await asyncio.wait({task})


async def enter(quotas: Quotas, client: str, places: int = 1) -> Any:
    """A request that is on its way until it is exited. Raises Exhausted."""
    request = quotas.request(client, places, await quotas.ask(client, places))
    request.__enter__()
    return request


async def test_requests_that_come_and_go_everywhere_at_once_never_are_more_than_the_quota(server: RedisServer) -> None:
    quota, random, held, most, let_in = Quota(requests=5), Random(7), {"alice": 0, "bob": 0}, 0, 0
    async with AsyncExitStack() as stack:
        each = [await stack.enter_async_context(counting(server, quota, lambda: 3)) for _ in range(3)]
        await eventually(lambda: not any(store.trouble for _, store in each))

        async def asks(quotas: Quotas, client: str) -> None:
            nonlocal most, let_in
            for _ in range(30):
                places = random.randint(1, 3)
                asking = asyncio.create_task(enter(quotas, client, places))
                if random.random() < 0.2:
                    await asyncio.sleep(random.random() * 0.002)
                    asking.cancel()
                try:
                    request = await asking
                except (Exhausted, asyncio.CancelledError):
                    continue
                held[client] += places
                let_in += 1
                most = max(most, held[client])
                assert held[client] <= 5
                await asyncio.sleep(random.random() * 0.003)
                held[client] -= places
                request.__exit__(None, None, None)

        await asyncio.gather(
            *(asks(quotas, client) for quotas, _ in each for client in ("alice", "bob") for _ in range(4))
        )
        assert most == 5 and let_in > 50
        await eventually(lambda: not any(len(store.ledger) for _, store in each))
        last = await enter(each[0][0], "alice", 5)
        with pytest.raises(
            Exhausted, match="would have 6 requests on their way, and its quota is client_max_requests = 5;"
        ):
            await enter(each[1][0], "alice")
        last.__exit__(None, None, None)


async def test_what_a_coordinator_held_is_free_as_soon_as_it_has_left(server: RedisServer) -> None:
    quota = Quota(requests=5)
    async with counting(server, quota, lambda: 1) as (stays, staying):
        async with counting(server, quota, lambda: 1) as (leaves, leaving):
            await eventually(lambda: not staying.trouble and not leaving.trouble)
            held = await enter(leaves, "alice", 5)
            with pytest.raises(Exhausted, match="client_max_requests"):
                await enter(stays, "alice")
        (await enter(stays, "alice", 5)).__exit__(None, None, None)
        held.__exit__(None, None, None)


async def test_tokens_used_anywhere_are_used_everywhere(server: RedisServer) -> None:
    quota = Quota(tokens_per_minute=600)
    async with (
        counting(server, quota, lambda: 2) as (here, store),
        counting(server, quota, lambda: 2) as (there, other),
    ):
        await eventually(lambda: not store.trouble and not other.trouble)
        with here.request("alice", 1, await here.ask("alice", 1)) as use:
            for _ in range(70):
                use(10)
        with pytest.raises(
            Exhausted, match="has used up its tokens, and its quota is client_tokens_per_minute = 600; try again in"
        ):
            await enter(there, "alice")
        (await enter(there, "bob")).__exit__(None, None, None)


async def test_a_coordinator_that_is_killed_gives_its_counts_back_with_its_lease(server: RedisServer) -> None:
    from redis import Redis

    quota = Quota(requests=4)
    async with counting(server, quota, lambda: 1) as (here, store):
        await eventually(lambda: not store.trouble)
        with Redis(port=server.port) as client:
            (own,) = client.hkeys("specsplit:coordinators")
            async with counting(server, quota, lambda: 2, killed=True) as (gone, other):
                await eventually(lambda: not other.trouble)
                held = await enter(gone, "alice", 3)
            with pytest.raises(Exhausted, match="would have 5 requests on their way"):
                await enter(here, "alice", 2)
            (theirs,) = {*client.hkeys("specsplit:coordinators")} - {own}
            client.hset("specsplit:coordinators", theirs, 1)  # the time until which it stands
        (await enter(here, "alice", 4)).__exit__(None, None, None)
        held.__exit__(None, None, None)


async def test_while_the_store_is_away_or_does_not_know_all_each_allows_its_share(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    by_share, by_store = (
        "quotas of clients hold by shares: the quota store does not decide",
        "quotas of clients are counted by the quota store, for all coordinators",
    )
    caplog.set_level(logging.INFO)
    quota, there = Quota(requests=4), 1
    async with counting(server, quota, lambda: there) as (quotas, store):
        await eventually(lambda: not store.trouble)
        assert quotas.described() == "quotas of clients are counted by the quota store, for all coordinators"
        first = await enter(quotas, "alice", 3)
        there = 2
        with pytest.raises(Exhausted, match="client_max_requests = 4, of which each of 2 coordinators allows 2"):
            await enter(quotas, "alice")
        assert store.trouble == "it knows 1 of 2 coordinators"
        there = 1
        second = await enter(quotas, "alice")
        server.stop()
        await eventually(lambda: store.trouble)
        with pytest.raises(Exhausted, match="client_max_requests = 4; try again"):
            await enter(quotas, "alice")
        there = 2
        assert quotas.described().startswith(
            "quotas of clients by shares, as one of 2 coordinators: client_max_requests 2 of 4; the quota store does not decide: "
        )
        (await enter(quotas, "bob", 2)).__exit__(None, None, None)
        there = 1
        server.start()
        await eventually(lambda: not store.trouble)
        said = [record.getMessage() for record in caplog.records if "quota store" in record.getMessage()]
        assert said[-5:] == [by_store, by_share, by_store, by_share, by_store], (
            "once when it begins, and once when it ends"
        )
        async with counting(server, quota, lambda: 2) as (other, its):
            await eventually(lambda: not its.trouble)
            with pytest.raises(Exhausted, match="would have 5 requests on their way"):
                await enter(other, "alice")  # the server that came back empty was told of what runs
            first.__exit__(None, None, None)
            second.__exit__(None, None, None)
            await eventually(lambda: not len(store.ledger))
            (await enter(other, "alice", 4)).__exit__(None, None, None)


async def test_a_request_waits_no_longer_than_it_may_for_a_store_that_does_not_answer(server: RedisServer) -> None:
    async with counting(server, Quota(requests=2), lambda: 1, quota_store_timeout_ms=200) as (quotas, store):
        await eventually(lambda: not store.trouble)
        assert server.process is not None
        server.process.send_signal(19)  # SIGSTOP: it takes what it is sent, and says nothing
        asked = [asyncio.create_task(enter(quotas, "alice")) for _ in range(3)]
        done = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
        assert [type(each).__name__ for each in done].count("Exhausted") == 1, "two of them have the quota, by share"
        assert store.trouble == "it did not answer within quota_store_timeout_ms = 200"
        server.process.send_signal(18)
        await eventually(lambda: not store.trouble)
        with pytest.raises(Exhausted, match="would have 3 requests"):
            await enter(quotas, "alice")


async def test_a_password_is_shown_and_a_wrong_one_is_no_reason_to_fail(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    with RedisServer(tmp_path, password="hunter2") as server:
        async with counting(server, Quota(requests=2), lambda: 1, quota_store_password_file=secret) as (_, store):
            await eventually(lambda: not store.trouble)
        url = server.url.replace("//", "//:wrong@")
        async with counting(server, Quota(requests=2), lambda: 2, quota_store=url) as (quotas, store):
            await eventually(lambda: "AuthenticationError" in store.trouble)
            assert "wrong" not in store.trouble
            held = await enter(quotas, "alice")
            with pytest.raises(Exhausted, match="each of 2 coordinators allows 1"):
                await enter(quotas, "alice")
            held.__exit__(None, None, None)


async def test_over_tls_the_server_is_checked_and_shown_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    shown = authority.certify("coordinator").shown
    with RedisServer(tmp_path, authority=authority) as server:
        quota = Quota(requests=2)
        async with counting(server, quota, lambda: 1, tls_ca=authority.pem, **shown) as (_, store):
            await eventually(lambda: not store.trouble)
        async with counting(server, quota, lambda: 1, **shown) as (_, store):
            await eventually(lambda: "certificate verify failed" in store.trouble)


async def test_no_name_of_a_client_is_in_the_store(server: RedisServer) -> None:
    from redis import Redis

    async with counting(server, Quota(requests=2), lambda: 1, quota_store_prefix="mine:") as (quotas, store):
        await eventually(lambda: not store.trouble)
        with (
            quotas.request("alice", 1, await quotas.ask("alice", 1)),
            Redis(port=server.port, decode_responses=True) as client,
        ):
            keys = [str(key) for key in client.scan_iter()]
            assert len(keys) == 2 and all(key.startswith("mine:") for key in keys) and "alice" not in str(keys)


async def test_without_the_package_it_is_said_what_to_install(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "specsplit_coordinator.requests.quota_server", raising=False)
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(Unavailable, match=r"quota_store is set, .*pip install 'specsplit\[quota\]'"):
        await start_cluster(quota_store="redis://127.0.0.1:1", client_max_requests=1)


class Pair:
    """Two coordinators with one verifier, which count with one server; alice's client of each."""

    def __init__(self, clusters: list[Cluster], clients: list[AsyncClient], verifier: Any) -> None:
        self.clusters = clusters
        self.clients = clients
        self.verifier = verifier
        self.streams: list[Any] = []

    async def fill(self, at: int, most: int) -> None:
        """Ask for more until it is refused."""
        for _ in range(most):
            stream = self.clients[at].stream("x")
            try:
                await anext(stream)
            except Exhausted:
                return
            self.streams.append(stream)

    async def end(self) -> None:
        for stream in self.streams:
            await stream.aclose()
        self.streams.clear()


@pytest.fixture
async def pair(
    start_cluster: StartCluster, server: RedisServer, tmp_path: Path, say: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Starts such a pair."""
    write(tmp_path, {"alice": CallerRole.CLIENT, "member": CallerRole.MEMBER})
    monkeypatch.setattr("specsplit_coordinator.edge.service.LEASE_S", 600.0)  # however busy this machine is

    async def start(places: int = 8, **settings: Any) -> Pair:
        values = {"quota_store": server.url, "quota_store_timeout_ms": PATIENT_MS} | settings
        tokens = tmp_path / "members/tokens.toml"
        clusters = [await start_cluster(tokens_file=tokens, metrics_listen="127.0.0.1:0", **values) for _ in range(2)]
        first, _ = clusters
        verifier = await first.serve_verifier(say((5, 6, 7), then_wait=True))
        where = ",".join(each.coordinator.service.server.members_bound for each in clusters)
        dialled = Coordinators(where, TransportSettings(token_file=tmp_path / "members/member.token"))
        model = ModelInfo("toy", first.tokenizer.vocabulary, 512, (0,))
        await first.join("v1", verifier.address, model, places, dialled=dialled)
        shown = TransportSettings(token_file=tmp_path / "clients/alice.token")
        clients = [await each.stack.enter_async_context(AsyncClient(each.address, shown)) for each in clusters]
        made = Pair(clusters, clients, verifier)
        await eventually(lambda: all(each.coordinator.registry.coordinators == 2 for each in clusters))
        await eventually(lambda: decide(made) == [1, 1])
        return made

    return start


def decide(pair: Pair) -> list[float]:
    """What the metrics of both say of the store."""
    for each in pair.clusters:
        each.coordinator.metrics.refresh()
    return [each.coordinator.metrics.instruments.gauge(QUOTA_STORE_DECIDES).value for each in pair.clusters]


async def test_a_client_has_its_quota_wherever_it_asks_and_no_more(
    pair: Callable[..., Any], server: RedisServer
) -> None:
    both: Pair = await pair(client_max_requests=4)
    await both.fill(0, 3)
    await both.fill(1, 5)
    assert len(both.streams) == 4 and both.verifier.open == 4, "by shares there would be two at each"
    for client in both.clients:
        with pytest.raises(
            Exhausted,
            match="client alice would have 5 requests on their way, and its quota is client_max_requests = 4;",
        ):
            await client.generate("x")
        assert "counted by the quota store" in (await client.cluster()).quotas
    await both.end()
    await eventually(lambda: not both.verifier.open)

    async def burst(at: int) -> None:
        await asyncio.gather(*(both.fill(at, 1) for _ in range(10)))

    await asyncio.gather(burst(0), burst(1))
    assert len(both.streams) == 4 and both.verifier.open == 4
    server.stop()
    await eventually(lambda: decide(both) == [0, 0])
    await both.end()
    for at in (0, 1):
        await both.fill(at, 5)
        assert len(both.streams) == 2 * (at + 1), "its share"
    told = await both.clients[0].cluster()
    assert "client_max_requests 2 of 4; the quota store does not decide: " in told.quotas
    server.start()
    await eventually(lambda: decide(both) == [1, 1])
    await both.fill(0, 1)
    await both.fill(1, 1)
    assert len(both.streams) == 4
    await both.end()


async def test_what_waits_is_counted_everywhere_too(pair: Callable[..., Any]) -> None:
    both: Pair = await pair(places=1, client_max_queued=3)
    running = [client.stream("x") for client in both.clients]
    for stream in running:
        await anext(stream)
    waiting = [[asyncio.create_task(client.generate("x")) for _ in range(5)] for client in both.clients]

    def queued() -> int:
        return sum(each.coordinator.admission.queued for each in both.clusters)

    tasks = [task for tasks in waiting for task in tasks]
    await eventually(lambda: sum(task.done() for task in tasks) == 7)
    assert queued() == 3
    for task in tasks:
        if task.done():
            assert isinstance(task.exception(), Exhausted) and "client_max_queued = 3" in str(task.exception())
        task.cancel()
    await asyncio.wait(tasks)
    for stream in running:
        await stream.aclose()
