"""Requests that name an adapter: where they are placed, what verifiers are asked, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from specsplit.clock import ManualClock
from specsplit.errors import InvalidRequest, Unavailable
from specsplit.membership import AdaptersReport, Heartbeat, Register
from specsplit.observe.record import FIELDS
from specsplit.prefix import first_marks
from specsplit.sessions import DecodeEvent, DecodeRequest, Tokens
from specsplit.values import Adapter, DrafterInfo, DrafterKind, Load, ModelInfo, SpeculationStatistics, Vocabulary
from specsplit_coordinator.cluster.placement import better_verifier, choose_verifier, pages_known
from specsplit_coordinator.cluster.placement_request import PlacementRequest
from specsplit_coordinator.members.compatibility import different_adapters
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry
from tests.coordinator.conftest import CONTEXT
from tests.support.engine_protocol import answer, gateway, request

if TYPE_CHECKING:
    from .conftest import Cluster, Script, StartCluster, Verifier

Say = Callable[..., "Script"]

HERE = Vocabulary(50, "aa")
SQL, LAW = Adapter("sql", "11"), Adapter("law", "22")
TEXT, PAGE = tuple(range(40)), 4


def register(name: str, *adapters: Adapter, max_context: int = 512) -> Register:
    return Register(name, f"{name}:1", ModelInfo("toy", HERE, max_context, adapters=adapters), 2)


@pytest.fixture
def registry() -> Registry:
    return Registry(HERE, ManualClock(), lost_after_s=2.0)


async def add(cluster: Cluster, script: Script, name: str, *adapters: Adapter, max_sessions: int = 4) -> Verifier:
    """A verifier with these adapters that has joined."""
    verifier = await cluster.serve_verifier(script)
    model = ModelInfo("toy", cluster.tokenizer.vocabulary, CONTEXT, (0,), adapters=adapters)
    await cluster.join(name, verifier.address, model, max_sessions)
    return verifier


def test_the_model_tells_the_adapters_of_all_verifiers_and_the_context_of_those_that_have_one(
    registry: Registry,
) -> None:
    registry.register(register("plain", max_context=100))
    registry.register(register("both", SQL, LAW, max_context=300))
    registry.register(register("one", SQL, max_context=200))
    assert registry.model().adapters == (LAW, SQL), "by name"
    assert [registry.model(name).max_context for name in ("", "sql", "law")] == [100, 200, 300]
    with pytest.raises(InvalidRequest, match="adapter: is poems, expected one of law, sql, or none for toy as it is"):
        registry.model("poems")


def test_what_is_served_is_put_together_only_after_a_verifier_has_come_or_gone_with_what_no_other_has(
    registry: Registry,
) -> None:
    first, another = registry.register(register("a", SQL)), registry.register(register("b", SQL, LAW))
    whole, sql = registry.model(), registry.model("sql")
    registry.on_heartbeat(first, Heartbeat(Load(sessions=1)))
    third = registry.register(register("c", SQL))
    registry.drain(third)
    registry.remove(third, "it has left")
    assert registry.model() is whole and registry.model("sql") is sql
    registry.remove(another, "it is lost")
    assert registry.model().adapters == (SQL,)


def test_an_adapter_of_one_that_is_away_for_a_moment_is_still_known(registry: Registry) -> None:
    registry.register(register("plain"))
    away = registry.register(register("one", SQL))
    registry.on_stream_ended(away, "its stream ended")
    assert registry.model("sql").adapters == (SQL,)
    registry.remove(away, "it is lost")
    with pytest.raises(InvalidRequest, match="adapter: is sql, and toy has none; leave it out"):
        registry.model("sql")


def test_a_name_stands_for_the_adapter_of_the_first_that_came_until_that_has_gone(registry: Registry) -> None:
    other = Adapter("sql", "33")
    first = registry.register(register("a", LAW, SQL))
    second = registry.register(register("b", other))
    assert registry.model().adapters == (LAW, SQL)
    assert choose_verifier(registry.verifiers, PlacementRequest(adapter=registry.model("sql").adapter("sql"))) is first
    registry.on_stream_ended(second, "its stream ended")
    assert registry.register(register("b", other)) is second
    assert registry.model().adapters == (LAW, SQL), "it came later, whenever it comes back"
    registry.remove(first, "it is lost")
    assert registry.model().adapters == (other,)
    registry.register(register("c", LAW, SQL))
    assert registry.model().adapters == (LAW, other)


def test_a_session_is_placed_where_its_very_adapter_is_however_busy(registry: Registry) -> None:
    plain, one = registry.register(register("plain")), registry.register(register("one", SQL))
    one.running = 1
    assert choose_verifier(registry.verifiers) is plain
    assert choose_verifier(registry.verifiers, PlacementRequest(adapter=SQL)) is one
    one.running = 2
    assert choose_verifier(registry.verifiers, PlacementRequest(adapter=SQL)) is None, "it waits for that one"
    for lacking in (LAW, Adapter("sql", "33")):
        with pytest.raises(Unavailable, match=f"no verifier that is there has adapter {lacking.name}; try again"):
            choose_verifier(registry.verifiers, PlacementRequest(adapter=lacking))


def test_a_session_that_is_preempted_moves_only_to_where_its_adapter_is(registry: Registry) -> None:
    load = Heartbeat(Load(free_pages=99, total_pages=99, page_size=PAGE))
    members = [registry.register(register(name, *has)) for name, *has in (("a", SQL), ("b",), ("c", SQL))]
    for member in members:
        registry.on_heartbeat(member, load)
    wanted = PlacementRequest(TEXT, 4, adapter=SQL)
    assert better_verifier(members[:2], members[0], wanted) is None
    assert better_verifier(members, members[0], wanted) is members[2]


def test_pages_that_were_cached_with_another_adapter_or_with_none_do_not_count(registry: Registry) -> None:
    def known(member: MemberState, adapter: Adapter | None) -> int:
        return pages_known(member, PlacementRequest(TEXT, adapter=adapter))

    member = registry.register(register("a", SQL, LAW))
    for cached in (None, SQL, LAW):
        marks = first_marks(TEXT, PAGE, b"" if cached is None else cached.salt)
        registry.on_heartbeat(member, Heartbeat(Load(page_size=PAGE), prefixes=marks))
        assert [bool(known(member, each)) for each in (None, SQL, LAW)] == [each is cached for each in (None, SQL, LAW)]
        assert known(member, cached) == len(marks) == 9


def test_adapters_that_a_verifier_has_since_it_was_updated_are_placed_on_it_and_those_before_are_not(
    registry: Registry,
) -> None:
    one, changes = registry.register(register("one", SQL)), registry.changes
    registry.on_adapters(one, AdaptersReport((LAW,)))
    assert registry.changes == changes + 1, "who waits for a place looks again"
    assert registry.model().adapters == (LAW,) and one.describe(0.0).role == one.who.role
    assert choose_verifier(registry.verifiers, PlacementRequest(adapter=LAW)) is one
    with pytest.raises(Unavailable, match="no verifier that is there has adapter sql"):
        choose_verifier(registry.verifiers, PlacementRequest(adapter=SQL))
    with pytest.raises(InvalidRequest, match="adapter: is sql, expected one of law, or none for toy as it is"):
        registry.model("sql")
    registry.on_stream_ended(one, "it broke")
    assert registry.register(register("one", LAW)) is one, "it says the same when it comes back"


def test_while_verifiers_are_updated_one_after_the_other_a_name_stands_for_what_was_told_last(
    registry: Registry,
) -> None:
    first, second = (registry.register(register(name, SQL)) for name in ("a", "b"))
    newer, different = Adapter("sql", "33"), "verifiers {0} and {1} have different adapters sql"
    assert not different_adapters(registry.verifiers)
    for member, other in ((first, second), (second, first)):
        registry.on_adapters(member, AdaptersReport((newer,)))
        assert registry.model("sql").adapters == (newer,)
        assert different_adapters(registry.verifiers) == (different.format("a", "b") if SQL in other.adapters else "")
        assert choose_verifier(registry.verifiers, PlacementRequest(adapter=newer)) is not (
            other if SQL in other.adapters else None
        )
        registry.on_stream_ended(other, "it broke")
        assert registry.register(other.who) is other
        assert registry.model("sql").adapters == (newer,), "what another comes back with is older"
    registry.on_adapters(first, AdaptersReport((SQL,)))
    assert registry.model("sql").adapters == (SQL,), "as it was before"
    registry.on_adapters(second, AdaptersReport((newer, LAW)))
    assert registry.model("sql").adapters == (LAW, SQL), "it is law that is new"


def test_only_verifiers_have_adapters(registry: Registry) -> None:
    drafter = registry.register(Register("d", "d:1", DrafterInfo(DrafterKind.NGRAM, "", None, 64), 2))
    with pytest.raises(InvalidRequest, match="adapters: are a verifier's, and d is none"):
        registry.on_adapters(drafter, AdaptersReport())


async def test_every_choice_goes_to_a_verifier_that_has_the_adapter_and_names_it(cluster: Cluster, say: Say) -> None:
    plain = await add(cluster, say((1,)), "plain", max_sessions=64)
    one = await add(cluster, say((5,), (6,)), "one", SQL)
    for _ in range(3):
        assert (await cluster.client.generate("x", adapter="sql", n=2)).done.verifier == "one"
    await cluster.client.generate("x")
    assert [asked.adapter for asked in one.asked] == ["sql"] * 6
    assert [asked.adapter for asked in plain.asked] == [""]


async def test_an_adapter_that_nobody_has_is_refused_with_those_that_there_are(cluster: Cluster, say: Say) -> None:
    verifier = await add(cluster, say((5,)), "one", SQL, LAW)
    with pytest.raises(InvalidRequest, match="adapter: is poems, expected one of law, sql, or none for toy as it is"):
        await cluster.client.generate("x", adapter="poems")
    with pytest.raises(InvalidRequest, match="adapter: is 7"):
        await cluster.client.generate("x", adapter=7)  # pyright: ignore[reportArgumentType]
    assert verifier.asked == []
    assert (await cluster.client.model_info()).adapters == (LAW, SQL)


async def test_a_gateway_finds_an_adapter_at_a_port_of_its_own(start_cluster: StartCluster, say: Say) -> None:
    cluster = await start_cluster(adapter_listen="sql=127.0.0.1:0,law=127.0.0.1:0")
    ports = {name: port.bound for name, port in cluster.coordinator.service.server.adapters.items()}
    async with gateway(ports["sql"]) as sql, gateway(ports["law"]) as law, gateway(cluster.address) as plain:
        await add(cluster, say((5,)), "plain", max_sessions=64)
        with pytest.raises(grpc.aio.AioRpcError) as early:
            await sql.HealthCheck(pb.HealthCheckRequest())
        assert (early.value.code(), early.value.details()) == (
            grpc.StatusCode.UNAVAILABLE,
            "no verifier that is there has adapter sql; try again when one has joined",
        )
        has = await add(cluster, say((5,)), "one", SQL, LAW)
        assert (await sql.HealthCheck(pb.HealthCheckRequest())).healthy
        asked = pb.GetModelInfoRequest()
        names = [(await each.GetModelInfo(asked)).served_model_name for each in (sql, law, plain)]
        assert names == ["sql", "law", "toy"]
        for stub in (sql, law, sql):
            await answer(stub, request((9, 8)))
        assert [asked.adapter for asked in has.asked] == ["sql", "law", "sql"]


async def test_a_session_goes_on_only_where_its_adapter_is(cluster: Cluster, say: Say) -> None:
    async def breaks_off(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        yield Tokens((5,), 0, SpeculationStatistics(steps=1))
        raise Unavailable("gone")

    await add(cluster, breaks_off, "a", SQL, max_sessions=64)
    plain = await add(cluster, say((9,)), "plain", max_sessions=64)
    good = await add(cluster, say((6,), (7,)), "b", SQL, max_sessions=1)
    result = await cluster.client.generate([9, 8], max_tokens=7, adapter="sql")
    assert (result.tokens, result.done.verifier) == ((5, 6, 7), "b")
    assert [(asked.adapter, asked.tokens) for asked in good.asked] == [("sql", (9, 8, 5))]
    assert plain.asked == []


async def test_with_no_other_that_has_the_adapter_the_caller_hears_what_is_wrong_at_once(
    cluster: Cluster, say: Say
) -> None:
    async def fails(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        raise Unavailable("out of order")
        yield  # pyright: ignore[reportUnreachable] (so that it is a generator)

    await add(cluster, fails, "a", SQL)
    plain = await add(cluster, say((9,)), "plain")
    with pytest.raises(Unavailable, match="out of order"):
        await cluster.client.generate("x", adapter="sql", timeout_s=20)
    assert plain.asked == []


async def test_the_request_log_has_the_adapter(cluster: Cluster, say: Say, caplog: pytest.LogCaptureFixture) -> None:
    await add(cluster, say((5,)), "one", SQL)
    with caplog.at_level("INFO", "specsplit_coordinator.edge.telemetry"):
        await cluster.client.generate("x", adapter="sql")
    (line,) = [each for each in caplog.records if each.getMessage() == "request done"]
    assert vars(line)[FIELDS]["adapter"] == "sql"
