"""Features over real gRPC: a drafter reads what transformers computes, of accepted tokens only, and the text is the target's own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specsplit.draft_events import FeaturesRead
from specsplit.features import LAST, FeatureFormat, FeatureNeed
from specsplit.membership import Roster
from specsplit.model.heads import projection_of
from specsplit.model.lm.causal_lm import CausalLM
from specsplit.sessions import DecodeRequest
from specsplit.values import Endpoint, PlanChanges, Sampling, Stopping
from specsplit_verifier.records.feed import Recipe
from specsplit_verifier.target.extraction import Extractor, Projection
from tests.model.heads.published import eagle3, write
from tests.support.rounding import APART, spacing
from tests.verifier.conftest import decode, losses, recorded, verifier_over
from tests.verifier.reader import features_of, reading, three_layers

NEED = FeatureNeed(layers=(2, 0, 1, LAST), hidden_size=32)
SERIAL = PlanChanges(num_steps=6, topk=4, num_draft_tokens=12, draft_ahead=False, wait_budget_us=20_000_000)
"""The verifier waits for every answer, so that nothing depends on how fast the drafter is."""
PROMPTS = [[(7 * i * i + k) % 16 for i in range(40 + 3 * k)] for k in range(4)]
TOKENS = 60


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_layers(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def truth(target: Path) -> list[list[int]]:
    """Prompts with the target's own text behind them."""

    async def write() -> list[list[int]]:
        async with verifier_over(target) as verifier:
            return [prompt + (await decode(verifier, request(prompt, tokens=150)))[0] for prompt in PROMPTS]

    return asyncio.run(write())


def written(text: list[int], tokens: list[int], prompt: int) -> bool:
    """The tokens are what stands in the text behind its prompt."""
    return bool(tokens) and text[prompt : prompt + len(tokens)] == tokens


def request(prompt: Sequence[int], drafter: Endpoint | None = None, tokens: int = TOKENS) -> DecodeRequest:
    return DecodeRequest("r", prompt, stopping=Stopping(tokens), plan=SERIAL, drafter=drafter)


async def test_a_drafter_reads_what_transformers_computes_of_accepted_tokens(
    target: Path, truth: list[list[int]]
) -> None:
    async with (
        reading(NEED, truth) as (reader, endpoint),
        verifier_over(target, step_token_budget=16) as verifier,
    ):
        results = await asyncio.gather(*(decode(verifier, request(prompt, endpoint)) for prompt in PROMPTS))
        statistics = verifier.streams.statistics[endpoint.address]
        await reader.all_closed()
    for number, (text, prompt, (tokens, end)) in enumerate(zip(truth, PROMPTS, results, strict=True), start=1):
        assert written(text, tokens, len(prompt))
        # How much of the token budget a session gets depends on how many others are in the same step.
        assert end.speculation.accepted > 30 and end.speculation.accept_length > 2
        reader.check(number, text, features_of(target, text, NEED))
    for session in reader.sessions.values():
        assert not session.blocked, "features of all tokens before the last root"
        assert session.told[0] == "Open" and session.told[-1] == "Close"
        commits = [i for i, name in enumerate(session.told) if name == "Commit"]
        assert all(session.told[i + 1] == "Features" for i in commits), "each commit is followed by its features"
        assert session.told[1] == "Features", "the prompt's come before the first commit"
    read = sum(len(session.rows) for session in reader.sessions.values())
    assert statistics.feature_tokens_sent == read
    assert statistics.feature_bytes_sent == read * 4 * 32 * 4


async def test_a_window_is_never_exceeded_and_all_arrives_all_the_same(target: Path, truth: list[list[int]]) -> None:
    async with (
        reading(NEED, truth, lag=3) as (reader, endpoint),
        # Steps long enough that a drafter which lags by three messages still drafts.
        verifier_over(target, step_token_budget=16, feature_window=5, paced_step_base_ms=20.0) as verifier,
    ):
        tokens, end = await decode(verifier, request(PROMPTS[0], endpoint))
    assert written(truth[0], tokens, 40) and end.speculation.accepted > 0
    assert reader.most_unread == 5
    reader.check(1, truth[0], features_of(target, truth[0], NEED))


@pytest.mark.parametrize(
    ("name", "relative"),
    [(FeatureFormat.BFLOAT16, 2**-8), (FeatureFormat.FLOAT16, 2**-10), (FeatureFormat.FP8_E4M3, 2**-4)],
)
async def test_other_formats_are_within_their_error(
    target: Path, truth: list[list[int]], name: FeatureFormat, relative: float
) -> None:
    need = replace(NEED, format=name)
    async with reading(need, truth) as (reader, endpoint), verifier_over(target) as verifier:
        tokens, _ = await decode(verifier, request(PROMPTS[0], endpoint))
        sent = verifier.streams.statistics[endpoint.address]
    assert written(truth[0], tokens, 40)
    expected = features_of(target, truth[0], need)
    rows = torch.cat(reader.sessions[1].rows)
    expected = expected[: len(rows)]
    largest, ulp = expected.abs().amax(dim=1, keepdim=True), spacing(expected)
    bound = relative * expected.abs() + relative * largest / 64 + APART * ulp
    assert bool(((rows - expected).abs() <= bound).all())
    assert sent.feature_bytes_sent == len(rows) * (4 * 32 * name.itemsize + (4 if name.scaled else 0))


async def test_the_projection_of_a_heads_folder_is_applied_before_features_leave(
    target: Path, truth: list[list[int]], tmp_path: Path
) -> None:
    published = eagle3()
    folder = write(tmp_path / "head", published.facts, published.tensors())
    weight, digest = projection_of(folder)
    plain = FeatureNeed(layers=(0, 2, LAST), hidden_size=32)
    need = replace(plain, projection=digest, projected_size=len(weight))
    async with reading(need, truth) as (reader, endpoint), verifier_over(target, feature_projection=folder) as verifier:
        tokens, _ = await decode(verifier, request(PROMPTS[0], endpoint))
        sent = verifier.streams.statistics[endpoint.address]
    assert written(truth[0], tokens, 40)
    assert reader.sessions[1].layout == need.layout(32, FeatureFormat.FLOAT32)
    assert sent.feature_bytes_sent == sent.feature_tokens_sent * 32 * 4, "a third"
    reader.check(1, truth[0], features_of(target, truth[0], plain) @ weight.T)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"layers": (1, 4)}, "hidden states of layer 4 wanted; the target has 3 decoder layers"),
        ({"projection": "ab" * 32, "projected_size": 32}, "this verifier projects none; set feature_projection"),
    ],
)
async def test_a_need_that_cannot_be_met_leaves_the_session_without_drafts_and_the_log_says_why(
    target: Path, truth: list[list[int]], caplog: pytest.LogCaptureFixture, changes: dict[str, object], why: str
) -> None:
    need = replace(NEED, **changes)
    async with reading(need, truth) as (reader, endpoint), verifier_over(target) as verifier:
        with caplog.at_level(logging.WARNING):
            tokens, end = await decode(verifier, request(PROMPTS[0], endpoint))
    assert written(truth[0], tokens, 40) and end.speculation.drafted == 0
    assert why in caplog.text and endpoint.address in caplog.text
    assert not reader.sessions


async def test_a_session_whose_drafter_cannot_be_fed_gets_the_next_that_can(
    target: Path, truth: list[list[int]]
) -> None:
    async with (
        reading(replace(NEED, layers=(1, 4)), truth) as (reader, wished),
        reading(NEED, truth) as (second, fitting),
        verifier_over(target) as verifier,
    ):
        verifier.engine.post(Roster((wished, fitting)))
        tokens, end = await decode(verifier, request(PROMPTS[0], wished))
    assert written(truth[0], tokens, 40) and end.speculation.accepted > 30
    assert not reader.sessions
    assert second.sessions[1].told[:3] == ["Open", "Commit", "Features"], "from the start"
    second.check(1, truth[0], features_of(target, truth[0], NEED))


def test_a_projection_of_another_head_or_shape_is_refused(target: Path) -> None:
    lm = CausalLM.load(target, num_pages=16, page_size=16)
    extractor = Extractor(lm, Projection(torch.zeros(8, 96), "feed" * 16))
    need = FeatureNeed((0, 1, LAST), 32, projection="feed" * 16, projected_size=8)
    assert extractor.recipe(need).layout == need.layout(32, FeatureFormat.FLOAT32)
    with pytest.raises(Exception, match="projected by abababababab, and this verifier projects by feedfeedfeed"):
        extractor.recipe(replace(need, projection="ab" * 32))
    with pytest.raises(Exception, match=r"the projection is \[8, 96\], features of .* here want \[8, 128\]"):
        extractor.recipe(replace(need, layers=(0, 1, 2, LAST)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_tokens_give_rows_of_the_right_width_and_dtype_and_no_features(target: Path, dtype: str) -> None:
    lm = CausalLM.load(target, num_pages=16, page_size=16, dtype=dtype)
    extractor = Extractor(lm)
    recipe: Recipe = extractor.recipe(NEED)
    _, hidden = lm.forward_capturing([], recipe.layers)
    rows = extractor.rows(recipe, hidden, torch.empty(0, dtype=torch.int64))
    assert rows.shape == (0, recipe.layout.width) and rows.dtype == lm.model.dtype
    assert extractor.extract([], hidden) == []


async def test_sessions_that_finish_in_the_same_step_ship_nothing_for_it(target: Path, truth: list[list[int]]) -> None:
    plain = replace(SERIAL, num_steps=1, num_draft_tokens=2)  # one wrong node: every step commits one token
    async with reading(NEED, truth) as (reader, endpoint), verifier_over(target) as verifier:
        asked = [
            replace(request(text[:60], endpoint, tokens=n), plan=plain)
            for text, n in zip(truth, (9, 9, 9, 14), strict=True)
        ]
        results = await asyncio.gather(*(decode(verifier, r) for r in asked))
        await reader.all_closed()
    for number, (text, (tokens, _)) in enumerate(zip(truth, results, strict=True), start=1):
        assert written(text, tokens, 60)
        session = reader.sessions[number]
        assert session.told[-1] == "Close" and session.closed
        assert len(session.tokens) < 60 + len(tokens), "the last step's tokens are no commit"
        assert len(session.rows) == len(session.tokens) - 1
        reader.check(number, text, features_of(target, text, NEED))


async def test_a_drafter_that_stops_reading_once_it_has_drafted_loses_the_session_and_the_log_says_why(
    target: Path, truth: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"step_token_budget": 16, "feature_window": 8, "feature_retention": 32, "paced_step_base_ms": 20.0}
    async with reading(NEED, truth, stops=True) as (reader, endpoint), verifier_over(target, **limits) as verifier:
        lost = losses(verifier)
        with caplog.at_level(logging.WARNING):
            tokens, end = await decode(verifier, request(PROMPTS[0], endpoint))
            await reader.all_closed()
        assert not lost, "it is slow, not dead"
    assert written(truth[0], tokens, 40) and end.speculation.drafted > 0
    session = reader.sessions[1]
    slow = f"is too slow, going on without drafts: it has read the features of {session.acknowledged} tokens"
    assert caplog.text.count(slow) == 1
    assert session.closed and len(session.rows) == session.acknowledged + 8, "no more than the window"


async def test_a_drafter_slower_than_prefill_keeps_the_session(
    target: Path, truth: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"step_token_budget": 16, "feature_window": 8, "feature_retention": 28, "num_draft_tokens": 12}
    async with reading(NEED, truth, lag=6) as (reader, endpoint), verifier_over(target, **limits) as verifier:
        tokens, _ = await decode(verifier, request(truth[0][:150], endpoint, tokens=40))
    assert written(truth[0], tokens, 150)
    assert "going on without drafts" not in caplog.text
    reader.check(1, truth[0], features_of(target, truth[0], NEED))


async def test_a_drafter_that_claims_to_have_read_what_was_not_sent_loses_the_session(
    target: Path, truth: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    async with reading(NEED, truth) as (reader, endpoint), verifier_over(target) as verifier:
        reader.read = lambda *_: [FeaturesRead(1000)]  # pyright: ignore[reportAttributeAccessIssue]
        with caplog.at_level(logging.WARNING):
            tokens, _ = await decode(verifier, request(PROMPTS[0], endpoint))
    assert written(truth[0], tokens, 40)
    assert "features_read.position: is 1000" in caplog.text and "going on without drafts" in caplog.text


async def test_a_late_joiner_is_replayed_what_is_kept_in_messages_that_fit(
    target: Path, truth: list[list[int]]
) -> None:
    small = 64 * 2**10
    async with (
        reading(NEED, truth, leaves_after=2) as (first, leaver),
        reading(NEED, truth) as (second, stayer),
        verifier_over(target, max_message_bytes=small) as verifier,
    ):
        records = recorded(verifier)
        verifier.on_lost = lambda _: verifier.engine.post(
            Roster((stayer,))
        )  # nobody to turn to until then: it needs a drafter
        tokens, end = await decode(verifier, request(truth[0][:150], leaver, tokens=40))
        sent = verifier.streams.statistics[stayer.address]
    assert written(truth[0], tokens, 150)
    assert not any(record.recomputed_tokens for record in records)
    for reader in (first, second):
        reader.check(1, truth[0], features_of(target, truth[0], NEED))
    assert sent.feature_bytes_sent > small and end.speculation.accepted > 10


async def test_a_late_joiner_gets_what_is_gone_by_recompute(target: Path, truth: list[list[int]]) -> None:
    limits = {"step_token_budget": 16, "feature_retention": 32, "num_draft_tokens": 12}
    async with (
        reading(NEED, truth, leaves_after=2) as (_, leaver),
        reading(NEED, truth) as (second, stayer),
        verifier_over(target, **limits) as verifier,
    ):
        records = recorded(verifier)
        verifier.engine.post(Roster((leaver, stayer)))
        tokens, end = await decode(verifier, request(PROMPTS[0], leaver))
    assert written(truth[0], tokens, 40)
    gone = sum(record.recomputed_tokens for record in records)
    assert gone >= len(PROMPTS[0]) - 32 and max(record.recomputed_tokens for record in records) <= 16
    second.check(1, truth[0], features_of(target, truth[0], NEED))
    assert not second.sessions[1].blocked, "it has caught up"
    assert end.speculation.accepted > 10


async def test_a_drafter_of_another_need_gets_all_by_recompute_and_disturbs_nobody(
    target: Path, truth: list[list[int]]
) -> None:
    other = FeatureNeed(layers=(1,), hidden_size=32)
    async with (
        reading(NEED, truth, leaves_after=1) as (_, leaver),
        reading(other, truth) as (second, stayer),
        verifier_over(target, paced_step_base_ms=5.0) as verifier,  # so that the other session lasts
    ):
        records = recorded(verifier)
        verifier.engine.post(Roster((leaver, stayer)))
        drafted, plain = await asyncio.gather(
            decode(verifier, request(PROMPTS[0], leaver)), decode(verifier, request(PROMPTS[1], tokens=150))
        )
    assert written(truth[0], drafted[0], 40)
    assert written(truth[1], plain[0], 43)
    again = [record for record in records if record.recomputed_tokens]
    assert sum(record.recomputed_tokens for record in again) >= len(PROMPTS[0])
    assert max(record.recomputed_tokens for record in again) <= 32, "few beside a session that lacks nothing"
    assert all(record.sessions for record in again), "decoding goes on meanwhile"
    second.check(1, truth[0], features_of(target, truth[0], other))


async def test_a_session_that_is_cancelled_leaves_nothing_at_any_moment(target: Path, truth: list[list[int]]) -> None:
    async with (
        reading(NEED, truth) as (reader, endpoint),
        verifier_over(target, step_token_budget=8, feature_window=16) as verifier,
    ):
        lost = losses(verifier)
        for after in range(4):
            events = verifier.decode(request(PROMPTS[0], endpoint))
            for _ in range(after):
                await anext(events)
            await events.aclose()
        tokens, _ = await decode(verifier, request(PROMPTS[1], endpoint))
        await reader.all_closed()
        assert not lost
    assert written(truth[1], tokens, 43)


async def test_sampled_text_is_the_same_with_and_without_features(target: Path, truth: list[list[int]]) -> None:
    sampled = replace(request(PROMPTS[2]), sampling=Sampling(temperature=0.8, seed=11))
    async with verifier_over(target) as verifier:
        alone, _ = await decode(verifier, sampled)
    async with reading(NEED, [PROMPTS[2] + alone]) as (reader, endpoint), verifier_over(target) as verifier:
        records = recorded(verifier)
        tokens, end = await decode(verifier, replace(sampled, drafter=endpoint))
    assert tokens == alone and end.speculation.accepted > 10
    first, second, *_ = (record for record in records if record.sessions)
    assert first.prefill_tokens == len(PROMPTS[2]) - 1 and first.drafted == 0, (
        "it reads the prompt, of which there are no features yet"
    )
    assert second.drafted > 0, "it waits for the first grow"
    reader.check(1, PROMPTS[2] + alone, features_of(target, PROMPTS[2] + alone, NEED))
