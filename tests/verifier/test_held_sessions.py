"""Output that is held to a constraint is that of one verifier without drafts, also of sessions that are preempted in the middle of it, and
on the ranks of a group."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import pytest

from specsplit.sessions import DecodeRequest, Finished, Preempted, Tokens
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import (
    Constraint,
    ConstraintKind,
    DrafterKind,
    Endpoint,
    FinishReason,
    PlanChanges,
    Sampling,
    Stopping,
)
from specsplit_verifier.edge.verifier import Verifier
from tests.support.drafting import POCKET, endpoint_of, pocket_drafters
from tests.support.grammars import CONSTRAINTS
from tests.support.rank_groups import ranks_over
from tests.support.slow import slowly
from tests.verifier.conftest import verifier_over

pytestmark = pytest.mark.usefixtures("forked")

PROMPT = tuple(Tokenizer.load(POCKET).encode("def parts():\n    return "))
SAMPLINGS = [Sampling(), Sampling(0.9, seed=4), Sampling(1.1, top_p=0.9, seed=5, repetition_penalty=1.1)]
LONG = Constraint(ConstraintKind.REGEX, r"(\[[a-z]{2,9}\], ){30}")
HELD = [CONSTRAINTS["json_schema"], CONSTRAINTS["grammar"], CONSTRAINTS["structural_tag"], LONG]
WAYS = [*product(HELD, SAMPLINGS)]
CHAIN = PlanChanges(num_steps=4, topk=2, num_draft_tokens=8, draft_ahead=False, wait_budget_us=10_000_000)
"""Every step waits for its drafts, however busy the machine."""
LITTLE = 16 * 9
"""Room for the KV of a few sessions, in tokens: the others are preempted, and wait."""


class Output(NamedTuple):
    """What one session says."""

    tokens: list[int]
    reason: FinishReason


class Written(NamedTuple):
    """What came of sessions that ran side by side."""

    outputs: list[Output]
    preempted: int
    """How many of them were, in the middle of their output."""
    accepted: int
    """Tokens that were drafted."""


async def write(verifier: Verifier, drafter: Endpoint | None, **how: Any) -> Written:
    """One session of each way."""
    asked = [
        DecodeRequest(str(number), PROMPT, sampling, Stopping(72), drafter=drafter, constraint=constraint, **how)
        for number, (constraint, sampling) in enumerate(WAYS)
    ]
    plan = PlanChanges() if drafter is None else CHAIN
    sessions = await asyncio.gather(*(_session(verifier, replace(each, plan=plan)) for each in asked))
    outputs, preempted, accepted = zip(*sessions, strict=True)
    return Written([*outputs], sum(preempted), sum(accepted))


async def _session(verifier: Verifier, asked: DecodeRequest) -> tuple[Output, bool, int]:
    tokens, preempted = list[int](), False
    async for event in verifier.decode(asked):
        match event:
            case Tokens():
                tokens += event.tokens
            case Preempted():
                preempted |= bool(tokens)
            case Finished():
                return Output(tokens, event.reason), preempted, event.speculation.accepted
            case _:
                pass
    raise AssertionError("the stream ended without an end")


async def alone() -> list[Output]:
    async with verifier_over(POCKET, max_sessions=64) as verifier:
        written = await write(verifier, None)
    assert not written.preempted and not written.accepted
    assert {each.reason for each in written.outputs} == {FinishReason.STOP, FinishReason.LENGTH}
    return written.outputs


@pytest.mark.parametrize("kind", [DrafterKind.EAGLE3, *slowly(DrafterKind.NGRAM, DrafterKind.DFLASH)])
async def test_who_is_preempted_in_the_middle_goes_on_where_the_grammar_stood(kind: DrafterKind) -> None:
    expected = await alone()
    async with (
        pocket_drafters(kind) as drafters,
        verifier_over(POCKET, max_sessions=64, kv_tokens=LITTLE) as verifier,
    ):
        written = await write(verifier, endpoint_of(drafters[kind]))
    assert written.outputs == expected and written.preempted and written.accepted


@pytest.mark.slow
@pytest.mark.parametrize("lookup", [False, True])
async def test_who_is_preempted_without_a_drafter_goes_on_and_is_looked_up_for_again(lookup: bool) -> None:
    expected = await alone()
    async with verifier_over(POCKET, max_sessions=64, kv_tokens=LITTLE, lookup=lookup) as verifier:
        written = await write(verifier, None, any_drafter=lookup, scope=b"a")
    assert written.outputs == expected and written.preempted and bool(written.accepted) == lookup


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DrafterKind.STANDALONE, DrafterKind.EAGLE3])
@pytest.mark.parametrize(("adaptive", "kv_tokens"), [("static", 16_384), ("goodput", LITTLE)])
async def test_ranks_of_a_group_write_what_one_verifier_does(adaptive: str, kv_tokens: int, kind: DrafterKind) -> None:
    expected = await alone()
    async with (
        pocket_drafters(kind) as drafters,
        ranks_over(POCKET, 2, adaptive=adaptive, max_sessions=64, kv_tokens=kv_tokens) as ranks,
    ):
        drafter = endpoint_of(drafters[kind])
        drafted, plain = await asyncio.gather(write(ranks.verifiers[0], drafter), write(ranks.verifiers[1], None))
    assert [drafted.outputs, plain.outputs] == [expected] * 2
    assert drafted.accepted and not plain.accepted
    assert bool(drafted.preempted) == bool(plain.preempted) == (kv_tokens == LITTLE)
