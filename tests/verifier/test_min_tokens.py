"""Nothing that would end a session is picked before its `min_tokens`: at every node by its own depth, whatever is drafted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, MinNewTokensLengthLogitsProcessor

from specsplit.model.pages.batch import RowPages
from specsplit.sessions import DecodeRequest
from specsplit.values import Endpoint, PlanChanges, Sampling, Stopping
from specsplit_verifier.records.step import EndFloor, TreeInput
from specsplit_verifier.target.sampler import Sampler
from tests.support.drafting import drafter_process
from tests.support.kernels import samplings, trees
from tests.support.sampling import counted
from tests.support.toys import random_target
from tests.verifier.conftest import decode, verifier_over

pytestmark = pytest.mark.usefixtures("forked")

VOCAB, NEW = 64, 40
ENDS = tuple(range(0, VOCAB, 3))
"""A third of all tokens, so that hardly any text would get far."""
PROMPTS = [[3, 7, 1, 3, 7, 1, 3], [5], [9, 9, 9, 20, 41], [63, 0, 62]]
SAMPLINGS = [Sampling(), Sampling(1.0, seed=5), Sampling(0.8, top_k=20, top_p=0.9, seed=6, repetition_penalty=1.2)]
CHAIN = PlanChanges(num_steps=4, topk=1, draft_ahead=False, wait_budget_us=10_000_000)
"""Every step has a full chain, however busy the machine."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_target(tmp_path_factory.mktemp("target"), VOCAB)


def request(
    prompt: list[int], sampling: Sampling, least: int, drafter: Endpoint | None = None, committed: int = 0
) -> DecodeRequest:
    stopping = Stopping(NEW, ENDS, ignore_eos=True, min_tokens=least)
    plan = CHAIN if drafter else PlanChanges()
    return DecodeRequest("r", prompt, sampling, stopping, plan, drafter, committed=committed)


CASES = [(prompt, sampling, least) for prompt in PROMPTS for sampling in SAMPLINGS for least in (0, 1, 7, 23, NEW)]


async def test_no_text_ends_before_and_most_end_soon_after(folder: Path) -> None:
    async with verifier_over(folder, max_sessions=64) as verifier:
        written = await asyncio.gather(*(decode(verifier, request(*each)) for each in CASES))
    for (_, _, least), (tokens, end) in zip(CASES, written, strict=True):
        assert len(tokens) >= least and not set(tokens) & {*ENDS}
        assert (end.stop_token in ENDS) is (len(tokens) < NEW)
    assert sum(len(tokens) < NEW for tokens, _ in written) > len(CASES) / 2


async def test_greedy_text_is_what_transformers_writes_with_its_own_processor(folder: Path) -> None:
    async with verifier_over(folder, max_sessions=64) as verifier:
        written = [(await decode(verifier, request(prompt, Sampling(), 23)))[0] for prompt in PROMPTS]
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt, tokens in zip(PROMPTS, written, strict=True):
        processor = MinNewTokensLengthLogitsProcessor(len(prompt), 23, list(ENDS))
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, pad_token_id=0,
                eos_token_id=list(ENDS), logits_processor=[processor],
            )  # fmt: skip
        whole = output[0, len(prompt) :].tolist()
        assert tokens == (whole[:-1] if whole[-1] in ENDS else whole)


@pytest.mark.parametrize("kind", ["standalone", "ngram"])
async def test_text_is_the_same_with_drafts_that_would_end_it(folder: Path, kind: str) -> None:
    """Drafters know nothing of it, and draft ends."""
    options = {"model": folder} if kind == "standalone" else {}
    async with drafter_process(kind, **options) as drafter, verifier_over(folder, max_sessions=64) as verifier:
        alone = await asyncio.gather(*(decode(verifier, request(*each)) for each in CASES))
        drafted = await asyncio.gather(*(decode(verifier, request(*each, drafter)) for each in CASES))
    assert [(tokens, end.stop_token) for tokens, end in drafted] == [(tokens, end.stop_token) for tokens, end in alone]
    assert sum(end.speculation.accepted for _, end in drafted) > 0


@pytest.mark.parametrize("committed", [1, 6, 20])
async def test_a_session_that_goes_on_elsewhere_counts_what_was_generated_there(folder: Path, committed: int) -> None:
    async with verifier_over(folder) as verifier:
        for sampling in SAMPLINGS:
            tokens, end = await decode(verifier, request(PROMPTS[0], sampling, 23))
            begun = [*PROMPTS[0], *tokens[:committed]]
            rest, again = await decode(verifier, request(begun, sampling, 23, committed=committed))
            assert (rest, again.stop_token) == (tokens[committed:], end.stop_token)


@given(st.data())
def test_every_node_is_picked_as_if_it_were_the_text_by_its_own_depth(data: st.DataObject) -> None:
    draft, sampling = data.draw(trees(16, 6)), data.draw(samplings)
    root = draft.positions[0]
    floor = EndFloor(data.draw(st.integers(root, root + 5)), data.draw(st.lists(st.integers(0, 15), max_size=6)))
    counts = counted([1, 2, 3], 2) if sampling.penalised else None
    pages = RowPages(0, root + len(draft.tokens))
    made = TreeInput.tree(
        draft.tokens, draft.parents, pages, session=1, draft=draft, sampling=sampling, counts=counts, floor=floor
    )
    logits = torch.randn(len(draft.tokens), 16, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    before = logits.clone()
    found = Sampler(16, torch.device("cpu")).prepare([made])(logits)
    for row, position in enumerate(draft.positions):
        if position + 1 < floor.position:
            before[row, list(floor.tokens)] = -torch.inf
    assert found == Sampler(16, torch.device("cpu")).prepare([replace(made, floor=None)])(before)
