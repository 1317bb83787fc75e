"""A target whose layers keep states, behind a verifier: text and features are its own, whatever happens to a session."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM

from specsplit.clock import SystemClock
from specsplit.errors import LoadError
from specsplit.features import LAST, FeatureNeed
from specsplit.membership import Roster
from specsplit.observe.record import FIELDS
from specsplit.sessions import DecodeRequest
from specsplit.settings import VerifierSettings
from specsplit.values import Endpoint, NoDraftsCause, PlanChanges, Stopping
from specsplit_verifier.edge.service import load_target
from specsplit_verifier.edge.verifier import Verifier
from tests.model.conftest import RECURRENT
from tests.support.slow import slowly
from tests.verifier.conftest import decode, recorded, verifier_over
from tests.verifier.reader import features_of, reading

NEED = FeatureNeed(layers=(2, 1, LAST), hidden_size=32)
SERIAL = PlanChanges(num_steps=6, topk=4, num_draft_tokens=12, draft_ahead=False, wait_budget_us=20_000_000)
PROMPTS = [[(7 * i * i + k) % 16 for i in range(40 + 3 * k)] for k in range(4)]
TOKENS = 60


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    config = RECURRENT["delta rules"]()
    config.vocab_size, config.eos_token_id, config.bos_token_id = 16, None, None
    folder = tmp_path_factory.mktemp("recurrent")
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def request(prompt: list[int], drafter: Endpoint | None = None, *, any_drafter: bool = False) -> DecodeRequest:
    return DecodeRequest("r", prompt, stopping=Stopping(TOKENS), plan=SERIAL, drafter=drafter, any_drafter=any_drafter)


def written(target: Path, prompt: list[int]) -> tuple[int, ...]:
    """What transformers writes behind a prompt."""
    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype="float32").eval()
    ids = torch.tensor([prompt])
    told = {"attention_mask": torch.ones_like(ids), "eos_token_id": None}
    with torch.inference_mode():
        return tuple(model.generate(ids, do_sample=False, max_new_tokens=TOKENS, **told)[0, len(prompt) :].tolist())


@pytest.fixture(scope="module")
def truth(target: Path) -> list[list[int]]:
    """Prompts with the text that transformers writes behind them."""
    return [[*prompt, *written(target, prompt)] for prompt in PROMPTS]


async def test_drafts_of_the_text_are_accepted_and_features_are_those_of_transformers(
    target: Path, truth: list[list[int]]
) -> None:
    async with reading(NEED, truth) as (reader, endpoint), verifier_over(target, step_token_budget=16) as verifier:
        results = await asyncio.gather(*(decode(verifier, request(prompt, endpoint)) for prompt in PROMPTS))
        await reader.all_closed()
    for number, (text, prompt, (tokens, end)) in enumerate(zip(truth, PROMPTS, results, strict=True), start=1):
        assert list(tokens) == text[len(prompt) :]
        assert end.speculation.accepted > 30
        reader.check(number, text, features_of(target, text, NEED))


async def test_a_step_brings_as_many_nodes_as_there_is_memory_for_and_text_is_the_same(
    target: Path, truth: list[list[int]]
) -> None:
    settings = VerifierSettings(model=target, step_states_bytes=1 << 20)
    states = load_target(settings, SystemClock()).target.states
    assert states is not None
    few = await drafted_in_steps(target, truth, step_states_bytes=5 * states.session_bytes + 7)
    many = await drafted_in_steps(target, truth)
    assert max(few.nodes) == 5 and max(many.nodes) > 2 * 5
    assert NoDraftsCause.MEMORY in few.causes and NoDraftsCause.MEMORY not in many.causes


class Drafted(NamedTuple):
    """Steps of sessions side by side."""

    nodes: list[int]
    """By step, the nodes of all sessions."""
    causes: set[NoDraftsCause | None]
    """What kept drafts out of their steps."""


async def drafted_in_steps(target: Path, truth: list[list[int]], **settings: int) -> Drafted:
    async with reading(NEED, truth) as (_, endpoint), verifier_over(target, **settings) as verifier:
        return await drafted_by(verifier, truth, [request(prompt, endpoint) for prompt in PROMPTS])


async def drafted_by(verifier: Verifier, truth: list[list[int]], asked: list[DecodeRequest]) -> Drafted:
    """Steps of the requests for all prompts together, whose text is the target's own."""
    records = recorded(verifier)
    results = await asyncio.gather(*(decode(verifier, each) for each in asked))
    for text, prompt, (tokens, end) in zip(truth, PROMPTS, results, strict=True):
        assert list(tokens) == text[len(prompt) :]
        assert end.speculation.accepted > 0
    parts = [record.sessions for record in records]
    return Drafted(
        [sum(part.drafted for part in own) for own in parts], {part.undrafted for own in parts for part in own}
    )


async def test_what_the_verifier_looks_up_is_accepted_and_bound_by_memory_too(
    target: Path, truth: list[list[int]]
) -> None:
    states = load_target(VerifierSettings(model=target), SystemClock()).target.states
    assert states is not None
    asked = [request(prompt, any_drafter=True) for prompt in PROMPTS]
    async with verifier_over(target, lookup=True) as verifier:
        many = await drafted_by(verifier, truth, asked)
    async with verifier_over(target, lookup=True, step_states_bytes=5 * states.session_bytes + 7) as verifier:
        few = await drafted_by(verifier, truth, asked)
    async with verifier_over(target, lookup=True, kv_tokens=320) as verifier:
        records = recorded(verifier)
        await drafted_by(verifier, truth, asked)
    assert sum(record.kv.preemptions for record in records) > 0
    assert max(few.nodes) == 5 and max(many.nodes) > 2 * 5
    assert NoDraftsCause.MEMORY in few.causes and NoDraftsCause.MEMORY not in many.causes


def test_memory_that_holds_no_draft_is_refused_with_what_to_set(target: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(
        LoadError, match=r"step_states_bytes is 100, too few for one draft, .* keep (\d+) bytes; set it"
    ):
        load_target(VerifierSettings(model=target, step_states_bytes=100), SystemClock())
    with caplog.at_level(logging.INFO):
        runner = load_target(VerifierSettings(model=target, max_sessions=3), SystemClock())
    states = runner.target.states
    assert states is not None
    each = states.session_bytes
    assert states.made_bytes == 0 and states.taken.drafts == 1 << 30
    (told,) = (record for record in caplog.records if record.message == "states of recurrent layers")
    assert getattr(told, FIELDS) == {
        "session_bytes": each,
        "sessions_bytes": 5 * each,
        "step_bytes": 1 << 30,
        "step_nodes": (1 << 30) // each,
    }


async def test_a_late_joiner_gets_features_by_a_recompute_from_the_beginning(
    target: Path, truth: list[list[int]]
) -> None:
    limits = {"step_token_budget": 16, "feature_retention": 32, "num_draft_tokens": 12}
    async with (
        reading(NEED, truth, leaves_after=2) as (_, leaver),
        reading(NEED, truth) as (second, stayer),
        verifier_over(target, **limits) as verifier,
    ):
        records = recorded(verifier)
        verifier.engine.post(Roster((leaver, stayer)))
        tokens, end = await decode(verifier, request(PROMPTS[0], leaver))
    assert list(tokens) == truth[0][40:]
    assert sum(record.recomputed_tokens for record in records) >= 40 - 32
    second.check(1, truth[0], features_of(target, truth[0], NEED))
    assert not second.sessions[1].blocked and end.speculation.accepted > 10


@pytest.mark.parametrize("states_bytes", [1 << 30, *slowly(0)])
async def test_a_session_that_is_preempted_or_begins_as_another_did_goes_on_where_states_are(
    target: Path, truth: list[list[int]], states_bytes: int
) -> None:
    asked = [*PROMPTS, PROMPTS[0]]
    async with verifier_over(target, kv_tokens=320, prefix_states_bytes=states_bytes) as verifier:
        records = recorded(verifier)
        first = await decode(verifier, request(PROMPTS[0]))
        results = await asyncio.gather(*(decode(verifier, request(prompt)) for prompt in asked))
    for (tokens, _), text, prompt in zip(
        (first, *results), (truth[0], *truth, truth[0]), (PROMPTS[0], *asked), strict=True
    ):
        assert list(tokens) == text[len(prompt) :]
    assert sum(record.kv.preemptions for record in records) > 0
    assert (sum(record.kv.cached_tokens for record in records) >= 2 * 32) == bool(states_bytes)


async def test_the_next_turn_of_a_conversation_goes_on_behind_what_was_generated(
    target: Path, truth: list[list[int]]
) -> None:
    async with reading(NEED, truth) as (_, endpoint), verifier_over(target) as verifier:
        await decode(verifier, request(PROMPTS[0], endpoint))
        records = recorded(verifier)
        more = [*truth[0], 3]
        tokens, _ = await decode(verifier, request(more))
        again, _ = await decode(verifier, request(more))
    assert sum(record.kv.cached_tokens for record in records) >= 80 + 96, "more than the pages of the prompt"
    assert tuple(tokens) == tuple(again) == written(target, more)


async def test_texts_that_part_behind_a_long_beginning_share_what_was_cut_of_it(target: Path) -> None:
    beginning = [(5 * i * i + 1) % 16 for i in range(300)]
    prompts = [[*beginning, *([k] * (100 + k))] for k in range(3)]
    async with verifier_over(target, step_token_budget=2048) as verifier:
        records = recorded(verifier)
        for prompt in prompts:
            tokens, _ = await decode(verifier, request(prompt))
            assert tuple(tokens) == written(target, prompt)
    assert sum(record.kv.cached_tokens for record in records) == 2 * 256, "states behind every 256 tokens"
