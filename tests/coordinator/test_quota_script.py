"""The script of a quota store on a real server, against a model of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.redis_server import SERVERS, RedisServer, needs_redis

pytestmark = needs_redis
LEASE_MS = 600_000
MOST = {"requests": 5, "queued": 3, "rate": 60}
GRANTED, OVER_REQUESTS, OVER_QUEUED, NO_TOKENS = range(4)
_numbers = itertools.count()


@pytest.fixture(scope="module", params=SERVERS)
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of a server."""
    from redis import Redis

    with (
        RedisServer(tmp_path_factory.mktemp("redis"), program=request.param) as running,
        Redis(port=running.port, decode_responses=True) as client,
    ):
        yield client


@dataclass
class Told:
    """What one coordinator tells of the one client."""

    held: int
    waiting: int
    used: int
    acknowledged: int
    asks: list[tuple[int, int]]
    generation: int = 1


@dataclass
class Model:
    """What the store should know of one client. Tokens come back all the time, so what is left of them lies between two numbers."""

    live: set[str] = field(default_factory=set[str])
    held: dict[str, int] = field(default_factory=dict[str, int])
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    used: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    least: float = MOST["rate"]
    most: float = MOST["rate"]

    def passed(self, least_s: float, most_s: float) -> None:
        rate = MOST["rate"]
        self.least = min(rate, self.least + least_s * rate / 60)
        self.most = min(rate, self.most + most_s * rate / 60)

    def tell(self, me: str, told: Told, coordinators: int) -> tuple[bool, int, int, list[set[int]]]:
        """Whether it is exact, what others hold and have waiting, and of each ask the answers that may be."""
        for gone in {*self.held, *self.waiting, *self.used} - self.live - {me}:
            for table in (self.held, self.waiting, self.used):
                table.pop(gone, None)
        exact = me in self.live and len(self.live) >= coordinators
        generation, base = self.used.get(me, (0, 0))
        base = base if generation == told.generation else told.acknowledged
        self.used[me] = told.generation, told.used
        self.least -= told.used - base
        self.most -= told.used - base
        others = sum(count for who, count in self.held.items() if who != me)
        queued = sum(count for who, count in self.waiting.items() if who != me)
        held, waiting, answers = told.held, told.waiting, list[set[int]]()
        for places, waits in told.asks:
            fits = waits == 0 or queued + waits <= MOST["queued"]
            if others + held + places > MOST["requests"]:
                answers.append({OVER_REQUESTS})
                continue
            may = {NO_TOKENS} if self.least <= 0 else set[int]()
            may |= {GRANTED if fits else OVER_QUEUED} if self.most > 0 else set()
            answers.append(may)
            if may == {GRANTED} and exact:
                held, waiting = held + places, max(waiting, waits)
        self.held[me], self.waiting[me] = held, waiting
        return exact, others, queued, answers


COUNT = st.integers(0, 4)
told = st.builds(
    Told, COUNT, COUNT, st.integers(0, 90), st.just(0), st.lists(st.tuples(st.integers(1, 3), COUNT), max_size=3)
)
steps = st.one_of(
    st.tuples(st.just("tell"), st.sampled_from("abc"), told, st.booleans()),
    st.tuples(st.just("again"), st.sampled_from("abc"), st.none(), st.just(True)),
    st.tuples(st.just("kill"), st.sampled_from("abc"), st.none(), st.just(True)),
)


def script() -> str:
    from specsplit_coordinator.requests.quota_server import SCRIPT

    return SCRIPT


def run(server: Any, prefix: str, me: str, told: Told, coordinators: int, renew: bool) -> list[Any]:
    head = [me, int(renew), LEASE_MS, coordinators, *MOST.values()]
    told_of = [told.held, told.waiting, told.generation, told.used, told.acknowledged, len(told.asks)]
    asks = [number for ask in told.asks for number in ask]
    return server.eval(script(), 2, f"{prefix}coordinators", f"{prefix}client", *head, *told_of, *asks)


def seconds(server: Any) -> float:
    now, micros = server.time()
    return now + micros / 1e6


@settings(deadline=None, max_examples=150)
@given(st.lists(steps, max_size=25), st.integers(1, 3))
def test_the_script_does_what_the_model_says(
    server: Any, sequence: list[tuple[str, str, Told | None, bool]], coordinators: int
) -> None:
    prefix, model, last = f"{next(_numbers)}:", Model(), dict[str, Told]()
    clock = seconds(server)
    for what, me, said, renew in sequence:
        if what == "kill":
            server.hdel(f"{prefix}coordinators", me)  # as it is when a lease has run out
            model.live.discard(me)
            last.pop(me, None)
            continue
        told = said if what == "tell" else last.get(me)
        if told is None:
            continue
        before = last.get(me)
        told = Told(told.held, told.waiting, told.used, before.used if before else told.used, told.asks)
        last[me] = told
        before_s = seconds(server)
        exact, known, (held, waiting, level, *codes) = run(server, prefix, me, told, coordinators, renew)
        after_s = seconds(server)
        model.passed(max(0.0, before_s - clock - 0.002), after_s - clock + 0.002)
        clock = after_s
        if renew:
            model.live.add(me)
        is_exact, others, queued, answers = model.tell(me, told, coordinators)
        assert (bool(exact), known, held, waiting) == (is_exact, len(model.live), others, queued)
        assert model.least - 0.01 <= float(level) <= model.most + 0.01
        for code, may in zip(codes, answers, strict=True):
            assert code in may or (may <= {GRANTED, OVER_QUEUED, NO_TOKENS} and abs(float(level)) < 0.05)
        granted = [ask for ask, code in zip(told.asks, codes, strict=True) if code == GRANTED] if exact else []
        model.held[me] = told.held + sum(places for places, _ in granted)
        model.waiting[me] = max([told.waiting, *(waits for _, waits in granted)])
        stored = server.hgetall(f"{prefix}client")
        assert int(stored.get(f"r:{me}", 0)) == model.held[me]
        assert int(stored.get(f"q:{me}", 0)) == model.waiting[me]
        if granted:
            assert sum(model.held.values()) <= MOST["requests"]


def test_what_is_told_twice_counts_once_and_a_new_generation_counts_from_what_was_answered(server: Any) -> None:
    prefix = f"{next(_numbers)}:"

    def left(told: Told) -> int:
        return round(float(run(server, prefix, "a", told, 1, True)[2][2]))

    assert left(Told(1, 0, 40, 0, [])) == 20
    assert left(Told(1, 0, 40, 0, [])) == 20, "the answer was lost"
    assert left(Told(1, 0, 50, 40, [])) == 10
    assert left(Told(1, 0, 45, 50, [])) == 15, "given back: the request never got to a verifier"
    assert left(Told(1, 0, 5, 0, [], generation=2)) == 10
    server.delete(f"{prefix}client")
    assert left(Told(1, 0, 9, 5, [], generation=2)) == 56, "the store has forgotten, and 5 of the 9 had been answered"


def test_keys_end_by_themselves_with_the_leases_and_when_the_tokens_are_back(server: Any) -> None:
    prefix = f"{next(_numbers)}:"
    run(server, prefix, "a", Told(1, 0, 0, 0, []), 1, True)
    assert 0 < server.pttl(f"{prefix}coordinators") <= LEASE_MS
    assert LEASE_MS < server.pttl(f"{prefix}client") <= 2 * LEASE_MS
    run(server, prefix, "a", Told(1, 0, 60 * 30, 0, []), 1, True)
    assert 2 * LEASE_MS < server.pttl(f"{prefix}client") <= 30 * 60_000 + 1000


def test_the_lease_of_a_coordinator_that_is_not_heard_of_runs_out(server: Any) -> None:
    prefix = f"{next(_numbers)}:"
    head = ["a", 1, 30, 1, *MOST.values()]
    server.eval(script(), 2, f"{prefix}coordinators", f"{prefix}client", *head, 4, 0, 1, 0, 0, 0)
    until = seconds(server) + 0.05
    while seconds(server) < until:
        pass
    exact, known, (held, _, _, code) = run(server, prefix, "b", Told(0, 0, 0, 0, [(5, 0)]), 1, True)
    assert (exact, known, held, code) == (1, 1, 0, GRANTED)


def test_a_store_that_knows_fewer_coordinators_than_there_are_grants_nothing(server: Any) -> None:
    prefix = f"{next(_numbers)}:"
    exact, known, (held, _, _, _code) = run(server, prefix, "a", Told(1, 0, 0, 0, [(1, 0)]), 2, True)
    assert (exact, known, held) == (0, 1, 0)
    assert server.hget(f"{prefix}client", "r:a") == "1", "what is on its way counts, and what was asked for does not"
