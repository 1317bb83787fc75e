"""What those who watch a session of a real verifier, with a drafter that says what a test tells it, get to see."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from specsplit.errors import NotFound
from specsplit.sessions import DecodeRequest, Tokens, WatchedStep
from specsplit.speculation import Draft, Grow
from specsplit.v1 import drafter_pb2
from specsplit.values import Plan, PlanChanges, SpeculationStatistics, Stopping
from specsplit.wire.watching import Watched
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.events import FromDrafter, Inbound
from specsplit_verifier.records.step import SessionResult, TreeView
from specsplit_verifier.report.watching import EVENTS_KEPT, Watching
from specsplit_verifier.sessions.no_drafter import NoDrafter
from tests.verifier.conftest import decode, verifier_over
from tests.verifier.test_drafters import grow, scripted

PLAN = PlanChanges(num_steps=4, topk=2, num_draft_tokens=4, wait_budget_us=20_000_000, draft_ahead=False)
"""The verifier waits for every answer, so that no grow crosses a commit."""
TOKENS = 24


def always_three(event: drafter_pb2.DraftRequestEvent) -> drafter_pb2.DraftResponseEvent | None:
    """After every commit: the right next letter, a wrong one beside it, the letter after the right one, and one too unlikely to verify."""
    if event.WhichOneof("event") == "open":
        root, commits = event.open.token_ids[-1], 0
    elif event.WhichOneof("event") == "commit":
        root, commits = event.commit.token_ids[-1], event.commit.number
    else:
        return None
    first = 10 * commits + 1
    return grow(
        event.session_id,
        commits=commits,
        ids=range(first, first + 4),
        parents=[0, 0, first, first + 1],
        token_ids=[root + 1, ord("#"), root + 2, ord("#")],
        edges=[-0.1, -1.0, -0.1, -8.0],
        resting=True,
    )


async def watch(verifier: Verifier, request_id: str) -> list[tuple[Watched, int]]:
    """Everything there is to see of a session, from as soon as it is there."""
    while True:
        try:
            async with aclosing(verifier.watch(request_id)) as events:
                return [event async for event in events]
        except NotFound:
            await asyncio.sleep(0)


@pytest.fixture
async def serving(alphabet: Path) -> AsyncIterator[tuple[Verifier, DecodeRequest]]:
    async with scripted(always_three) as (_, endpoint), verifier_over(alphabet) as verifier:
        yield verifier, DecodeRequest("seen", list(b"a"), stopping=Stopping(TOKENS), plan=PLAN, drafter=endpoint)


async def test_every_step_is_seen_whole_and_adds_up_to_the_reply(serving: tuple[Verifier, DecodeRequest]) -> None:
    verifier, request = serving
    seeing = asyncio.create_task(watch(verifier, "seen"))
    tokens, finished = await decode(verifier, request)
    events = await asyncio.wait_for(seeing, 10)
    assert {missed for _, missed in events} == {0}
    steps = [event for event, _ in events if isinstance(event, WatchedStep)]
    assert [step.speculation.steps for step in steps] == list(range(1, finished.speculation.steps + 1))
    assert sum(len(step.accepted) - 1 for step in steps) == finished.speculation.accepted
    assert sum(sum(step.verified) - 1 for step in steps) == finished.speculation.drafted
    told = [t for s in steps for t in [*(s.tokens[i] for i in s.accepted[1:]), s.bonus][: s.committed]]
    assert told == tokens
    middle = steps[1]
    right, wrong, second, unlikely = range(1, 5)
    assert [middle.parents[middle.ids.index(11 + i)] for i in range(4)] == [
        0,
        0,
        middle.ids.index(11),
        middle.ids.index(12),
    ]
    at = {i: middle.ids.index(10 + i) for i in (right, wrong, second, unlikely)}
    assert tuple(middle.accepted) == (0, at[right], at[second])
    assert [middle.verified[at[i]] for i in (right, wrong, second, unlikely)] == [True, True, True, False]
    assert middle.plan == PLAN.over(verifier.plan)
    assert [step.commits for step in steps[:-1]] == list(range(1, len(steps)))


async def test_what_grows_between_steps_is_seen_too(serving: tuple[Verifier, DecodeRequest]) -> None:
    verifier, request = serving
    seeing = asyncio.create_task(watch(verifier, "seen"))
    await decode(verifier, request)
    events = [event for event, _ in await asyncio.wait_for(seeing, 10)]
    grown = [event for event in events if isinstance(event, Grow)]
    assert grown
    for event in grown:
        assert event.ids == tuple(range(10 * event.commits + 1, 10 * event.commits + 5))


async def test_a_session_without_a_drafter_is_seen_as_its_roots(
    alphabet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with verifier_over(alphabet) as verifier:
        submitted: list[Inbound] = []
        monkeypatch.setattr(verifier.sessions, "_post", submitted.append)  # until somebody watches
        seeing = asyncio.create_task(watch(verifier, "alone"))
        decoding = asyncio.create_task(decode(verifier, DecodeRequest("alone", list(b"a"), stopping=Stopping(4))))
        async with asyncio.timeout(10):
            while not (verifier.watched and submitted):
                await asyncio.sleep(0)
        monkeypatch.undo()
        for event in submitted:
            verifier.engine.post(event)
        tokens, _ = await decoding
        steps = [event for event, _ in await asyncio.wait_for(seeing, 10)]
    assert bytes(tokens) == b"bcde"
    assert [(step.ids, step.tokens, step.bonus) for step in steps if isinstance(step, WatchedStep)] == [
        ([0], [letter], letter + 1) for letter in b"abcd"
    ]


async def test_of_two_sessions_with_one_name_the_later_is_watched_and_others_are_not_looked_at(
    serving: tuple[Verifier, DecodeRequest],
) -> None:
    verifier, request = serving
    other = DecodeRequest("other", list(b"m"), stopping=Stopping(200))
    unseen = asyncio.create_task(decode(verifier, other))
    seeing = asyncio.create_task(watch(verifier, "seen"))
    await decode(verifier, request)
    events = await asyncio.wait_for(seeing, 10)
    assert not verifier.watched
    steps = [event for event, _ in events if isinstance(event, WatchedStep)]
    assert {chr(step.tokens[0]) for step in steps} <= set("abcdefghijklmnopqrstuvwxyz")
    assert steps[0].tokens[0] == ord("a")
    await unseen


async def test_while_nobody_looks_nothing_is_asked_of_the_engine(serving: tuple[Verifier, DecodeRequest]) -> None:
    verifier, request = serving
    assert not verifier.watching and not verifier.watched
    await decode(verifier, request)
    with pytest.raises(NotFound, match="no session of request 'seen' is here"):
        await look_until_gone(verifier)


async def look_until_gone(verifier: Verifier) -> None:
    """The call is over a moment after its last event."""
    while True:
        async with aclosing(verifier.watch("seen")) as events:
            assert [event async for event in events] == []


def seen(session: int) -> SessionResult:
    """A step of a session without a drafter, and what a watcher sees of it."""
    tree = TreeView((0,), (-1,), (1,), (0.0,))
    told = Tokens((2,), 0, SpeculationStatistics(1))
    return SessionResult(session, Plan(), Draft.root_alone(1, 0), (0,), 2, False, None, told, tree=tree)


async def test_who_reads_too_slowly_misses_the_oldest_and_is_told_how_many() -> None:
    watching = Watching()
    watching.began(7, "seen")
    events = watching.watch("seen")
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    watching.stepped([seen(7), seen(8)])
    assert (await first)[1] == 0
    watching.stepped([seen(7)] * (EVENTS_KEPT + 5))
    assert watching.watched == {7}
    watching.ended(7)
    rest = [event async for event in events]
    assert [missed for _, missed in rest] == [5] + [0] * (EVENTS_KEPT - 1)
    assert not watching.watched


async def test_a_grow_that_is_no_tree_is_not_shown_to_anybody() -> None:
    watching = Watching()
    watching.began(1, "r")
    sound, misshapen = Grow(0, (1,), (0,), (7,), (-0.5,)), Grow(0, (2, 1), (0, 0), (7, 8), (-0.5, math.nan))
    async with aclosing(watching.watch("r")) as events:
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        watching.grown(FromDrafter("drafter", [(1, misshapen), (1, sound)]))
        assert (await first)[0] == sound


def test_of_a_drafter_that_was_lost_during_a_step_what_was_taken_is_seen_as_it_was_grown() -> None:
    draft = Draft([0, 2, 3, 1], [7, 8, 9, 6], [-1, 0, 1, 0], [4, 5, 6, 5], [0.0, -0.1, -0.2, -0.9])
    assert NoDrafter().view(draft) == TreeView([0, 1, 2, 3], [-1, 0, 0, 2], [7, 6, 8, 9], [0.0, -0.9, -0.1, -0.1])
