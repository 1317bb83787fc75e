"""The default plan is changed while sessions run: they follow between steps, to no drafts at all and back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from specsplit.features import LAST, FeatureNeed
from specsplit.sessions import DecodeRequest, Tokens
from specsplit.settings import VerifierSettings
from specsplit.speculation import Grow
from specsplit.values import Adaptive, Control, Endpoint, FinishReason, Plan, PlanChanges, Stopping, Vocabulary
from specsplit_verifier.drafters.pool import DrafterPool
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.policy.adaptive.choice import controller_for
from specsplit_verifier.policy.planner import Planner
from specsplit_verifier.sessions.no_drafter import NoDrafter
from tests.drafter.service_toys import drafter
from tests.support.eventually import eventually
from tests.support.sessions import drafting_for, session_of
from tests.support.toys import alphabet_target
from tests.verifier.conftest import decode, recorded, verifier_over
from tests.verifier.reader import features_of, reading, three_layers

ALPHABET = b"abcdefghijklmnopqrstuvwxyz"
PROMPT = ALPHABET + b"abcdefg"
OWN = {"num_steps": 4, "num_draft_tokens": 5, "draft_ahead": False, "wait_budget_us": 20_000_000}
"""The verifier waits for every answer, so that nothing depends on how fast the drafter is."""


class Running:
    """A session that goes on, and what its steps bring."""

    def __init__(self, verifier: Verifier, request: DecodeRequest) -> None:
        self.events = verifier.decode(request)
        self.written = list(request.tokens)
        self.drafted = 0

    async def until(self, lowest: int, highest: int) -> None:
        """Return once three steps in a row have had so many nodes; what was under way when the plan changed comes before them."""
        row = 0
        while row < 3:
            event = await anext(self.events)
            assert isinstance(event, Tokens), (
                f"it ended or was preempted, and never had {lowest} to {highest} nodes in a step"
            )
            self.written += event.tokens
            row = row + 1 if lowest <= event.speculation.drafted - self.drafted <= highest else 0
            self.drafted = event.speculation.drafted


def follows_the_alphabet(written: Sequence[int]) -> bool:
    start = ALPHABET.index(written[0])
    return bytes(written) == (ALPHABET * 300)[start : start + len(written)]


def test_a_session_is_replanned_and_its_drafter_is_told() -> None:
    request = DecodeRequest("r", (1,), plan=PlanChanges(topk=3))
    planner = Planner(Plan(num_steps=5, topk=4, num_draft_tokens=8), 100)
    session = session_of(1, request, planner.plan_of(request.plan))
    session.drafter = drafting_for()
    planner.replan(PlanChanges(num_steps=9, topk=8, num_draft_tokens=64, wait_budget_us=5, draft_ahead=False))
    pool = DrafterPool(Vocabulary(100), 50)
    wanted = planner.plan_of(request.plan)
    assert wanted == Plan(num_steps=9, topk=3, num_draft_tokens=64, wait_budget_us=5, draft_ahead=False)
    pool.replan(session, wanted, 1.0)
    assert pool.outgoing() == [("drafter", 1, wanted)]
    assert session.plan == wanted
    pool.replan(session, wanted, 2.0)
    assert pool.outgoing() == [], "it has been told"
    session.drafter = NoDrafter(needed=True)
    pool.replan(session, Plan(), 3.0)
    assert pool.outgoing() == [] and session.plan == Plan()


def test_an_operator_puts_another_controller_in_the_place_of_the_launched_one_and_that_one_back(tmp_path: Path) -> None:
    settings = VerifierSettings(model=tmp_path, num_steps=3, num_draft_tokens=7, adaptive=Adaptive.STATIC)
    planner = Planner(settings.plan, 100, partial(controller_for, settings))
    planner.replan(PlanChanges(topk=2), Control(Adaptive.EMA))
    assert planner.default == replace(settings.plan, topk=2), "the tier that was asked for"
    planner.adapt(64)
    assert planner.default.num_steps == 0, "a batch of this size has no other tier"
    planner.replan(PlanChanges(), Control(Adaptive.EMA))
    assert planner.default.num_steps == 0, "it is the same controller still"
    planner.replan(PlanChanges())
    assert planner.default == settings.plan


def test_a_drafter_that_rested_is_waited_for_again_once_it_is_told_of_another_plan() -> None:
    serial = Plan(draft_ahead=False, wait_budget_us=1_000_000)
    session = session_of(plan=serial)
    drafter = session.drafter = drafting_for()
    drafter.begin(0, now=0.0)
    drafter.grow(Grow(0, (1,), (0,), (7,), (-0.5,), resting=True), 0.1)
    drafter.apply_grows(session.tree_limits, prefilling=False)
    assert drafter.pause(0.2, session.plan, session.tree_limits) == 0.0, "nothing more will come"
    pool = DrafterPool(Vocabulary(100), 50)
    pool.replan(session, replace(serial, num_steps=9), 0.2)
    assert drafter.pause(0.3, session.plan, session.tree_limits) > 0.0
    drafter.grow(Grow(0, (2,), (1,), (8,), (-0.6,), resting=True), 0.4)
    drafter.apply_grows(session.tree_limits, prefilling=False)
    assert drafter.pause(0.4, session.plan, session.tree_limits) == 0.0


async def test_a_file_of_tiers_that_is_gone_after_the_start_changes_nothing(alphabet: Path, tmp_path: Path) -> None:
    """A coordinator gives its order again at every join, which must not fail for what became of the file meanwhile."""
    tiers = tmp_path / "tiers.json"
    tiers.write_text('{"1": {"candidate_steps": [1, 3]}}')
    async with verifier_over(alphabet, adaptive=Adaptive.EMA, adaptive_config=tiers) as verifier:
        tiers.unlink()
        verifier.replan(PlanChanges(topk=2))
        verifier.replan(PlanChanges(topk=2))
        tokens, end = await decode(verifier, DecodeRequest("r", PROMPT, stopping=Stopping(5)))
        assert verifier.engine.statistics().plan.default.topk == 2 and verifier.control.adaptive is Adaptive.EMA
    assert bytes(tokens) == b"hijkl" and end.reason is FinishReason.LENGTH


@pytest.fixture(scope="module")
def long_alphabet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a longer context."""
    return alphabet_target(tmp_path_factory.mktemp("long"), max_context=8192)


async def test_the_plan_changes_for_running_sessions_too_and_comes_back(long_alphabet: Path) -> None:
    async with (
        drafter() as (server, _, _),
        verifier_over(long_alphabet, kv_tokens=32768, paced_step_base_ms=3.0, **OWN) as verifier,
    ):
        request = DecodeRequest("r", list(PROMPT), stopping=Stopping(6000), drafter=Endpoint("ngram", server.bound))
        free, fixed = Running(verifier, request), Running(verifier, replace(request, plan=PlanChanges(num_steps=2)))
        await free.until(4, 4)
        for off in (PlanChanges(num_steps=0), PlanChanges(num_draft_tokens=1)):
            verifier.replan(off)
            await free.until(0, 0)
            late = Running(verifier, request)
            await late.until(0, 0)
            await fixed.until(*((2, 4) if off.num_steps == 0 else (0, 0)))  # it fixed num_steps and nothing else
            verifier.replan(PlanChanges(num_steps=1))
            await free.until(1, 2)
            await late.until(1, 2)
            await late.events.aclose()
        verifier.replan(PlanChanges())
        await free.until(4, 4)
        await fixed.until(2, 4)
        for session in (free, fixed):
            assert follows_the_alphabet(session.written)
            await session.events.aclose()


async def test_a_running_session_gets_what_a_larger_plan_allows(alphabet: Path) -> None:
    own = OWN | {"num_draft_tokens": 2}
    async with drafter() as (server, _, _), verifier_over(alphabet, paced_step_base_ms=5.0, **own) as verifier:
        records = recorded(verifier)
        endpoint = Endpoint("ngram", server.bound)
        request = DecodeRequest("r", list(PROMPT), stopping=Stopping(200), drafter=endpoint)
        early = asyncio.create_task(decode(verifier, request))
        await eventually(lambda: records)
        few = max(record.drafted for record in records)
        verifier.replan(PlanChanges(num_draft_tokens=64))
        tokens, end = await early
        most = max(record.drafted for record in records)
    assert follows_the_alphabet([*PROMPT, *tokens])
    assert few <= 1 and most == 4 and end.reason is FinishReason.LENGTH


async def test_a_head_is_not_opened_where_nothing_is_drafted_and_is_fed_all_it_missed_when_it_is(
    tmp_path: Path,
) -> None:
    target, need = three_layers(tmp_path), FeatureNeed(layers=(1, LAST), hidden_size=32)
    prompt = [(7 * i * i) % 16 for i in range(40)]
    request = DecodeRequest("r", prompt, stopping=Stopping(200, ignore_eos=True))
    async with verifier_over(target) as verifier:
        text = prompt + (await decode(verifier, request))[0]
    paced = {"num_draft_tokens": 9, "paced_step_base_ms": 3.0, "step_token_budget": 16}
    async with reading(need, [text]) as (reader, endpoint), verifier_over(target, **OWN | paced) as verifier:
        records = recorded(verifier)
        verifier.replan(PlanChanges(num_steps=0))
        running = Running(verifier, replace(request, drafter=endpoint))
        await running.until(0, 0)
        assert not reader.sessions and not any(record.recomputed_tokens for record in records)
        verifier.replan(PlanChanges())
        await running.until(5, 8)
        verifier.replan(PlanChanges(num_steps=0))
        await running.until(0, 0)
        assert not reader.sessions[1].closed, "once it is open it stays so, and is fed"
        verifier.replan(PlanChanges())
        await running.until(5, 8)
        await running.events.aclose()
        await reader.all_closed()
    assert running.written == text[: len(running.written)]
    reader.check(1, text, features_of(target, text, need))


async def test_draft_ahead_goes_off_and_on_for_running_sessions(long_alphabet: Path) -> None:
    async with (
        drafter() as (server, _, _),
        verifier_over(
            long_alphabet, kv_tokens=32768, paced_step_base_ms=10.0, **{**OWN, "draft_ahead": True}
        ) as verifier,
    ):
        records = recorded(verifier)
        request = DecodeRequest("r", list(PROMPT), stopping=Stopping(6000), drafter=Endpoint("ngram", server.bound))
        running = Running(verifier, request)

        async def until(steps: int, *, hit: bool) -> None:
            """Return once so many steps in a row have been hits, or misses."""
            while [record.hits > 0 for record in records[-steps:]] != steps * [hit]:
                await running.until(0, 4)

        await until(1, hit=True)
        verifier.replan(PlanChanges(draft_ahead=False))
        await until(8, hit=False)  # a drafter that rests while a step runs has no node for the bonus
        verifier.replan(PlanChanges())
        await until(1, hit=True)
        assert follows_the_alphabet(running.written)
        await running.events.aclose()
