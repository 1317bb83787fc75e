"""Targets whose every layer sees a window: a session holds what its tokens to come see, and its text is what transformers writes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from specsplit.errors import ContextExceeded
from specsplit.features import LAST, FeatureNeed
from specsplit.membership import Roster
from specsplit.sessions import DecodeRequest
from specsplit.values import Endpoint, PlanChanges, Stopping
from tests.drafter.service_toys import drafter
from tests.support.greedy import greedy_texts
from tests.verifier.conftest import decode, recorded, verifier_over
from tests.verifier.reader import features_of, reading

WINDOW = 24
NEED = FeatureNeed(layers=(2, 0, 1, LAST), hidden_size=32)
SERIAL = PlanChanges(num_steps=6, topk=4, num_draft_tokens=12, draft_ahead=False, wait_budget_us=20_000_000)
PROMPTS = [[(7 * i * i + k * i + k) % 16 for i in range(300 + 20 * k)] for k in range(4)]
PAGES = 8
"""Of 16 tokens each: too few for any of the prompts."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windows")
    torch.manual_seed(3)
    config = MistralConfig(
        vocab_size=16, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, sliding_window=WINDOW, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=None, initializer_range=0.4,
    )  # fmt: skip
    MistralForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def truth(target: Path) -> list[list[int]]:
    """Prompts with what transformers writes behind them."""
    return greedy_texts(target, PROMPTS, 150)


def request(prompt: Sequence[int], endpoint: Endpoint | None = None, tokens: int | None = 150) -> DecodeRequest:
    return DecodeRequest("r", prompt, stopping=Stopping(tokens), plan=SERIAL, drafter=endpoint)


@pytest.mark.parametrize("drafted", [False, True])
async def test_texts_much_longer_than_the_pool_are_what_transformers_writes(
    target: Path, truth: list[list[int]], *, drafted: bool
) -> None:
    async with drafter() as (server, _, _), verifier_over(target, kv_tokens=16 * PAGES) as verifier:
        endpoint = Endpoint("ngram", server.bound) if drafted else None
        steps = recorded(verifier)
        results = await asyncio.gather(*(decode(verifier, request(prompt, endpoint)) for prompt in PROMPTS))
        load = verifier.load()
    assert [prompt + tokens for prompt, (tokens, _) in zip(PROMPTS, results, strict=True)] == truth
    assert (load.total_pages, load.kv_window) == (PAGES, WINDOW)
    assert max(len(step.sessions) for step in steps) > 1
    assert not drafted or sum(end.speculation.accepted for _, end in results) > 50


@pytest.mark.slow
async def test_sessions_that_begin_side_by_side_and_are_preempted_write_what_they_do_in_a_roomy_pool(
    target: Path, truth: list[list[int]]
) -> None:
    """Each needs a page at first and three later, of eight."""
    short = [text[300:305] for text in truth]
    async with verifier_over(target) as verifier:
        expected = [(await decode(verifier, request(prompt)))[0] for prompt in short]
    async with verifier_over(target, kv_tokens=16 * PAGES) as verifier:
        steps = recorded(verifier)
        results = await asyncio.gather(*(decode(verifier, request(prompt)) for prompt in short))
    assert [tokens for tokens, _ in results] == expected
    assert sum(step.kv.preemptions for step in steps) > 0


async def test_a_session_holds_its_window_and_what_it_adds_in_a_step(target: Path, truth: list[list[int]]) -> None:
    used: list[int] = []
    async with verifier_over(target, kv_tokens=16 * 64, step_token_budget=32) as verifier:
        verifier.subscribe(lambda _: used.append(verifier.load().total_pages - verifier.load().free_pages))
        tokens, _ = await decode(verifier, request(PROMPTS[0]))
    assert PROMPTS[0] + tokens == truth[0]
    assert max(used) <= 5, "a window of 24 tokens, and 32 of a step, wherever they begin in their pages"
    assert used[-1] <= 4


@pytest.mark.slow
async def test_a_text_may_be_as_long_as_the_context_in_a_pool_that_holds_a_window_and_not_in_a_smaller_one(
    target: Path,
) -> None:
    async with verifier_over(target, kv_tokens=16 * 4) as verifier:
        tokens, _ = await decode(verifier, request([1, 2, 3], tokens=None))
    assert 3 + len(tokens) == 1024
    async with verifier_over(target, kv_tokens=16 * 3) as verifier:
        short, _ = await decode(verifier, request([1, 2, 3], tokens=None))
        assert short == tokens[: len(short)] and 3 + len(short) + 12 == 48
        with pytest.raises(ContextExceeded, match=r"needs 4 KV pages of 16 tokens .* has 3 in all"):
            await decode(verifier, request([1, 2, 3], tokens=60))


async def test_what_was_given_back_is_found_again_while_there_is_room_and_the_last_window_of_it_longest(
    target: Path, truth: list[list[int]]
) -> None:
    text = truth[0]
    async with verifier_over(target, kv_tokens=16 * 64) as roomy, verifier_over(target, kv_tokens=16 * PAGES) as small:
        for verifier in (roomy, small):
            first, _ = await decode(verifier, request(text[:300]))
            again, same = await decode(verifier, request(text[:300]))
            longer, more = await decode(verifier, request(text[:400], tokens=50))
            other, shared = await decode(verifier, request([*text[:100], 5], tokens=2))
            assert first == again == text[300:] and longer == text[400:]
            found = [end.usage.cached_prompt_tokens for end in (same, more, shared)]
            assert found == ([288, 384, 96] if verifier is roomy else [0, 384, 0])
            assert len(other) == 2


@pytest.mark.parametrize("pages", [64, 12])
async def test_a_drafter_that_comes_late_reads_features_of_what_was_given_back(
    target: Path, truth: list[list[int]], pages: int
) -> None:
    """They are computed again from the first token on, since no layer's KV of those before the window is there."""
    limits = {"step_token_budget": 16, "feature_retention": 32, "num_draft_tokens": 12, "kv_tokens": 16 * pages}
    async with (
        reading(NEED, truth, leaves_after=2) as (_, leaver),
        reading(NEED, truth) as (second, stayer),
        verifier_over(target, **limits) as verifier,
    ):
        steps = recorded(verifier)
        verifier.engine.post(Roster((leaver, stayer)))
        tokens, end = await decode(verifier, request(PROMPTS[0], leaver))
        await second.all_closed()
    assert PROMPTS[0] + tokens == truth[0]
    assert sum(step.recomputed_tokens for step in steps) >= len(PROMPTS[0]) - 32
    second.check(1, truth[0], features_of(target, truth[0], NEED))
    assert not second.sessions[1].blocked, "it has caught up"
    assert end.speculation.accepted > 10


async def test_a_head_on_a_shared_beginning_of_which_the_first_pages_are_not_there_gets_their_features(
    target: Path, truth: list[list[int]]
) -> None:
    limits = {"kv_tokens": 16 * 12, "step_token_budget": 64}
    async with reading(NEED, truth) as (reader, endpoint), verifier_over(target, **limits) as verifier:
        await decode(verifier, request(truth[0][:300], tokens=20))
        tokens, end = await decode(verifier, request(truth[0][:320], endpoint, tokens=120))
        await reader.all_closed()
    assert truth[0][:320] + tokens == truth[0][:440]
    assert end.usage.cached_prompt_tokens == 304 and end.speculation.accepted > 10
    reader.check(next(iter(reader.sessions)), truth[0], features_of(target, truth[0], NEED))
