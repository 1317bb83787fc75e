"""Log-probabilities of a prompt are those of transformers, told once and whole, whatever else happens to the session."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from specsplit.errors import InvalidRequest
from specsplit.model import RowPages
from specsplit.sessions import DecodeEvent, DecodeRequest, Finished, Preempted, Tokens
from specsplit.values import Endpoint, PromptLogprobs, Sampling, Stopping, TokenLogprob
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.policy.planner import prompt_chunks
from specsplit_verifier.records.step import ChunkInput, PromptPart
from specsplit_verifier.target.prompt_logprobs import PIECE, prompts_of, told_rows
from tests.drafter.service_toys import drafter
from tests.model.conftest import CONFIGS, OTHER_LAYERS, RECURRENT
from tests.support.own_model import own_model
from tests.support.prompt_logprobs import assert_told, expected
from tests.support.sessions import session_of
from tests.support.toys import random_target
from tests.verifier.conftest import recorded, verifier_over

VOCAB = 16
PROMPT = [(7 * i * i + 3) % VOCAB for i in range(150)]
KINDS = {**CONFIGS, **OTHER_LAYERS, **RECURRENT}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_target(tmp_path_factory.mktemp("random"), VOCAB)


def asking(
    prompt: Sequence[int] = PROMPT,
    most: int | None = 2,
    *,
    tokens: int = 1,
    committed: int = 0,
    sampling: Sampling | None = None,
    drafter: Endpoint | None = None,
) -> DecodeRequest:
    stopping, sampling = Stopping(tokens), sampling or Sampling()
    return DecodeRequest(
        "r", prompt, sampling, stopping, prompt_logprobs=most, committed=committed, drafter=drafter
    )  # fmt: skip


async def events_of(verifier: Verifier, request: DecodeRequest) -> list[DecodeEvent]:
    return [event async for event in verifier.decode(request)]


def whole(events: Sequence[DecodeEvent], prompt: Sequence[int]) -> list[TokenLogprob]:
    """All that was told of a prompt, which came without a gap, in pieces, before the first tokens."""
    pieces = [event for event in events if isinstance(event, PromptLogprobs)]
    first_tokens = next(i for i, event in enumerate(events) if isinstance(event, Tokens))
    assert all(isinstance(event, PromptLogprobs | Preempted) for event in events[:first_tokens])
    assert not any(isinstance(event, PromptLogprobs) for event in events[first_tokens:])
    assert [token for piece in pieces for token in piece.tokens] == list(prompt)
    assert [piece.first for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
    assert all(len(piece.logprobs) <= PIECE for piece in pieces)
    told = list(chain.from_iterable(piece.logprobs for piece in pieces))
    assert [each.token for each in told] == list(prompt[1:])
    return told


def rows_of(folder: Path, prompt: Sequence[int]) -> torch.Tensor:
    return expected(own_model(folder), prompt)


@pytest.mark.parametrize("most", [0, 1, 20])
@pytest.mark.parametrize("budget", [1, 7, 64, 512])
async def test_they_are_those_of_transformers_whatever_a_step_reads(folder: Path, budget: int, most: int) -> None:
    async with verifier_over(folder, step_token_budget=budget) as verifier:
        told = whole(await events_of(verifier, asking(most=most)), PROMPT)
    assert_told(told, rows_of(folder, PROMPT), most)
    if most >= VOCAB:
        sums = [math.fsum(math.exp(top.logprob) for top in each.top) for each in told]
        assert sums == pytest.approx([1.0] * len(sums), abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
async def test_targets_of_every_kind_tell_those_of_transformers(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(5)
    config = KINDS[kind]()
    config.eos_token_id = config.bos_token_id = None
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    prompt = [(11 * i * i + 5) % 97 for i in range(90)]
    async with verifier_over(tmp_path, step_token_budget=40) as verifier:
        both = await asyncio.gather(*(events_of(verifier, asking(part)) for part in (prompt, prompt[:70])))
    rows = rows_of(tmp_path, prompt)
    for part, events in zip((prompt, prompt[:70]), both, strict=True):
        assert_told(whole(events, part), rows[: len(part) - 1], 2)


async def test_temperature_bias_and_penalties_leave_them_as_they_are(folder: Path) -> None:
    sampling = Sampling(1.7, top_k=2, seed=4, logit_bias=((3, 50.0),), repetition_penalty=1.9, presence_penalty=1.0)
    async with verifier_over(folder) as verifier:
        told = whole(await events_of(verifier, asking(sampling=sampling, tokens=4)), PROMPT)
    assert_told(told, rows_of(folder, PROMPT), 2)


async def test_beside_others_and_drafts_nobody_gets_what_is_not_his(folder: Path) -> None:
    prompts = [PROMPT, PROMPT[40:120], PROMPT[:33], PROMPT[:2]]
    async with drafter() as (server, _, _), verifier_over(folder, step_token_budget=24) as verifier:
        requests = [
            asking(prompt, None if i % 3 == 2 else i, tokens=30, drafter=Endpoint("ngram", server.bound))
            for i, prompt in enumerate(prompts)
        ]
        alone = [await events_of(verifier, request) for request in requests]
        beside = await asyncio.gather(*(events_of(verifier, request) for request in requests))
    for request, *both in zip(requests, alone, beside, strict=True):
        texts = [[t for each in events if isinstance(each, Tokens) for t in each.tokens] for events in both]
        assert texts[0] == texts[1] and len(texts[0]) == 30
        for events in both:
            if request.prompt_logprobs is None:
                assert not any(isinstance(event, PromptLogprobs) for event in events)
            else:
                assert_told(whole(events, request.tokens), rows_of(folder, request.tokens), request.prompt_logprobs)


async def test_what_is_cached_is_read_again_by_who_asks_and_found_by_who_does_not(folder: Path) -> None:
    async with verifier_over(folder) as verifier:
        first = await events_of(verifier, asking())
        second = await events_of(verifier, asking())
        third = await events_of(verifier, asking(most=None))
    ends = [events[-1] for events in (first, second, third)]
    cached = [end.usage.cached_prompt_tokens for end in ends if isinstance(end, Finished)]
    assert cached == [0, 0, 144], "nine pages of 16 lie before the root"
    assert whole(first, PROMPT) == whole(second, PROMPT)


async def test_who_asks_waits_for_nobody_with_the_same_prompt_and_others_wait_for_him(folder: Path) -> None:
    async with verifier_over(folder, step_token_budget=16) as verifier:
        steps = recorded(verifier)
        both = await asyncio.gather(events_of(verifier, asking()), events_of(verifier, asking()))
        read = sum(step.prefill_tokens for step in steps)
        steps.clear()
        await events_of(verifier, asking(most=None))
    assert read == 2 * (len(PROMPT) - 1) and sum(step.prefill_tokens for step in steps) == len(PROMPT) - 1 - 144
    assert [len(whole(events, PROMPT)) for events in both] == [len(PROMPT) - 1] * 2


async def test_who_is_preempted_while_the_prompt_is_read_is_told_everything_once(folder: Path) -> None:
    """The first needs a page for every 16 tokens that it writes; the second, a token of whose prompt each step reads, gives its own."""
    first, second = asking(PROMPT[:16], tokens=120), asking(PROMPT[:100], tokens=8)
    async with verifier_over(folder, kv_tokens=160, step_token_budget=1) as verifier:
        steps = recorded(verifier)
        told = await asyncio.gather(*(events_of(verifier, request) for request in (first, second)))
        preempted = [i for i, event in enumerate(told[1]) if isinstance(event, Preempted)]
        assert preempted and isinstance(told[1][preempted[0] - 1], PromptLogprobs), "its prompt was being read"
        assert isinstance(told[1][preempted[-1] + 1], PromptLogprobs)
        assert sum(step.prefill_tokens for step in steps) > 15 + 99, "some of it was read again"
    for request, events in zip((first, second), told, strict=True):
        assert_told(whole(events, request.tokens), rows_of(folder, request.tokens), 2)


@pytest.mark.parametrize("length", [1, 2])
async def test_the_shortest_prompts(folder: Path, length: int) -> None:
    async with verifier_over(folder) as verifier:
        told = whole(await events_of(verifier, asking(PROMPT[:length])), PROMPT[:length])
    assert len(told) == length - 1


async def test_of_a_session_that_goes_on_the_prompt_alone_is_told(folder: Path) -> None:
    async with verifier_over(folder) as verifier:
        told = whole(await events_of(verifier, asking(committed=50, tokens=60)), PROMPT[:100])
    assert_told(told, rows_of(folder, PROMPT[:100]), 2)


@pytest.mark.parametrize("asked", [-1, 21])
def test_a_number_out_of_range_is_refused_by_name(asked: int) -> None:
    with pytest.raises(InvalidRequest, match=f"prompt_logprobs: is {asked}, expected 0..20 or nothing"):
        asking(most=asked)


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=6),
    asks=st.lists(st.booleans(), min_size=6, max_size=6),
    told=st.integers(1, 40),
    budget=st.integers(1, 64),
)
def test_a_step_has_logits_for_a_bounded_number_of_prompt_tokens_and_gets_on(
    lengths: list[int], asks: list[bool], told: int, budget: int
) -> None:
    sessions = [
        session_of(number, asking([1] * length, 1 if asked else None), tokens=length)
        for number, (length, asked) in enumerate(zip(lengths, asks, strict=False))
    ]
    chunks = prompt_chunks(sessions, budget, told)
    assert sum(size for session, size in chunks if session.telling) <= told
    assert 0 < sum(size for _, size in chunks) <= budget and chunks[0][0] is sessions[0]


def test_a_forward_has_256_mib_of_logits_at_most() -> None:
    assert [told_rows(size) for size in (1024, 128_000, 256_000, 2**30)] == [65_536, 524, 262, 1]


@given(sizes=st.lists(st.integers(0, 2 * PIECE + 3), min_size=1, max_size=4), begins=st.booleans())
def test_every_chunk_tells_of_its_own_logits_in_pieces(sizes: list[int], *, begins: bool) -> None:
    chunks: list[ChunkInput] = []
    for number, size in enumerate(sizes):
        first, beginning = (1, [9]) if begins else (40, [])
        told = PromptPart(first, [(number + i) % VOCAB for i in range(size)], 1, beginning) if size else None
        pages = RowPages.alone(np.zeros(1, dtype=np.int64), 1)
        chunks.append(ChunkInput.chunk([0], pages, session=number, first=0, told=told))
    rows = torch.randn(sum(sizes), VOCAB, generator=torch.Generator().manual_seed(1))
    told = prompts_of(chunks, rows)
    for number, (size, own) in enumerate(zip(sizes, rows.split(sizes), strict=True)):
        pieces = [piece for session, piece in told if session == number]
        logprobs = [each for piece in pieces for each in piece.logprobs]
        assert sum(len(piece.tokens) for piece in pieces) == size + (begins and size > 0)
        assert len(pieces) == -(-size // PIECE)
        if size:
            assert_told(logprobs, torch.log_softmax(own, dim=-1), 1)


async def test_a_session_that_is_over_before_it_begins_is_refused_since_nothing_is_computed(folder: Path) -> None:
    earlier = DecodeRequest("r", PROMPT[:64], prompt_logprobs=0, committed=60)
    async with verifier_over(folder, kv_tokens=64) as small:
        with pytest.raises(InvalidRequest, match="prompt_logprobs: is set, but nothing is computed"):
            await events_of(small, earlier)


def test_a_soft_cap_of_logits_is_among_the_kinds() -> None:
    assert KINDS["windows and soft caps"]().to_dict()["final_logit_softcapping"]
