"""With bias and penalties the text is what transformers writes with its own processors, and a drafter that is the target always right."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from specsplit.errors import InvalidRequest
from specsplit.membership import Roster
from specsplit.sessions import DecodeRequest, Tokens
from specsplit.v1 import verifier_pb2
from specsplit.values import Endpoint, PlanChanges, Sampling, Stopping
from specsplit.wire.verifier import decode_from_wire
from tests.support.drafting import drafter_process
from tests.support.sampling import processors
from tests.support.toys import random_target
from tests.verifier.conftest import decode, recorded, verifier_over

pytestmark = pytest.mark.usefixtures("forked")

VOCAB, NEW = 64, 40
PROMPTS = [[3, 7, 1, 3, 7, 1, 3], [5], [9, 9, 9, 20, 41], [63, 0, 62]]
ASKED = {
    "logit bias": Sampling(logit_bias=((1, 1.5), (3, -100.0), (40, 3.0))),
    "repetition": Sampling(repetition_penalty=1.3),
    "rewarded repetition": Sampling(repetition_penalty=0.8),
    "frequency": Sampling(frequency_penalty=0.7),
    "presence": Sampling(presence_penalty=1.9),
    "all": Sampling(
        logit_bias=((1, 2.0), (3, -100.0)), repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=-0.4
    ),
}
CHAIN = PlanChanges(num_steps=4, topk=1, draft_ahead=False, wait_budget_us=10_000_000)
"""Every step has a full chain, however busy the machine."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_target(tmp_path_factory.mktemp("target"), VOCAB)


def by_transformers(model: PreTrainedModel, prompt: list[int], asked: Sampling) -> list[int]:
    """What its own greedy search writes with its own processors."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(  # pyright: ignore[reportCallIssue]
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, pad_token_id=0,
            logits_processor=processors(asked, len(prompt)),
        )  # fmt: skip
    return output[0, len(prompt) :].tolist()


def request(prompt: list[int], asked: Sampling, drafter: Endpoint | None = None) -> DecodeRequest:
    plan = CHAIN if drafter else PlanChanges()
    return DecodeRequest("r", prompt, asked, Stopping(NEW, ignore_eos=True), plan, drafter)


async def test_greedy_text_is_what_transformers_writes_with_its_own_processors(folder: Path) -> None:
    wanted = [(prompt, asked) for prompt in PROMPTS for asked in (*ASKED.values(), Sampling())]
    async with verifier_over(folder, max_sessions=32) as verifier:  # all of them beside one another
        written = await asyncio.gather(*(decode(verifier, request(*each)) for each in wanted))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for (prompt, asked), (tokens, _) in zip(wanted, written, strict=True):
        assert tokens == by_transformers(model, prompt, asked)
    assert len({tuple(tokens) for tokens, _ in written[: len(ASKED) + 1]}) == len(ASKED) + 1, "each says something else"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_drafter_that_is_the_target_is_accepted_whole(folder: Path, temperature: float) -> None:
    """Both sides compute the same: what is committed, what is drafted above a node, which of it was generated."""
    asked = [replace(each, temperature=temperature, top_k=20, seed=4) for each in ASKED.values()]
    wanted = [(prompt, each) for prompt in PROMPTS for each in asked]
    async with (
        drafter_process("standalone", model=folder) as drafter,
        verifier_over(folder, max_sessions=32) as verifier,
    ):
        alone = await asyncio.gather(*(decode(verifier, request(*each)) for each in wanted))
        drafted = await asyncio.gather(*(decode(verifier, request(*each, drafter)) for each in wanted))
    assert [tokens for tokens, _ in drafted] == [tokens for tokens, _ in alone]
    for _, end in drafted:
        assert end.speculation.accepted == end.speculation.drafted > NEW / 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_text_is_the_same_with_a_drafter_that_knows_no_penalties(folder: Path, temperature: float) -> None:
    asked = [replace(each, temperature=temperature, seed=5) for each in ASKED.values()]
    wanted = [(prompt, each) for prompt in PROMPTS for each in asked]

    async with drafter_process("ngram") as drafter, verifier_over(folder, max_sessions=32) as verifier:
        alone = await asyncio.gather(*(decode(verifier, request(*each)) for each in wanted))
        drafted = await asyncio.gather(*(decode(verifier, request(*each, drafter)) for each in wanted))
    assert [tokens for tokens, _ in drafted] == [tokens for tokens, _ in alone]


async def test_a_drafter_that_comes_in_the_middle_knows_what_was_generated(folder: Path) -> None:
    asked = ASKED["all"]
    async with verifier_over(folder) as verifier:
        alone, _ = await decode(verifier, request(PROMPTS[0], asked))
    async with (
        drafter_process("standalone", model=folder) as second,
        verifier_over(folder, paced_step_base_ms=50.0) as verifier,
    ):
        steps = recorded(verifier)
        verifier.engine.post(Roster((second,)))
        async with drafter_process("standalone", model=folder) as first:
            events = verifier.decode(request(PROMPTS[0], asked, first))
            begun = [await anext(events) for _ in range(3)]
        rest = [event async for event in events]
    tokens = [token for event in (*begun, *rest) if isinstance(event, Tokens) for token in event.tokens]
    assert tokens == alone
    switched = next(number for number, step in enumerate(steps) if step.drafts.failovers)
    after = [session for step in steps[switched:] for session in step.sessions]
    assert sum(session.drafted for session in after) > 8
    assert all(session.accepted == session.drafted for session in after)


def test_a_bias_on_a_token_that_is_none_is_refused_by_name() -> None:
    message = verifier_pb2.DecodeRequest(token_ids=[1], sampling={"logit_bias": {VOCAB: 1.0}})
    with pytest.raises(InvalidRequest) as caught:
        decode_from_wire(message, VOCAB)
    assert caught.value.field == f"sampling.logit_bias[{VOCAB}]"
