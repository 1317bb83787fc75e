"""A verifier with adapters: each session is decoded with its own, in one step with those of others, as by the merged weights."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from specsplit.engine import Block, BlocksStored, UpdateWeights
from specsplit.errors import InvalidRequest, LoadError
from specsplit.prefix import first_marks
from specsplit.sessions import DecodeRequest
from specsplit.settings import VerifierSettings
from specsplit.values import AdapterLoad, PlanChanges, Sampling, Stopping
from specsplit.wire.vllm_operations import block_batch_to_wire
from specsplit_verifier.edge.block_events import BlockEvents
from specsplit_verifier.edge.service import read_revision
from specsplit_verifier.edge.updates import Updates
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.events import HoldSessions
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


@pytest.fixture
def changing(root: Path, tmp_path: Path) -> Path:
    """A folder like `root`, with another revision of the target beside the first, in which adapters may change."""
    for name in ("target", "adapters"):
        shutil.copytree(root / name, tmp_path / name)
    random_target(tmp_path / "second", seed=1)
    return tmp_path


@asynccontextmanager
async def updatable(root: Path, **settings: Any) -> AsyncIterator[tuple[Verifier, Updates]]:
    given: dict[str, Any] = {"adapters_dir": root / "adapters", "weights_dir": root, **settings}
    resolved = VerifierSettings(model=root / "target", **{"adaptive": "static", **given})
    async with verifier_over(root / "target", **given) as verifier:
        yield verifier, Updates(resolved, partial(read_revision, resolved))


def change(root: Path) -> None:
    """One adapter goes, one is changed, and one comes, before those that stay."""
    shutil.rmtree(root / "adapters" / "one")
    shutil.rmtree(root / "adapters" / "two")
    write_adapter(root / "adapters" / "a new one", root / "target", 3)
    write_adapter(root / "adapters" / "two", root / "target", 4)


def of_second(root: Path, name: str) -> Path:
    """The second revision with an adapter merged into it, or with none."""
    if not name:
        return root / "second"
    folder = root / f"second with {name}"
    return folder if folder.exists() else merged(root / "second", root / "adapters" / name, folder)


def text_of(folder: Path) -> list[int]:
    """What transformers writes with the weights in a folder."""
    return greedy_texts(folder, [START], NEW)[0][len(START) :]


async def test_other_weights_come_with_the_adapters_that_are_in_the_folder_then(changing: Path) -> None:
    async with updatable(changing) as (verifier, updates):
        for name in NAMES:
            await decode(verifier, request(name))
        told = list[int]()
        verifier.on_weights = lambda: told.append(verifier.engine.weights_version)
        change(changing)
        updated = await updates.update(verifier, UpdateWeights("second"))
        assert updated.message == (
            "the target goes on with second, version 2 of its weights; adapters: 1 new (a new one), 1 gone (one), 1 changed (two)"
        )
        assert told == [2] and [each.name for each in verifier.info.adapters] == ["a new one", "two"]
        for name in ("", "a new one", "two"):
            tokens, end = await decode(verifier, request(name))
            assert tokens == text_of(of_second(changing, name))
            assert end.usage.cached_prompt_tokens == 0, "what was cached is of the weights before"
            _, end = await decode(verifier, request(name))
            assert end.usage.cached_prompt_tokens == 32
        with pytest.raises(InvalidRequest, match="adapter: is one, expected one of a new one, two, or none for target"):
            await decode(verifier, request("one"))
        again = await updates.update(verifier, UpdateWeights("second"))
        assert again.message == "the target goes on with second, version 3 of its weights"


SLOW: dict[str, Any] = {"paced_step_base_ms": 10.0}


async def test_sessions_that_restart_go_on_with_the_adapter_of_their_name_and_end_if_it_is_gone(
    changing: Path, root: Path
) -> None:
    async with updatable(changing, **SLOW) as (verifier, _):
        change(changing)
        settings = VerifierSettings(model=changing / "target", adapters_dir=changing / "adapters", weights_dir=changing)
        revision = read_revision(settings, verifier.engine.target, changing / "second", "second")
        seen, long = {name: list[int]() for name in NAMES}, Stopping(150, ignore_eos=True)
        running = {
            name: asyncio.create_task(_followed(verifier, replace(request(name), stopping=long), seen[name]))
            for name in NAMES
        }
        await _until(lambda: min(map(len, seen.values())) > 2)
        updates = Updates(settings, lambda *_: revision)
        updated = await updates.update(verifier, UpdateWeights("second", restart=True))
        assert "; 3 sessions are computed again; adapters: " in updated.message
        with pytest.raises(InvalidRequest, match="adapter: is one, expected one of a new one, two"):
            await running["one"]
        for name in ("", "two"):
            tokens = await running[name]
            before, after = root / (name or "target"), of_second(changing, name)
            switched = min(at for at in range(150) if tokens[at:] == likeliest(after, tokens)[at:])
            assert 2 < switched < 149 and tokens[:switched] == likeliest(before, tokens)[:switched]


def likeliest(folder: Path, tokens: Sequence[int]) -> list[int]:
    """What the weights in a folder take for the likeliest in the place of each of some tokens behind the prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([[*START, *tokens]])).logits[0, len(START) - 1 : -1].argmax(dim=-1).tolist()


async def test_sessions_that_drain_keep_their_adapter_and_those_that_wait_get_the_new_one(
    changing: Path, root: Path
) -> None:
    """There is room for one of the texts at a time; that of the first that waits has been looked for in the prefix cache."""
    async with updatable(changing, kv_tokens=80, num_draft_tokens=1, paced_step_base_ms=20.0) as (verifier, updates):
        seen, waiting = list[int](), dict[str, asyncio.Task[list[int]]]()
        running = asyncio.create_task(_followed(verifier, request("one"), seen))
        await _until(lambda: bool(seen))
        for name in ("two", "", "one"):
            waiting[name] = asyncio.create_task(_followed(verifier, request(name), []))
            await _until(lambda: verifier.load().waiting == len(waiting))
            verifier.engine.post(HoldSessions(held=True))
        change(changing)
        await updates.update(verifier, UpdateWeights("second"))
        assert await running == expected(root, "one", tuple(START))
        for name in ("two", ""):
            assert await waiting[name] == text_of(of_second(changing, name))
        with pytest.raises(InvalidRequest, match="adapter: is one, expected one of a new one, two"):
            await waiting["one"]
        _, end = await decode(verifier, request("two"))
        assert end.usage.cached_prompt_tokens, "it was kept as what the new adapter computed"


async def _until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not happened():
            await asyncio.sleep(0.01)


async def _followed(verifier: Verifier, wanted: DecodeRequest, seen: list[int]) -> list[int]:
    async for event in verifier.decode(wanted):
        seen += getattr(event, "tokens", ())
    return seen


async def test_an_adapter_that_does_not_fit_leaves_everything_as_it_was(changing: Path, root: Path) -> None:
    async with updatable(changing) as (verifier, updates):
        before = verifier.info
        unfit = write_adapter(changing / "adapters" / "unfit", changing / "target", 3) / "adapter_model.safetensors"
        save_file(
            {name: each[:, :7].clone() if "lora_A" in name else each for name, each in load_file(unfit).items()}, unfit
        )
        with pytest.raises(
            LoadError,
            match=r"adapter unfit: its matrices for .* go from 7 to 32: expected 48 to 32, as the target has it",
        ):
            await updates.update(verifier, UpdateWeights("second"))
        shutil.rmtree(changing / "adapters")
        (changing / "adapters").mkdir()
        with pytest.raises(LoadError, match="has no adapter in it"):
            await updates.update(verifier, UpdateWeights("second"))
        assert verifier.info == before and verifier.engine.weights_version == 1
        for name in NAMES:
            tokens, _ = await decode(verifier, request(name))
            assert tokens == expected(root, name, tuple(START))


@pytest.mark.parametrize("other", [{"tp_size": 2}, {"dp_size": 2}, {"compile": "regional"}])
def test_settings_that_do_not_go_with_adapters_are_refused(root: Path, other: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="adapters_dir: does not go with"):
        VerifierSettings(model=root / "target", adapters_dir=root / "adapters", coordinator="127.0.0.1:1", **other)
