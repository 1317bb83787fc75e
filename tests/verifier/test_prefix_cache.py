"""Texts that begin alike share the KV of their beginnings: it is computed once, kept while there is room, and changes no text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

from specsplit.clock import SystemClock
from specsplit.errors import SpecsplitError
from specsplit.features import LAST, FeatureFormat, FeatureLayout, FeatureNeed, Features
from specsplit.model.pages.pool import PagePool
from specsplit.sessions import DecodeRequest, Finished
from specsplit.settings import DrafterSettings, VerifierSettings
from specsplit.v1 import drafter_pb2_grpc
from specsplit.values import DrafterKind, Endpoint, ModelInfo, Plan, PlanChanges, Sampling, Stopping, Vocabulary
from specsplit.wire import drafter as wire
from specsplit_verifier.edge.service import load_target
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.feed import Recipe
from specsplit_verifier.schedule.kv_cache_manager import KVCacheManager
from specsplit_verifier.schedule.prefix_cache import PrefixCache
from specsplit_verifier.schedule.scheduler import Scheduler
from specsplit_verifier.sessions.session import Session, StopRule
from tests.drafter.service_toys import drafter
from tests.support.slow import slowly
from tests.support.toys import random_target
from tests.verifier.conftest import decode, recorded, verifier_over
from tests.verifier.reader import features_of, reading, three_layers

POCKET = Path("models/pocket")
SOURCE = b"def read(path):\n    with open(path) as file:\n        for line in file:\n            yield line\n\n\ndef write(path, lines):\n"
SEEDED = Sampling(temperature=0.8, seed=3)
WAITING = PlanChanges(draft_ahead=False, wait_budget_us=20_000_000)
"""The verifier waits for every answer, so that nothing depends on how fast a drafter is."""


def cache_of(pages: int) -> tuple[PagePool, PrefixCache]:
    pool = PagePool(pages, 4)
    return pool, PrefixCache(pool)


def digests_of(cache: PrefixCache, tokens: Sequence[int], salt: bytes = b"") -> list[bytes]:
    digests: list[bytes] = []
    cache.extend(digests, tokens, len(tokens) // 4, salt)
    return digests


def put(pool: PagePool, cache: PrefixCache, tokens: Sequence[int]) -> list[bytes]:
    """A session that computed so many tokens, and is gone."""
    digests = digests_of(cache, tokens)
    pages = pool.allocate(len(digests))
    cache.put(digests, pages)
    pool.release(pages)
    cache.rest(digests)
    return digests


def test_a_digest_stands_for_the_page_and_all_before_it_and_the_salt() -> None:
    _, cache = cache_of(8)
    one, two, three = digests_of(cache, [1, 2, 3, 4] * 3, b"an adapter")
    assert one == sha256(b"an adapter" + np.array([1, 2, 3, 4]).tobytes()).digest()
    assert two == sha256(one + np.array([1, 2, 3, 4]).tobytes()).digest()
    assert len({one, two, three, *digests_of(cache, [1, 2, 3, 4])}) == 4


def test_the_longest_known_beginning_is_found_and_held() -> None:
    pool, cache = cache_of(8)
    put(pool, cache, [*range(12)])
    wanted = digests_of(cache, [*range(8), 9, 9, 9, 9])
    assert cache.known(wanted) == wanted[:2]
    pages = cache.take(wanted[:2])
    assert (cache.idle_pages, pool.free_pages) == (1, 5)
    assert [pool.holders(page) for page in pages.tolist()] == [2, 2]


def test_the_least_recently_used_is_evicted_first_and_the_end_of_a_text_before_its_beginning() -> None:
    pool, cache = cache_of(8)
    old, new = put(pool, cache, [1] * 12), put(pool, cache, [2] * 8)
    cache.take(old[:1])
    cache.evict(2)
    assert (cache.known(old), cache.known(new)) == (old[:1], new)
    cache.evict(1)
    assert (cache.known(old), cache.known(new)) == (old[:1], new[:1])
    assert (cache.idle_pages, pool.free_pages) == (1, 6)


def test_the_same_page_computed_twice_is_kept_once() -> None:
    pool, cache = cache_of(8)
    first, second = put(pool, cache, [1] * 8), put(pool, cache, [1] * 8)
    assert first == second and (cache.idle_pages, pool.free_pages) == (2, 6)


def test_what_is_forgotten_is_not_found_and_free_when_its_last_session_is_gone() -> None:
    pool, cache = cache_of(8)
    digests = put(pool, cache, [1] * 8)
    pages = cache.take(digests[:1])
    cache.forget(digests)
    assert (cache.known(digests), cache.idle_pages, pool.free_pages) == ([], 0, 7)
    pool.release(pages)
    cache.rest(digests)
    assert (cache.idle_pages, pool.free_pages) == (0, 8)


def prompts_of(count: int, prefix: int) -> list[list[int]]:
    """Texts with an equal beginning; each goes on with a token of its own."""
    start = [(11 * i * i + 5 * i) % 16 for i in range(prefix)]
    return [[*start, 16 + number, *range(number % 20)] for number in range(count)]


async def write_all(
    verifier: Verifier, prompts: Sequence[list[int]], sampling: Sampling, drafter: Endpoint | None = None, new: int = 24
) -> tuple[list[list[int]], list[Finished]]:
    ends = await asyncio.gather(
        *(
            decode(verifier, DecodeRequest("r", prompt, sampling, Stopping(new, ignore_eos=True), WAITING, drafter))
            for prompt in prompts
        )
    )
    return [tokens for tokens, _ in ends], [end for _, end in ends]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_target(tmp_path_factory.mktemp("random"), vocab_size=80, max_context=1024)


@pytest.mark.parametrize("sampling", [Sampling(), SEEDED])
async def test_fifty_requests_that_share_a_beginning_prefill_it_once(target: Path, sampling: Sampling) -> None:
    prompts = prompts_of(50, 400)
    async with verifier_over(target, max_sessions=64, prefix_cache=False) as verifier:
        truth, plain = await write_all(verifier, prompts, sampling, new=8)
    async with verifier_over(target, max_sessions=64) as verifier:
        steps = recorded(verifier)
        texts, ends = await write_all(verifier, prompts, sampling, new=8)
    assert texts == truth
    assert sum(step.prefill_tokens for step in steps) == 400 + sum(len(prompt) - 1 - 400 for prompt in prompts)
    assert sum(step.kv.cached_tokens for step in steps) == 49 * 400
    assert sorted(end.usage.cached_prompt_tokens for end in ends) == [0] + [400] * 49
    assert {end.usage.cached_prompt_tokens for end in plain} == {0}


async def test_choices_of_one_request_read_its_prompt_once(target: Path) -> None:
    """They are sessions of equal prompts and other seeds, and the second waits for the first."""
    (prompt,) = prompts_of(1, 400)
    async with verifier_over(target) as verifier:
        steps = recorded(verifier)
        ends = await asyncio.gather(
            *(
                decode(verifier, DecodeRequest("r", prompt, Sampling(temperature=1.0, seed=seed), Stopping(8)))
                for seed in range(4)
            )
        )
    assert sum(step.prefill_tokens for step in steps) == 400
    assert sorted(end.usage.cached_prompt_tokens for _, end in ends) == [0, 400, 400, 400]


async def test_a_conversation_that_goes_on_finds_what_was_written_before(target: Path) -> None:
    (prompt,) = prompts_of(1, 50)
    async with verifier_over(target) as verifier:
        ((first,), _) = await write_all(verifier, [prompt], SEEDED, new=60)
        onward = [*prompt, *first, 3, 4, 5]
        ((second,), (end,)) = await write_all(verifier, [onward], SEEDED)
    async with verifier_over(target, prefix_cache=False) as verifier:
        ((alone,), _) = await write_all(verifier, [onward], SEEDED)
    assert end.usage.cached_prompt_tokens == (len(prompt) + 59) // 16 * 16
    assert second == alone


async def test_pages_that_are_needed_are_evicted(target: Path) -> None:
    prompts = [[(number + i * i) % 80 for i in range(100)] for number in range(6)]
    async with verifier_over(target, prefix_cache=False) as verifier:
        truth = [(await write_all(verifier, [prompt], SEEDED))[0] for prompt in prompts]
    async with verifier_over(target, kv_tokens=16 * 12) as verifier:
        steps = recorded(verifier)
        for prompt, text in zip(prompts, truth, strict=True):
            assert (await write_all(verifier, [prompt], SEEDED))[0] == text
        _, (again,) = await write_all(verifier, prompts[-1:], SEEDED)
        _, (gone,) = await write_all(verifier, prompts[:1], SEEDED)
    assert (again.usage.cached_prompt_tokens, gone.usage.cached_prompt_tokens) == (96, 0)
    assert sum(step.kv.preemptions for step in steps) == 0


@asynccontextmanager
async def drafting(kind: DrafterKind | None) -> AsyncIterator[Endpoint | None]:
    """A drafter of the pocket models."""
    if kind is None:
        yield None
        return
    folder = {DrafterKind.STANDALONE: "draft"}.get(kind, kind.value)
    model = None if kind is DrafterKind.NGRAM else POCKET / folder
    settings = DrafterSettings(kind=kind, model=model, target=POCKET / "target" if kind.is_head else None)
    async with drafter(settings) as (server, channel, _):
        response = await drafter_pb2_grpc.DrafterServiceStub(channel).GetDrafterInfo(wire.drafter_info_request())
        yield Endpoint(kind.value, server.bound, wire.drafter_info_from_wire(response).features)


@pytest.mark.parametrize("kind", [None, DrafterKind.STANDALONE, *slowly(DrafterKind.NGRAM, DrafterKind.EAGLE3)])
async def test_text_is_the_same_with_the_cache_and_without(kind: DrafterKind | None) -> None:
    prompts = [[*SOURCE[:100], number] for number in range(2)]
    async with drafting(kind) as endpoint:
        async with verifier_over(POCKET / "target", prefix_cache=False) as verifier:
            truth = [(await write_all(verifier, prompts, sampling, new=40))[0] for sampling in (Sampling(), SEEDED)]
        async with verifier_over(POCKET / "target") as verifier:
            for sampling, texts in [(Sampling(), truth[0]), (SEEDED, truth[1])]:
                found, ends = await write_all(verifier, prompts, sampling, endpoint, new=40)
                assert found == texts
                assert kind is None or sum(end.speculation.accepted for end in ends) > 0
    assert all(end.usage.cached_prompt_tokens == 96 for end in ends)


@pytest.mark.parametrize("budget", [512, 37])
async def test_a_head_gets_the_features_of_a_cached_beginning_and_nobody_who_shares_it_notices(
    tmp_path: Path, budget: int
) -> None:
    """In chunks that begin on a page, and in such as do not."""
    folder, need = three_layers(tmp_path), FeatureNeed(layers=(1, LAST), hidden_size=32)
    prompts = [[(7 * i * i) % 16 for i in range(80)] + [number] for number in range(3)]
    async with verifier_over(folder, prefix_cache=False) as verifier:
        truth, _ = await write_all(verifier, prompts, Sampling(), new=100)
    texts = [prompt + text for prompt, text in zip(prompts, truth, strict=True)]
    async with (
        reading(need, texts) as (reader, endpoint),
        verifier_over(folder, step_token_budget=budget) as verifier,
    ):
        steps = recorded(verifier)
        written, _ = await write_all(verifier, prompts[:1], Sampling(), new=100)
        again, ends = await write_all(verifier, prompts, Sampling(), endpoint, new=100)
        await reader.all_closed()
    assert written == truth[:1] and again == truth
    assert [end.usage.cached_prompt_tokens for end in ends] == [80, 80, 80]
    assert sum(step.recomputed_tokens for step in steps) >= 3 * 80, "the first session had no head"
    for session, text in zip(sorted(reader.sessions), texts, strict=True):
        reader.check(session, text, features_of(folder, text, need))


@pytest.mark.parametrize("kept_tokens", [1 << 20, 48])
async def test_features_of_a_shared_beginning_are_kept_and_not_computed_again(tmp_path: Path, kept_tokens: int) -> None:
    """The second request shares what was computed for the first. Where fewer are kept, the rest of them is computed again."""
    folder, need = three_layers(tmp_path), FeatureNeed(layers=(1, LAST), hidden_size=32)
    token_bytes = need.layout(32, FeatureFormat.FLOAT32).bytes_per_token
    prompts = [[(7 * i * i) % 16 for i in range(80)] + [number] for number in range(2)]
    async with verifier_over(folder, prefix_cache=False) as verifier:
        truth, _ = await write_all(verifier, prompts, Sampling(), new=100)
    texts = [prompt + text for prompt, text in zip(prompts, truth, strict=True)]
    async with (
        reading(need, texts) as (reader, endpoint),
        verifier_over(folder, prefix_features_bytes=kept_tokens * token_bytes) as verifier,
    ):
        first, _ = await write_all(verifier, prompts[:1], Sampling(), endpoint, new=100)
        steps = recorded(verifier)
        second, (end,) = await write_all(verifier, prompts[1:], Sampling(), endpoint, new=100)
        await reader.all_closed()
    assert first + second == truth and end.usage.cached_prompt_tokens == 80
    assert (sum(step.recomputed_tokens for step in steps) == 0) == (kept_tokens > 80)
    for session, text in zip(sorted(reader.sessions), texts, strict=True):
        reader.check(session, text, features_of(folder, text, need))


@pytest.mark.parametrize("kind", slowly(DrafterKind.EAGLE3, DrafterKind.EAGLE))
async def test_a_head_on_a_shared_beginning_is_accepted_as_often_as_on_its_own(kind: DrafterKind) -> None:
    """Each time the second request of a drafter that knows nothing yet, since drafters learn from what was picked.

    They learn from how long steps take too, which may make a step more or less: the text is long enough for that to be no matter.
    """
    prompt, found = [*SOURCE[:100], 7], list[tuple[list[int], Finished]]()
    for prefix_cache in (False, True):
        async with (
            drafting(kind) as endpoint,
            verifier_over(POCKET / "target", prefix_cache=prefix_cache) as verifier,
        ):
            steps = recorded(verifier)
            await write_all(verifier, [prompt], Sampling(), endpoint, new=60)
            ((text,), (end,)) = await write_all(verifier, [prompt], Sampling(), endpoint, new=200)
            found.append((text, end))
            assert sum(step.recomputed_tokens for step in steps) == 0
    (alone_text, alone), (shared_text, shared) = found
    assert shared_text == alone_text and shared.usage.cached_prompt_tokens == 96
    assert shared.speculation.accept_length == pytest.approx(alone.speculation.accept_length, rel=0.05)


def features_at(page: int) -> Features:
    return Features(4 * page, 4, bytes([page] * 32))


def test_features_go_with_their_page_and_the_least_recently_used_first() -> None:
    pool = PagePool(8, 4)
    cache = PrefixCache(pool, feature_bytes=96)
    recipe, other = (Recipe((layer,), "", FeatureLayout(2)) for layer in (1, 2))
    digests = put(pool, cache, [1] * 16)
    for page in range(4):
        cache.keep(digests[page], recipe, features_at(page))
    assert cache.features.nbytes == 96, "the first page's had to go"
    assert cache.features.last(digests, recipe) == [features_at(page) for page in (1, 2, 3)]
    assert cache.features.last(digests, other) == []
    cache.keep(digests[2], other, features_at(2))
    assert cache.features.last(digests, recipe) == [features_at(3)]
    cache.evict(1)
    assert cache.features.last(digests, recipe) == [] and cache.features.nbytes == 64
    cache.keep(digests[3], recipe, features_at(3))
    assert cache.features.nbytes == 64, "its page is not here"
    cache.forget(digests)
    assert cache.features.nbytes == 0


async def test_kv_that_broke_is_found_by_nobody(target: Path) -> None:
    settings, clock = VerifierSettings(model=target), SystemClock()
    runner = load_target(settings, clock)
    verifier = Verifier(settings, runner, clock)
    (prompt,) = prompts_of(1, 100)
    try:
        (text,), _ = await write_all(verifier, [prompt], Sampling())
        runner.target.kv.data.fill_(torch.nan)
        with pytest.raises(SpecsplitError, match="no token for position"):
            await write_all(verifier, [prompt], Sampling())
        runner.target.kv.data.zero_()
        (after,), (end,) = await write_all(verifier, [prompt], Sampling())
    finally:
        await verifier.close()
    assert after == text and end.usage.cached_prompt_tokens == 0


async def test_preempted_sessions_with_heads_get_them_again_with_all_features(tmp_path: Path) -> None:
    folder, need = three_layers(tmp_path), FeatureNeed(layers=(1, LAST), hidden_size=32)
    prompts = [[(7 * i * i + number) % 16 for i in range(40)] for number in range(3)]
    async with verifier_over(folder) as verifier:
        truth, _ = await write_all(verifier, prompts, Sampling(), new=150)
    texts = [prompt + text for prompt, text in zip(prompts, truth, strict=True)]
    async with reading(need, texts) as (reader, endpoint), verifier_over(folder, kv_tokens=16 * 15) as verifier:
        steps = recorded(verifier)
        written, ends = await write_all(verifier, prompts, Sampling(), endpoint, new=100)
        await reader.all_closed()
    assert written == [text[:100] for text in truth]
    assert sum(step.kv.preemptions for step in steps) > 0 and all(end.speculation.accepted for end in ends)
    numbers = {number: prompts.index(opened.tokens[:40]) for number, opened in sorted(reader.sessions.items())}
    assert len(numbers) > 3, "a session that comes back is opened by another number"
    last = {text: number for number, text in numbers.items()}
    for number, text in numbers.items():
        if number == last[text] or reader.sessions[number].rows:  # it may have been preempted before any came
            reader.check(number, texts[text], features_of(folder, texts[text], need))


def test_who_awaits_a_beginning_is_overtaken_and_goes_on_with_it() -> None:
    kv = KVCacheManager(PagePool(64, 4))
    scheduler = Scheduler(ModelInfo("toy", Vocabulary(16), 2048), kv, max_sessions=8)
    texts = [[1] * 20, [1] * 20, [2] * 5]
    for number, tokens in enumerate(texts, start=1):
        request = DecodeRequest(str(number), tuple(tokens))
        scheduler.submit(Session(number, request, Plan(), StopRule(5), kv.table(), tokens))
    assert [session.id for session in scheduler.admit()] == [1, 3]
    first = scheduler.running[1]
    first.kv_length = 12
    assert scheduler.admit() == [], "the fourth page is still to come"
    first.kv_length = 19
    (second,) = scheduler.admit()
    assert (second.id, second.kv_length) == (2, 16)
    assert second.table.slots(0, 16).tolist() == first.table.slots(0, 16).tolist()
