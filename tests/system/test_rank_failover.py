"""Sessions outlive their rank group at every position: real engines share the pocket target, and the coordinator's own parts place them.

From a group they go to a verifier that is alone, and from there to the group that has been started again. Every drafter takes part, every
verifier has plans at random and a prefix cache, and the group may be one of a single rank.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from specsplit.client import make_request
from specsplit.clock import SystemClock
from specsplit.errors import Unavailable
from specsplit.membership import Register, StartWave
from specsplit.requests import GenerateRequest
from specsplit.sessions import Tokens
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import FinishReason
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.members.verifier_session import VerifierSession
from specsplit_verifier.edge.verifier import Verifier
from tests.support.drafting import POCKET, POCKET_KINDS, pocket_drafters
from tests.support.rank_groups import ShardedTargets, settings_of
from tests.support.restless import restless
from tests.support.slow import slowly
from tests.system.test_failover import HOW, World, around, same
from tests.verifier.conftest import recorded, verifier_over

PROMPT = "import os\n\n\ndef walk(top):\n    for name in os.listdir(top):\n        path = os.path.join(top, name)\n        if "
NEW, FURTHER = 8, 2
KINDS = ["none", *POCKET_KINDS]


@dataclass
class Act:
    """While it lasts sessions decode up to a position, and wait there for the others. Then it is over for all of them."""

    until: int = NEW + 1
    awaited: int = 0
    """Sessions that have neither come there nor ended before."""
    let_down: int = 0
    at_end: Callable[[], Awaitable[None]] | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def reached(self) -> None:
        """A session is at the position; returns when all are."""
        self.let_down += 1
        await self.ended()
        await self.over.wait()

    async def ended(self) -> None:
        """One session less is on its way there."""
        self.awaited -= 1
        if self.awaited == 0 and self.at_end is not None:
            await self.at_end()
            self.over.set()


@dataclass
class Stage:
    """The Decoder over a group, which dies in the first act, and a verifier that is lost in the second; then the group is there again."""

    targets: ShardedTargets
    single: Verifier
    registry: Registry
    act: Act = field(default_factory=Act)
    verifiers: dict[str, Verifier] = field(default_factory=dict[str, Verifier])
    """Those that are there, by member id."""

    async def decode(self, verifier: MemberState, session: VerifierSession) -> None:
        act, let_down = self.act, False
        left = act.until - session.request.committed
        try:
            async with aclosing(self.verifiers[verifier.member_id].decode(session.request)) as events:
                async for event in events:
                    known = _first(event, left) if isinstance(event, Tokens) else event
                    if isinstance(known, Tokens):
                        left -= len(known.tokens)
                    if (not isinstance(known, Tokens) or known.tokens) and session.take([known]):
                        return
                    if left == 0:
                        let_down = True
                        await act.reached()
                        raise Unavailable("lost")
        finally:
            if not let_down:
                await act.ended()

    async def begin(self, position: int, sessions: int) -> None:
        """The group is there, and dies once so many sessions are at a position."""
        if "alone" in self.verifiers:
            await self._group()
        self.act = Act(position, sessions, at_end=self._group_dies)

    async def _group_dies(self) -> None:
        self.targets.meshes[0].die()
        goes_on = self.act.let_down if self.act.until < NEW else 0
        self.act = Act(min(NEW, self.act.until + FURTHER), goes_on, at_end=self._group)
        await self.alone()

    async def alone(self) -> None:
        """Nobody but the verifier that is alone is there."""
        await self._clear()
        self._joins(Register("alone", "a:1", self.single.info, 16), self.single)

    async def _group(self) -> None:
        settings, clock = settings_of(POCKET, max_sessions=16), SystemClock()
        await self._clear()
        self.act = Act()
        for number, runner in enumerate(await self.targets.runners(clock)):
            verifier = Verifier(settings, runner, clock)
            who = Register(f"rank-{number}", "a:1", verifier.info, 16, group=verifier.engine.rank.group)
            self._joins(who, verifier)

    def _joins(self, who: Register, verifier: Verifier) -> None:
        member, rank = self.registry.register(who), verifier.engine.rank
        self.verifiers[who.member_id] = verifier
        if (group := member.group) is not None:
            loop, hear = asyncio.get_running_loop(), self.registry.on_wave_report
            group.subscribe(lambda: verifier.engine.post(StartWave(group.wave)))
            rank.on_report = lambda: loop.call_soon_threadsafe(lambda: hear(member, rank.report))

    async def _clear(self) -> None:
        for member in self.registry.verifiers:
            self.registry.remove(member, "lost")
        for verifier in self.verifiers.values():
            if verifier is not self.single:
                await verifier.close()
        self.verifiers.clear()

    async def close(self) -> None:
        await self._clear()


def _first(event: Tokens, count: int) -> Tokens:
    return replace(event, tokens=event.tokens[:count], logprobs=event.logprobs[:count])


@asynccontextmanager
async def staged(tokenizer: Tokenizer, size: int) -> AsyncIterator[tuple[Stage, World]]:
    """The verifier that is alone, and drafters of all kinds."""
    async with AsyncExitStack() as stack:
        drafters = await stack.enter_async_context(pocket_drafters())
        single = await stack.enter_async_context(verifier_over(POCKET, kv_tokens=4096))
        registry = Registry(tokenizer.vocabulary, SystemClock(), 9.0)
        for drafter in drafters.values():
            registry.register(drafter)
        stage = Stage(ShardedTargets(POCKET, size), single, registry)
        await stage.alone()
        stack.push_async_callback(stage.close)
        yield stage, around(stage, registry, tokenizer)


@pytest.mark.parametrize("size", slowly(1, 2, 4))
async def test_a_group_that_dies_at_any_position_and_is_started_again_changes_nothing_that_callers_see(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    restless(monkeypatch)
    async with staged(Tokenizer.load(POCKET), size) as (stage, world):
        asked = dict(HOW)
        whole = {how: await world.ask(request_for(asked[how], "none")) for how in HOW}
        text = whole["greedy"].text
        asked["stop string"] = {"stop": (text[len(text) // 2 :][:4],)}
        whole["stop string"] = await world.ask(request_for(asked["stop string"], "none"))
        steps = recorded(stage.single)
        for position in range(NEW + 1):
            requests = [request_for(each, KINDS[(position + i) % len(KINDS)]) for i, each in enumerate(asked.values())]
            await stage.begin(position, sum(request.n for request in requests))
            async with asyncio.timeout(60):
                results = await asyncio.gather(*map(world.ask, requests))
            for how, request, result in zip(asked, requests, results, strict=True):
                same(result, whole[how])
                (logged,) = [each for each in world.log.requests if each.asked is request]
                if result.reason is FinishReason.LENGTH:  # else it may have been over before
                    losses = (position, position + FURTHER)  # behind the last token there is nothing that goes on
                    assert logged.failovers == request.n * sum(each < NEW for each in losses)
        assert sum(step.kv.cached_tokens for step in steps) > 0, "texts were found in the prefix cache"
        assert sum(step.accepted for step in steps) > 0


def request_for(options: dict[str, object], drafter: str) -> GenerateRequest:
    return make_request(PROMPT, max_tokens=NEW, ignore_eos=True, drafter=drafter, **options)  # pyright: ignore[reportArgumentType]
