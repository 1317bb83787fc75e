"""Output that is held to a constraint is what sampling under its masks gives without any drafts, whatever is drafted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from specsplit.errors import InvalidRequest
from specsplit.model.pages.batch import RowPages
from specsplit.sessions import DecodeRequest
from specsplit.values import Constraint, ConstraintKind, Endpoint, FinishReason, PlanChanges, Sampling, Stopping
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.step import TreeInput
from specsplit_verifier.target.sampler import Sampler
from tests.support.drafting import drafter_process
from tests.support.grammars import CONSTRAINTS, LETTERS, Reference, allowed_of, grammars, states, write_letters
from tests.support.kernels import samplings, trees
from tests.support.sampling import counted, expected
from tests.support.toys import END, VOCAB, random_target, write_byte_tokenizer
from tests.verifier.conftest import decode, verifier_over

pytestmark = pytest.mark.usefixtures("forked")

NEW = 48
STOPPING = Stopping(NEW, (END,))
PROMPTS = [[3, 7, 1, 3, 7, 1, 3], [65]]
SAMPLINGS = [Sampling(), Sampling(1.0, seed=5), Sampling(0.8, top_k=20, top_p=0.9, seed=6, repetition_penalty=1.2)]
CHAIN = PlanChanges(num_steps=4, topk=1, draft_ahead=False, wait_budget_us=10_000_000)
"""Every step has a full chain, however busy the machine."""
CASES = [(prompt, sampling, kind) for prompt in PROMPTS for sampling in SAMPLINGS for kind in CONSTRAINTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target over bytes without an end token of its own."""
    folder = random_target(tmp_path_factory.mktemp("target"), VOCAB)
    write_byte_tokenizer(folder)
    return folder


def request(
    prompt: list[int],
    sampling: Sampling,
    constraint: str,
    drafter: Endpoint | None = None,
    stopping: Stopping = STOPPING,
    **options: Any,
) -> DecodeRequest:
    plan = CHAIN if drafter else PlanChanges()
    return DecodeRequest("r", prompt, sampling, stopping, plan, drafter, constraint=CONSTRAINTS[constraint], **options)


async def written(
    verifier: Verifier, drafter: Endpoint | None = None
) -> list[tuple[list[int], FinishReason, int | None]]:
    made = await asyncio.gather(*(decode(verifier, request(*each, drafter)) for each in CASES))
    return [(tokens, end.reason, end.stop_token) for tokens, end in made]


class Masked:
    """Samples with masks alone: a forward of the whole text for every token, and no trees."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def __call__(
        self, prompt: Sequence[int], sampling: Sampling, kind: str
    ) -> tuple[list[int], FinishReason, int | None]:
        reference = Reference(self._folder, VOCAB, CONSTRAINTS[kind], (END,), ())
        text: list[int] = []
        while len(text) < NEW:
            with torch.inference_mode():
                logits = self._model(torch.tensor([[*prompt, *text]])).logits[:, -1]
            masked = torch.full_like(logits, -torch.inf)
            allowed = sorted(reference.allowed(text))
            masked[:, allowed] = logits[:, allowed]
            picked = int(expected(masked, sampling, [*prompt, *text], len(prompt)).argmax())
            if picked == END:
                return text, FinishReason.STOP, END
            text.append(picked)
            if reference.complete(text):
                return text, FinishReason.STOP, None
        return text, FinishReason.LENGTH, None


async def test_text_is_that_of_masked_sampling(folder: Path) -> None:
    masked = Masked(folder)
    async with verifier_over(folder, max_sessions=64) as verifier:
        found = await written(verifier)
    assert found == [masked(*each) for each in CASES]
    assert {reason for _, reason, _ in found} == {*FinishReason}


@pytest.mark.parametrize("kind", ["standalone", "ngram"])
async def test_text_is_the_same_with_drafts_of_drafters_that_know_no_grammar(folder: Path, kind: str) -> None:
    options = {"model": folder} if kind == "standalone" else {}
    async with drafter_process(kind, **options) as drafter, verifier_over(folder, max_sessions=64) as verifier:
        alone = await written(verifier)
        assert await written(verifier, drafter) == alone


async def test_text_is_the_same_with_lookup(folder: Path) -> None:
    async with verifier_over(folder, max_sessions=64, lookup=True) as verifier:
        alone = [(await decode(verifier, request(*each)))[0] for each in CASES]
        looked_up = await asyncio.gather(
            *(decode(verifier, request(*each, any_drafter=True, scope=b"a")) for each in CASES)
        )
    assert [tokens for tokens, _ in looked_up] == alone
    assert sum(end.speculation.accepted for _, end in looked_up) > 0


async def test_an_object_is_whole_and_what_its_schema_says(folder: Path) -> None:
    stopping = Stopping(250, ignore_eos=True)
    async with verifier_over(folder, max_sessions=64) as verifier:
        for sampling in SAMPLINGS:
            tokens, end = await decode(verifier, request([5], sampling, "json_schema", stopping=stopping))
            made = json.loads(bytes(tokens).decode())
            assert end.reason is FinishReason.STOP and end.stop_token is None
            assert [*made] == ["name", "number", "kind", "parts"] and made["kind"] in ("even", "odd")


@pytest.mark.parametrize("committed", [1, 6, 15])
async def test_a_session_that_goes_on_elsewhere_stands_where_it_stood(folder: Path, committed: int) -> None:
    async with verifier_over(folder) as verifier:
        for sampling in SAMPLINGS:
            tokens, end = await decode(verifier, request(PROMPTS[0], sampling, "json_schema"))
            begun = [*PROMPTS[0], *tokens[:committed]]
            rest, again = await decode(verifier, request(begun, sampling, "json_schema", committed=committed))
            assert (rest, again.reason) == (tokens[committed:], end.reason)


async def test_a_session_that_is_complete_already_ends_at_once(folder: Path) -> None:
    text = [*b"return None"]
    async with verifier_over(folder) as verifier:
        tokens, end = await decode(verifier, request([5, *text], Sampling(), "choice", committed=len(text)))
        assert (tokens, end.reason, end.usage.completion_tokens) == ([], FinishReason.STOP, len(text))
        with pytest.raises(InvalidRequest, match="choice: goes not with what was generated earlier"):
            await decode(verifier, request([5, *b"no"], Sampling(), "choice", committed=2))


async def test_what_cannot_be_compiled_ends_its_own_request_alone(folder: Path) -> None:
    broken = replace(request([5], Sampling(), "regex"), constraint=Constraint(ConstraintKind.REGEX, "a(b"))
    async with verifier_over(folder) as verifier:
        good, bad = await asyncio.gather(
            decode(verifier, request([5], Sampling(), "regex")), decode(verifier, broken), return_exceptions=True
        )
        assert isinstance(good, tuple) and isinstance(bad, InvalidRequest)
        assert str(bad) == "regex: cannot be compiled: unclosed group, at '(b'"


async def test_what_the_target_cannot_spell_ends_its_own_session_with_the_constraints_name(tmp_path: Path) -> None:
    folder = write_letters(random_target(tmp_path, 16))
    asked = replace(request([5], Sampling(), "regex"), constraint=Constraint(ConstraintKind.REGEX, "a[b-d]z"))
    async with verifier_over(folder) as verifier:
        with pytest.raises(InvalidRequest, match="regex: allows no token of this model behind 2 tokens of output"):
            await decode(verifier, replace(asked, stopping=Stopping(9)))
        assert (await decode(verifier, DecodeRequest("r", [5], stopping=Stopping(3))))[0]


async def test_an_end_that_comes_too_soon_is_not_picked_and_a_complete_text_ends_anyway(folder: Path) -> None:
    stopping = Stopping(NEW, (END,), min_tokens=30)
    async with verifier_over(folder, max_sessions=64) as verifier:
        for kind in CONSTRAINTS:
            tokens, end = await decode(verifier, request([5], Sampling(1.0, seed=3), kind, stopping=stopping))
            assert len(tokens) >= 30 or (end.reason is FinishReason.STOP and end.stop_token is None)


@given(st.data())
@settings(max_examples=60)
def test_every_node_is_picked_as_if_it_were_the_text(letters: Path, data: st.DataObject) -> None:
    draft, sampling = data.draw(trees(16, 6)), data.draw(samplings)
    state = data.draw(states(grammars(letters, 16), LETTERS, 16))
    counts = counted([1, 2, 3], 2) if sampling.penalised else None
    pages = RowPages(0, draft.positions[0] + len(draft.tokens))
    plain = TreeInput.tree(draft.tokens, draft.parents, pages, session=1, draft=draft, sampling=sampling, counts=counts)
    beside, asked = replace(plain, session=2), replace(plain, grammar=state)
    rows = len(draft.tokens)
    logits = torch.randn(2 * rows, 16, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    before = logits.clone()
    found = Sampler(16, torch.device("cpu")).prepare([beside, asked])(logits)
    assert torch.equal(logits, before)
    for row, words in enumerate(state.masks(draft.tokens, draft.parents)):
        before[rows + row, sorted({*range(16)} - allowed_of(words, 16))] = -torch.inf
    assert found == Sampler(16, torch.device("cpu")).prepare([beside, plain])(before)


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_letters(tmp_path_factory.mktemp("letters"))
