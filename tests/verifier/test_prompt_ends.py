"""A session decodes in the very step that reads the last of its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from string import ascii_lowercase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.clock import ManualClock
from specsplit.model import PagePool
from specsplit.model.pages.geometry import Span
from specsplit.sessions import DecodeRequest, Finished, Tokens
from specsplit.settings import VerifierSettings
from specsplit.values import Stopping
from specsplit_verifier.edge.service import load_target
from specsplit_verifier.engine.engine import core_of
from specsplit_verifier.policy.planner import Pause, Planner
from specsplit_verifier.records.step import StepResult
from specsplit_verifier.schedule.kv_cache_manager import KVCacheManager
from specsplit_verifier.target.runner import TargetRunner

PAGE = 16


def loaded(alphabet: Path) -> TargetRunner:
    return load_target(VerifierSettings(model=alphabet, kv_tokens=10 * PAGE), ManualClock())


@pytest.fixture(scope="module")
def runner(alphabet: Path) -> TargetRunner:
    return loaded(alphabet)


def decoded(
    runner: TargetRunner,
    prompts: Sequence[bytes],
    new: int,
    *,
    at_once: bool = True,
    prefix_cache: bool = False,
    step_token_budget: int = 512,
) -> tuple[dict[int, bytes], list[StepResult]]:
    """What comes of these prompts, which come together, by session -> their texts, and the steps.

    `at_once`: a session decodes in the step that reads the last of its prompt.
    """
    target, given = (
        runner.target,
        VerifierSettings(model=Path("alphabet"), prefix_cache=prefix_cache, step_token_budget=step_token_budget),
    )
    planner = Planner(given.plan, given.step_token_budget, roots_join=at_once)
    core = core_of(target.info, target.pool, runner.extractor.recipe, given, ManualClock(), planner=planner)
    for number, prompt in enumerate(prompts):
        core.handle(DecodeRequest(str(number), list(prompt), stopping=Stopping(new), session=number))
    texts, results, left = dict.fromkeys(range(len(prompts)), b""), list[StepResult](), len(prompts)
    while left:
        step = core.schedule()
        assert not isinstance(step, Pause)
        results.append(core.commit(step, runner.run(step)))
        for number, output in core.outgoing()[0]:
            texts[number] += bytes(output.tokens) if isinstance(output, Tokens) else b""
            left -= isinstance(output, Finished)
    return texts, results


def behind(prompt: bytes, new: int) -> bytes:
    """What the target writes: the alphabet, over and over."""
    first = ascii_lowercase.index(chr(prompt[-1])) + 1
    return bytes(ord(ascii_lowercase[(first + number) % 26]) for number in range(new))


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 6))
def test_a_text_takes_a_step_for_every_chunk_before_its_root_and_for_every_token_but_one(
    runner: TargetRunner, length: int, chunk: int, new: int
) -> None:
    prompt = b"z" * (length - 1) + b"f"
    texts, steps = decoded(runner, [prompt], new, step_token_budget=chunk)
    assert texts == {0: behind(prompt, new)}
    assert len(steps) == max(1, ceil((length - 1) / chunk)) + new - 1
    assert sum(step.prefill_tokens for step in steps) == length - 1


PROMPTS = st.lists(st.text("abcf", min_size=1, max_size=100).map(str.encode), min_size=1, max_size=5)


@given(PROMPTS, st.integers(1, 40), st.integers(1, 12))
def test_texts_are_those_of_a_planner_that_decodes_a_step_later_which_takes_no_fewer_steps(
    runner: TargetRunner, prompts: list[bytes], chunk: int, new: int
) -> None:
    # 10 pages of 16 tokens for up to 5 texts of up to 112: some wait, some are preempted, and read what they have written once more.
    texts, steps = decoded(runner, prompts, new, step_token_budget=chunk)
    others, more = decoded(runner, prompts, new, at_once=False, step_token_budget=chunk)
    assert texts == others == {number: behind(prompt, new) for number, prompt in enumerate(prompts)}
    assert len(steps) <= len(more)


def test_of_two_requests_for_one_prompt_the_second_decodes_in_the_step_that_reads_what_is_not_shared(
    alphabet: Path,
) -> None:
    prompt = b"z" * 18 + b"f"
    texts, steps = decoded(loaded(alphabet), [prompt, prompt], 3, prefix_cache=True)
    assert texts == dict.fromkeys(range(2), behind(prompt, 3))
    assert [(step.prefill_tokens, len(step.sessions)) for step in steps] == [(18, 1), (2, 2), (0, 2), (0, 1)]


def test_roots_wait_for_the_prompt_where_a_step_may_read_less_than_was_planned() -> None:
    assert KVCacheManager(PagePool(8, PAGE)).roots_join
    assert not KVCacheManager(PagePool(8, PAGE, (Span(6),))).roots_join
