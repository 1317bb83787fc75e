"""The engine over a target whose output can be worked out by hand: no tolerance."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from specsplit.errors import ContextExceeded, Exhausted, InvalidRequest
from specsplit.sessions import DecodeRequest, Tokens
from specsplit.values import Adaptive, Control, FinishReason, PlanChanges, Sampling, Stopping
from specsplit_verifier.records.events import Outputs, Sends
from specsplit_verifier.records.step import StepInput, StepOutput, StepResult
from specsplit_verifier.target.runner import TargetRunner
from tests.support.toys import END, letter
from tests.verifier.conftest import decode, recorded, verifier_over


def ids(text: str) -> list[int]:
    return list(text.encode())


LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP


@pytest.mark.parametrize(
    ("prompt", "stopping", "text", "end"),
    [
        pytest.param("xyz ab", Stopping(6), "cdefgh", (LENGTH, None), id="as far as max_tokens"),
        pytest.param("x", Stopping(3), "yza", (LENGTH, None), id="a prompt of one token, which needs no prefill"),
        pytest.param("a" * 500, Stopping(), "bcdefghijklm", (LENGTH, None), id="as far as the context of 512"),
        pytest.param("!", Stopping(9), "", (STOP, END), id="the end token is not output"),
        pytest.param("!", Stopping(3, ignore_eos=True), [END, *b"ab"], (LENGTH, None), id="the end token, ignored"),
        pytest.param("a", Stopping(9, (letter("d"),)), "bc", (STOP, letter("d")), id="another stop token"),
    ],
)
async def test_the_alphabet_goes_on_from_the_prompt_to_its_end(
    alphabet: Path, prompt: str, stopping: Stopping, text: str | list[int], end: tuple[FinishReason, int | None]
) -> None:
    async with verifier_over(alphabet) as verifier:
        tokens, told = await decode(verifier, DecodeRequest("r", ids(prompt), stopping=stopping))
    assert tokens == (ids(text) if isinstance(text, str) else text)
    assert (told.reason, told.stop_token) == end
    assert (told.usage.prompt_tokens, told.usage.completion_tokens) == (len(prompt), len(tokens))
    steps = len(tokens) + (told.stop_token is not None)
    assert (told.speculation.steps, told.speculation.drafted, told.speculation.hits) == (steps, 0, 0)


async def test_a_long_prompt_is_prefilled_in_chunks_beside_running_sessions(alphabet: Path) -> None:
    async with verifier_over(alphabet, step_token_budget=16) as verifier:
        records = recorded(verifier)
        long, short = await asyncio.gather(
            decode(verifier, DecodeRequest("long", ids("." * 100 + "m"), stopping=Stopping(4))),
            decode(verifier, DecodeRequest("short", ids("a"), stopping=Stopping(20))),
        )
    assert bytes(long[0]) == b"nopq" and bytes(short[0]) == b"bcdefghijklmnopqrstu"
    assert max(record.prefill_tokens for record in records) <= 16
    assert sum(record.prefill_tokens for record in records) == 100
    assert any(record.prefill_tokens and record.sessions for record in records), "prefill and decoding share a step"


async def test_eight_sessions_share_steps_and_keep_apart(alphabet: Path) -> None:
    async with verifier_over(alphabet) as verifier:
        records = recorded(verifier)
        starts = "abcdefgh"
        results = await asyncio.gather(
            *(decode(verifier, DecodeRequest(c, ids(c), stopping=Stopping(10))) for c in starts)
        )
    for start, (tokens, _) in zip(starts, results, strict=True):
        assert tokens == [letter(start) + i for i in range(1, 11)]
    assert max(len(record.sessions) for record in records) > 1


async def test_without_a_limit_a_small_kv_pool_is_the_limit(alphabet: Path) -> None:
    async with verifier_over(alphabet, kv_tokens=64) as verifier:
        tokens, end = await decode(verifier, DecodeRequest("r", ids("a" * 10)))
    assert len(tokens) == 64 - 10 - 16 and end.reason is FinishReason.LENGTH


async def test_what_exceeds_the_context_is_refused_with_the_numbers(alphabet: Path) -> None:
    async with verifier_over(alphabet) as verifier:
        with pytest.raises(
            ContextExceeded, match="is 20, which with 500 prompt tokens exceeds the context of 512; at most 12 fit"
        ):
            await decode(verifier, DecodeRequest("r", ids("a" * 500), stopping=Stopping(20)))
        with pytest.raises(ContextExceeded, match="has 512 tokens, which leaves no room in the context of 512"):
            await decode(verifier, DecodeRequest("r", ids("a" * 512)))


async def test_a_session_that_can_never_fit_is_refused_with_the_numbers(alphabet: Path) -> None:
    async with verifier_over(alphabet, kv_tokens=64) as verifier:
        numbers = r"needs 8 KV pages of 16 tokens \(10 prompt, 100 to generate, 16 drafted\).* has 4 in all"
        with pytest.raises(InvalidRequest, match=numbers) as caught:
            await decode(verifier, DecodeRequest("r", ids("a" * 10), stopping=Stopping(100)))
    assert caught.value.field == "max_tokens", "a status that says: do not try again"


async def test_a_session_that_does_not_fit_now_waits_its_turn(alphabet: Path) -> None:
    async with verifier_over(alphabet, kv_tokens=64) as verifier:  # room for one of these at a time
        records = recorded(verifier)
        results = await asyncio.gather(
            *(decode(verifier, DecodeRequest(c, ids("." * 30 + c), stopping=Stopping(10))) for c in "abc")
        )
    assert [bytes(tokens)[:2] for tokens, _ in results] == [b"bc", b"cd", b"de"]
    assert max(len(record.sessions) for record in records) == 1


async def test_more_than_the_queue_holds_is_refused_with_a_hint(alphabet: Path) -> None:
    async with verifier_over(alphabet, max_sessions=1) as verifier:
        results = await asyncio.gather(
            *(decode(verifier, DecodeRequest(str(i), ids("a"), stopping=Stopping(50))) for i in range(4)),
            return_exceptions=True,
        )
    refused = [result for result in results if isinstance(result, Exhausted)]
    assert refused and all(error.retry_after_s for error in refused)
    assert all("1 sessions wait already" in str(error) and "max_sessions (1)" in str(error) for error in refused)
    assert sum(isinstance(result, tuple) for result in results) == 4 - len(refused)


async def test_a_caller_that_goes_away_frees_everything_at_any_moment(alphabet: Path) -> None:
    async with verifier_over(alphabet, step_token_budget=8) as verifier:
        for after in range(6):
            events = verifier.decode(DecodeRequest("r", ids("." * 60 + "a"), stopping=Stopping(200)))
            for _ in range(after):
                assert isinstance(await anext(events), Tokens)
            await events.aclose()
        running = asyncio.create_task(decode(verifier, DecodeRequest("r", ids("a"), stopping=Stopping(200))))
        await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        tokens, _ = await decode(verifier, DecodeRequest("r", ids("a"), stopping=Stopping(2)))
        assert bytes(tokens) == b"bc"


async def test_a_seeded_session_repeats_itself_alone_and_in_company(alphabet: Path) -> None:
    request = DecodeRequest("r", ids("abc"), Sampling(temperature=8.0, seed=5), Stopping(30, ignore_eos=True))
    async with verifier_over(alphabet) as verifier:
        alone, _ = await decode(verifier, request)
        company = await asyncio.gather(*(decode(verifier, request) for _ in range(8)))
        other, _ = await decode(
            verifier, DecodeRequest("r", ids("abc"), Sampling(temperature=8.0, seed=6), Stopping(30, ignore_eos=True))
        )
    assert all(tokens == alone for tokens, _ in company)
    assert other != alone


async def test_what_a_step_was_is_kept_by_nobody(alphabet: Path) -> None:
    async with verifier_over(alphabet) as verifier:
        made: list[int] = []
        verifier.subscribe(lambda result: made.append(1))
        await decode(verifier, DecodeRequest("r", ids("a"), stopping=Stopping(60)))
        kept = [each for each in gc.get_objects() if isinstance(each, StepResult)]
    assert len(made) >= 60 and len(kept) <= 2, "the one that is under way, and the one that is told of"


async def test_the_bound_that_is_told_is_the_one_in_force(alphabet: Path) -> None:
    async with verifier_over(alphabet, adaptive="goodput", feature_retention=80, step_token_budget=64) as verifier:
        assert verifier.control == Control(Adaptive.GOODPUT, 16) and verifier.plan.num_draft_tokens == 16
        verifier.replan(PlanChanges(), Control(max_draft_tokens=8))
        assert verifier.control == Control(Adaptive.GOODPUT, 8)
        verifier.replan(PlanChanges(), Control(Adaptive.STATIC))
        assert verifier.control == Control(Adaptive.STATIC)


async def test_the_next_step_is_under_way_before_anybody_hears_of_the_last(
    alphabet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    async with verifier_over(alphabet) as verifier:
        run, deliver = TargetRunner.run, verifier.deliver

        def begin(runner: TargetRunner, step: StepInput) -> StepOutput:
            happened.append("begun")
            return run(runner, step)

        def told(outputs: Outputs, sends: Sends, result: StepResult | None) -> None:
            happened.extend("told" for _, output in outputs if isinstance(output, Tokens))
            deliver(outputs, sends, result)

        monkeypatch.setattr(TargetRunner, "run", begin)
        monkeypatch.setattr(verifier, "deliver", told)
        tokens, _ = await decode(verifier, DecodeRequest("r", ids("a"), stopping=Stopping(4)))
    assert bytes(tokens) == b"bcde"
    assert happened == ["begun", "begun", "told", "begun", "told", "begun", "told", "told"], "the last at once"
