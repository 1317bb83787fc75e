"""Targets some of whose layers see a window and others all tokens: those with a window keep no more of a session than that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from specsplit.errors import LoadError
from specsplit.membership import Roster
from specsplit.values import Endpoint
from specsplit_verifier.edge.verifier import Verifier
from tests.drafter.service_toys import drafter
from tests.support.greedy import greedy_texts
from tests.verifier.conftest import decode, recorded, verifier_over
from tests.verifier.reader import features_of, reading
from tests.verifier.test_windows import NEED, PROMPTS, WINDOW, request

LEAST = 16 * 5
"""Window tokens of a session that steps alone."""


def mixed(folder: Path, window: int) -> Path:
    """Save a model of which one layer sees all tokens, and two a window."""
    torch.manual_seed(3)
    config = Gemma3TextConfig(
        vocab_size=16, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8, max_position_embeddings=1024, sliding_window=window,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=None, initializer_range=0.4,
    )  # fmt: skip
    Gemma3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed(tmp_path_factory.mktemp("mixed"), WINDOW)


@pytest.fixture(scope="module")
def truth(target: Path) -> list[list[int]]:
    return written(target)


def written(target: Path) -> list[list[int]]:
    """Prompts with what transformers writes behind them."""
    return greedy_texts(target, PROMPTS, 150)


def window_pages(verifier: Verifier) -> int:
    windows = verifier.engine._core._scheduler.kv.pool.windows  # pyright: ignore[reportPrivateUsage]
    assert windows is not None
    return windows.total_pages - windows.free_pages


@pytest.mark.parametrize("drafted", [False, True])
async def test_texts_much_longer_than_the_window_pages_are_what_transformers_writes(
    target: Path, truth: list[list[int]], *, drafted: bool
) -> None:
    async with drafter() as (server, _, _), verifier_over(target, window_kv_tokens=3 * LEAST) as verifier:
        endpoint = Endpoint("ngram", server.bound) if drafted else None
        steps, held = recorded(verifier), list[int]()
        verifier.subscribe(lambda _: held.append(window_pages(verifier)))
        results = await asyncio.gather(*(decode(verifier, request(prompt, endpoint)) for prompt in PROMPTS))
    assert [prompt + tokens for prompt, (tokens, _) in zip(PROMPTS, results, strict=True)] == truth
    assert max(len(step.sessions) for step in steps) > 1
    assert 0 < max(held) <= 15
    assert not drafted or sum(end.speculation.accepted for _, end in results) > 50


async def test_sessions_for_whose_windows_there_is_no_room_at_once_take_turns(
    target: Path, truth: list[list[int]]
) -> None:
    async with verifier_over(target, window_kv_tokens=LEAST, step_token_budget=200) as verifier:
        results = await asyncio.gather(*(decode(verifier, request(prompt, tokens=30)) for prompt in PROMPTS))
    assert [prompt + tokens for prompt, (tokens, _) in zip(PROMPTS, results, strict=True)] == [
        text[: len(prompt) + 30] for prompt, text in zip(PROMPTS, truth, strict=True)
    ]


async def test_too_few_window_pages_for_one_session_are_refused_at_load(target: Path) -> None:
    with pytest.raises(LoadError, match=r"64 KV tokens are too few for layers that see a window of 24: .* 80 at least"):
        async with verifier_over(target, window_kv_tokens=64):
            pass


async def test_a_beginning_is_found_again_where_its_window_is_still_there(target: Path, truth: list[list[int]]) -> None:
    text = truth[0]
    async with (
        verifier_over(target, window_kv_tokens=16 * 64) as roomy,
        verifier_over(target, window_kv_tokens=16 * 8) as small,
    ):
        for verifier in (roomy, small):
            first, _ = await decode(verifier, request(text[:300]))
            again, same = await decode(verifier, request(text[:300]))
            longer, more = await decode(verifier, request(text[:400], tokens=50))
            other, shared = await decode(verifier, request([*text[:100], 5], tokens=2))
            assert first == again == text[300:] and longer == text[400:]
            found = [end.usage.cached_prompt_tokens for end in (same, more, shared)]
            assert found == ([288, 384, 96] if verifier is roomy else [0, 384, 0])
            assert len(other) == 2


@pytest.mark.parametrize(("tokens", "budget"), [(16 * 64, 16), (16 * 10, 16), (16 * 10, 120)])
async def test_a_drafter_that_comes_late_reads_features_of_what_has_left_the_windows(
    target: Path, truth: list[list[int]], tokens: int, budget: int
) -> None:
    """They are computed again from the first token on, since layers with a window have no KV of those before it."""
    retention = budget + 16
    limits = {
        "step_token_budget": budget, "feature_retention": retention, "num_draft_tokens": 12, "window_kv_tokens": tokens
    }  # fmt: skip
    async with (
        reading(NEED, truth, leaves_after=2) as (_, leaver),
        reading(NEED, truth) as (second, stayer),
        verifier_over(target, **limits) as verifier,
    ):
        steps = recorded(verifier)
        verifier.engine.post(Roster((leaver, stayer)))
        text, end = await decode(verifier, request(PROMPTS[0], leaver))
        await second.all_closed()
    assert PROMPTS[0] + text == truth[0]
    assert sum(step.recomputed_tokens for step in steps) >= len(PROMPTS[0]) - retention
    second.check(1, truth[0], features_of(target, truth[0], NEED))
    assert not second.sessions[1].blocked, "it has caught up"
    assert end.speculation.accepted > 10


async def test_sessions_that_all_lose_their_drafter_have_its_features_computed_again_in_turn(tmp_path: Path) -> None:
    """Beside max_sessions windows there is room for that of one text that is computed again, unless a setting says otherwise."""
    target = mixed(tmp_path, 128)
    truth = written(target)
    limits = {"step_token_budget": 16, "feature_retention": 32, "num_draft_tokens": 12, "max_sessions": len(PROMPTS)}
    async with (
        reading(NEED, truth, leaves_after=2) as (_, leaver),
        reading(NEED, truth) as (second, stayer),
        verifier_over(target, **limits) as verifier,
    ):
        steps = recorded(verifier)
        verifier.engine.post(Roster((leaver, stayer)))
        results = await asyncio.gather(*(decode(verifier, request(prompt, leaver)) for prompt in PROMPTS))
    assert [prompt + tokens for prompt, (tokens, _) in zip(PROMPTS, results, strict=True)] == truth
    assert not any(session.blocked for session in second.sessions.values()), "all have caught up"
    assert 0 < sum(step.recomputed_tokens for step in steps) < sum(map(len, truth)), "no text is begun anew"
