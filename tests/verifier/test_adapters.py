"""A verifier with adapters: each session is decoded with its own, in one step with those of others, as by the merged weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specsplit.engine import Block, BlocksStored, UpdateWeights
from specsplit.errors import InvalidRequest, Unsupported
from specsplit.prefix import first_marks
from specsplit.sessions import DecodeRequest
from specsplit.settings import VerifierSettings
from specsplit.values import AdapterLoad, PlanChanges, Sampling, Stopping
from specsplit.wire.vllm_operations import block_batch_to_wire
from specsplit_verifier.edge.block_events import BlockEvents
from specsplit_verifier.edge.service import read_revision
from specsplit_verifier.edge.updates import Updates
from specsplit_verifier.edge.verifier import Verifier
from tests.support.adapters import merged, write_adapter
from tests.support.greedy import greedy_texts
from tests.support.toys import random_target
from tests.verifier.conftest import decode, recorded, verifier_over

NAMES = ["", "one", "two"]
"""No adapter, and two."""
START = [1, 5, 2, 9, 4, 7, 3, 3, 8, 6, 2, 1, 11, 12, 13, 4, 0, 5, 6, 1, 1, 2, 3, 5, 8, 13, 4, 0, 2, 2, 7, 9, 10, 3, 15]
"""Two whole pages, and some."""
NEW = 24


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, its adapters, of which the second is of some projections only, and the merged weights of each under its name."""
    root = tmp_path_factory.mktemp("adapters")
    target = random_target(root / "target")
    adapters = [
        write_adapter(root / "adapters" / "one", target, 1),
        write_adapter(root / "adapters" / "two", target, 2, rank=9, modules=["q_proj", "down_proj"]),
    ]
    for adapter in adapters:
        merged(target, adapter, root / adapter.name)
    return root


@asynccontextmanager
async def adapted(root: Path, **settings: Any) -> AsyncIterator[Verifier]:
    async with verifier_over(root / "target", adapters_dir=root / "adapters", **settings) as verifier:
        yield verifier


@cache
def expected(root: Path, name: str, prompt: tuple[int, ...]) -> list[int]:
    """What transformers writes with the merged weights."""
    return greedy_texts(root / (name or "target"), [list(prompt)], NEW)[0][len(prompt) :]


def request(name: str, prompt: Sequence[int] = START, **options: Any) -> DecodeRequest:
    return DecodeRequest(name, tuple(prompt), Sampling(), Stopping(NEW, ignore_eos=True), adapter=name, **options)


async def test_sessions_of_several_adapters_are_decoded_in_one_step_as_by_their_merged_weights(root: Path) -> None:
    async with adapted(root) as verifier:
        assert [adapter.name for adapter in verifier.info.adapters] == NAMES[1:]
        assert len({adapter.digest for adapter in verifier.info.adapters}) == 2
        assert [adapter.rank for adapter in verifier.info.adapters] == [4, 9]
        steps, used = recorded(verifier), list[tuple[AdapterLoad, ...]]()
        verifier.subscribe(lambda _: used.append(verifier.load().adapters))
        answers = await asyncio.gather(
            *(decode(verifier, request(name, (*START, last))) for name in NAMES for last in range(3))
        )
    wanted = [expected(root, name, (*START, last)) for name in NAMES for last in range(3)]
    assert [tokens for tokens, _ in answers] == wanted
    assert len({tuple(expected(root, name, (*START, 0))) for name in NAMES}) == 3, "each adapter says something else"
    assert max(len(step.sessions) for step in steps) == 9
    assert tuple(AdapterLoad(name, 3) for name in NAMES[1:]) in used


async def test_no_page_of_one_adapter_is_anothers_and_its_own_are_found_again(root: Path) -> None:
    async with adapted(root) as verifier:
        for again in range(2):
            for name in NAMES:
                tokens, end = await decode(verifier, request(name))
                assert tokens == expected(root, name, tuple(START))
                assert end.usage.cached_prompt_tokens == 32 * again
        salts = [b"", *(adapter.salt for adapter in verifier.info.adapters)]
        marks = [set(first_marks(START, 16, salt)) for salt in salts]
        assert set[int]().union(*marks) <= set(verifier.engine.statistics().prefixes)
        assert len(set[int]().union(*marks)) == 6


async def test_what_is_taken_back_is_computed_again_with_the_adapter_that_it_had(root: Path) -> None:
    """There is room for two of the texts at a time, and four begin."""
    async with adapted(root, kv_tokens=128, num_draft_tokens=1, prefix_cache=False) as verifier:
        wanted = [(name, (*START[:20], last)) for name in NAMES[1:] for last in range(2)]
        answers = await asyncio.gather(*(_ended(verifier, request(name, prompt)) for name, prompt in wanted))
        assert answers == [expected(root, name, prompt) for name, prompt in wanted]


async def _ended(verifier: Verifier, wanted: DecodeRequest) -> list[int]:
    """The tokens of a session that may be preempted."""
    tokens: list[int] = []
    async for event in verifier.decode(wanted):
        tokens += getattr(event, "tokens", ())
    return tokens


async def test_lookup_drafts_for_adapted_sessions_and_changes_nothing(root: Path) -> None:
    plan = PlanChanges(num_steps=4, topk=2, num_draft_tokens=8)
    async with adapted(root, lookup=True) as verifier:
        wanted = [request(name, START * 2, plan=plan, any_drafter=True) for name in NAMES for _ in range(2)]
        answers = await asyncio.gather(*(decode(verifier, each) for each in wanted))
    assert [tokens for tokens, _ in answers] == [expected(root, each.adapter, tuple(each.tokens)) for each in wanted]
    assert sum(end.speculation.drafted for _, end in answers) > 0


async def test_an_answer_that_was_begun_elsewhere_goes_on_with_its_adapter(root: Path) -> None:
    text = expected(root, "two", tuple(START))
    async with adapted(root) as verifier:
        tokens, _ = await decode(verifier, request("two", (*START, *text[:7]), committed=7))
    assert tokens == text[7:]


async def test_an_adapter_that_is_not_there_is_refused_with_those_that_are(root: Path) -> None:
    async with adapted(root) as verifier:
        with pytest.raises(
            InvalidRequest, match="adapter: is three, expected one of one, two, or none for target as it is"
        ):
            await decode(verifier, request("three"))
    async with verifier_over(root / "target") as verifier:
        with pytest.raises(InvalidRequest, match="adapter: is one, and target has none; leave it out"):
            await decode(verifier, request("one"))


async def test_watchers_of_cached_blocks_hear_with_which_adapter_they_were_computed(root: Path) -> None:
    async with adapted(root) as verifier:
        for name in NAMES:
            await decode(verifier, request(name))
        events = BlockEvents(verifier.engine.post)
        async with aclosing(events.subscribe(verifier.failed)) as batches:
            batch = await anext(batches)
    blocks: list[Block] = [
        block for change in batch.changes if isinstance(change, BlocksStored) for block in change.blocks
    ]
    assert {name: sum(block.adapter == name for block in blocks) for name in NAMES} == dict.fromkeys(NAMES, 3)
    told = [event.stored for event in block_batch_to_wire(batch).events if event.HasField("stored")]
    assert sorted(stored.lora_name for stored in told) == NAMES
    assert [stored.HasField("lora_name") for stored in told] == [bool(stored.lora_name) for stored in told]


async def test_other_weights_of_the_target_are_refused_where_it_has_adapters(root: Path) -> None:
    settings = VerifierSettings(model=root / "target", adapters_dir=root / "adapters", weights_dir=root)
    async with adapted(root, weights_dir=root) as verifier:
        updates = Updates(settings, lambda *given: read_revision(settings, *given))
        with pytest.raises(Unsupported, match="does not go with adapters_dir"):
            await updates.update(verifier, UpdateWeights("one"))


@pytest.mark.parametrize("other", [{"tp_size": 2}, {"dp_size": 2}, {"compile": "regional"}])
def test_settings_that_do_not_go_with_adapters_are_refused(root: Path, other: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="adapters_dir: does not go with"):
        VerifierSettings(model=root / "target", adapters_dir=root / "adapters", coordinator="127.0.0.1:1", **other)
