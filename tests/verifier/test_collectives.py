"""What ranks that share a target run together in one turn: exactly the same, whatever each of them has to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from specsplit.clock import ManualClock, SystemClock
from specsplit.features import LAST, FeatureNeed
from specsplit.model import PageTable
from specsplit.model.graphs import Buckets
from specsplit.ranks.lockstep import NOTHING, Proposal
from specsplit.ranks.wave import PARK_AFTER
from specsplit.sessions import DecodeRequest
from specsplit.speculation import Draft
from specsplit.values import Sampling, Stopping
from specsplit_verifier.edge.service import load_target
from specsplit_verifier.engine.core import EngineCore
from specsplit_verifier.engine.engine import core_of
from specsplit_verifier.records.step import ChunkInput, StepInput, StepOutput, TreeInput
from specsplit_verifier.target.runner import TargetRunner
from tests.support.eventually import eventually
from tests.support.meshes import Collective, mesh_of
from tests.support.rank_groups import Ranks, ShardedTargets, settings_of, sharded_ranks
from tests.support.rounding import assert_same_sums
from tests.support.toys import random_target
from tests.verifier.conftest import decode

SIZE, WIDTH, LAYERS, PROMPT = 4, 32, 2, (3, 7, 1, 4, 9, 2, 8, 5, 6)
LENGTH = len(PROMPT) - 1
EAGLE = FeatureNeed((LAST,), WIDTH)
EAGLE3 = FeatureNeed((0, 1, 2), WIDTH)
PARENTS = (-1, 0, 0, 1, 3)
DRAFT = Draft((0, 1, 2, 3, 4), (6, 2, 9, 1, 3), PARENTS, (8, 9, 9, 10, 11), (0.0, -0.5, -1.0, -1.5, -2.0))
Step = Callable[["Prompted"], StepInput]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_target(tmp_path_factory.mktemp("target"), 16)


@pytest.fixture(scope="module")
def targets(folder: Path) -> ShardedTargets:
    return ShardedTargets(folder, SIZE, kv_tokens=1024)


@pytest.fixture(scope="module")
def captured(folder: Path) -> ShardedTargets:
    return ShardedTargets(folder, SIZE, kv_tokens=1024, buckets=Buckets(16, 4))


@dataclass(frozen=True)
class Prompted:
    """A runner, and where it keeps the KV of a prompt but for its last token."""

    runner: TargetRunner
    table: PageTable

    @classmethod
    def of(cls, runner: TargetRunner) -> Prompted:
        table = PageTable(runner.target.pool)
        table.reserve(16)
        return cls(runner, table)

    def prefill(self) -> StepInput:
        """The prompt, for an eagle3 head."""
        recipe = self.runner.extractor.recipe(EAGLE3)
        chunk = ChunkInput.chunk(PROMPT[:-1], self.table.upto(LENGTH), session=1, first=0, recipe=recipe)
        return StepInput(chunks=[chunk])

    def verify(self) -> StepInput:
        """A tree, for an eagle head."""
        recipe, pages = self.runner.extractor.recipe(EAGLE), self.table.upto(LENGTH + len(PARENTS))
        how = Sampling(temperature=1.0, seed=3)
        tree = TreeInput.tree(DRAFT.tokens, PARENTS, pages, session=1, draft=DRAFT, sampling=how, recipe=recipe)
        return StepInput([tree])

    def extend(self) -> StepInput:
        """Features of committed tokens are computed once more for an eagle3 head, while the session steps alone."""
        recipe, root = self.runner.extractor.recipe(EAGLE3), Draft.root_alone(PROMPT[-1], LENGTH)
        pages = self.table.upto(LENGTH + 1)
        tree = TreeInput.tree(root.tokens, (-1,), pages, session=1, draft=root, sampling=Sampling(), recipe=recipe)
        chunk = ChunkInput.chunk(
            PROMPT[:3], self.table.upto(3), session=1, first=1, recipe=recipe, lead=1, recomputed=True
        )
        return StepInput([tree], [chunk])

    def idle(self) -> StepInput:
        return StepInput()


KINDS = [Prompted.prefill, Prompted.verify, Prompted.extend, Prompted.idle]


def together(most: int) -> list[Collective]:
    """One turn in which the busiest rank has so many rows."""
    gathered = Collective("gather", (most, WIDTH), torch.float32)
    scattered = Collective("reduce_scatter", (SIZE * most, WIDTH), torch.float32)
    exchange = Collective("exchange", (len(NOTHING.numbers),))
    return [exchange, *([gathered, scattered] * LAYERS if most else [])]


async def run_all(ranks: Sequence[Prompted], kinds: Sequence[Step]) -> list[StepOutput]:
    """One turn."""
    return await asyncio.gather(
        *(asyncio.to_thread(rank.runner.run, kind(rank)) for rank, kind in zip(ranks, kinds, strict=True))
    )


def test_the_mesh_of_these_tests_notices_ranks_that_meet_in_different_collectives() -> None:
    rows = [torch.zeros(2, WIDTH), torch.zeros(2, WIDTH + 1)]
    with ThreadPoolExecutor(2) as threads:
        met = [threads.submit(mesh.gather, own) for mesh, own in zip(mesh_of(2), rows, strict=True)]
    for each in met:
        with pytest.raises(AssertionError, match="ranks meet in different collectives"):
            each.result()


async def test_prefill_verify_draft_extend_and_nothing_in_one_turn_are_the_same_collectives_on_all_ranks(
    folder: Path, targets: ShardedTargets
) -> None:
    clock, settings = SystemClock(), settings_of(folder, kv_tokens=512)
    whole = Prompted.of(load_target(settings, clock))
    expected = {kind: whole.runner.run(kind(whole)) for kind in KINDS}
    ranks = [Prompted.of(runner) for runner in await targets.runners(clock)]
    await run_all(ranks, [Prompted.prefill] * SIZE)
    for first in range(SIZE):
        before, turned = len(targets.meshes[0].collectives), [*KINDS[first:], *KINDS[:first]]
        outputs = await run_all(ranks, turned)
        assert [mesh.collectives[before:] for mesh in targets.meshes] == [together(LENGTH)] * SIZE
        for kind, output in zip(turned, outputs, strict=True):
            same(output, expected[kind])


async def test_captured_turns_are_the_same_collectives_on_all_ranks_with_the_rows_of_one_bucket(
    folder: Path, captured: ShardedTargets
) -> None:
    """All four kinds of step in one turn, of which the largest has 8 tokens, and the one with most rows two of them."""
    clock, settings = SystemClock(), settings_of(folder, kv_tokens=512)
    whole = Prompted.of(load_target(settings, clock))
    expected = {kind: whole.runner.run(kind(whole)) for kind in KINDS}
    ranks = [Prompted.of(runner) for runner in await captured.runners(clock)]
    await run_all(ranks, [Prompted.prefill] * SIZE)
    replayed = [statistics.replayed for statistics in captured.graphs]
    for first in range(SIZE):
        before, turned = len(captured.meshes[0].collectives), [*KINDS[first:], *KINDS[:first]]
        outputs = await run_all(ranks, turned)
        done = [mesh.collectives[before:] for mesh in captured.meshes]
        assert done == [done[0]] * SIZE and done[0][-2 * LAYERS :] == together(8)[1:]
        for kind, output in zip(turned, outputs, strict=True):
            same(output, expected[kind])
    assert [statistics.replayed for statistics in captured.graphs] == [count + SIZE for count in replayed]


def same(output: StepOutput, expected: StepOutput) -> None:
    """What one step made is what it makes where nothing is shared; features but for rounding."""
    assert (output.accepted, output.failed, output.no_pick) == (expected.accepted, {}, expected.no_pick)
    for (_, recipe, made), (_, wanted, whole) in zip(output.features, expected.features, strict=True):
        assert (recipe, made.first, made.count) == (wanted, whole.first, whole.count)
        ours, its = (torch.frombuffer(bytearray(bytes(each.data)), dtype=torch.float32) for each in (made, whole))
        assert_same_sums(ours.view(made.count, -1), its.view(made.count, -1))


async def test_a_turn_without_rows_anywhere_is_one_exchange_and_an_idle_step_run_twice_changes_nothing(
    folder: Path, targets: ShardedTargets
) -> None:
    ranks = [Prompted.of(runner) for runner in await targets.runners(SystemClock())]
    await run_all(ranks, [Prompted.prefill] * SIZE)
    kept, before = [rank.runner.target.kv.data.clone() for rank in ranks], len(targets.meshes[0].collectives)
    for kinds in ([Prompted.idle] * SIZE, [Prompted.idle] * SIZE, [Prompted.verify, *[Prompted.idle] * (SIZE - 1)]):
        outputs = await run_all(ranks, kinds)
        assert not any(output.accepted or output.features for output in outputs[1:])
    expected = [*together(0), *together(0), *together(len(PARENTS))]
    assert [mesh.collectives[before:] for mesh in targets.meshes] == [expected] * SIZE
    for rank, kv in list(zip(ranks, kept, strict=True))[1:]:
        torch.testing.assert_close(rank.runner.target.kv.data, kv, atol=0, rtol=0)


@pytest.mark.parametrize("need", [EAGLE, EAGLE3], ids=["eagle", "eagle3"])
async def test_idle_rows_are_as_wide_and_of_the_type_as_those_of_a_busy_rank(
    folder: Path, targets: ShardedTargets, need: FeatureNeed
) -> None:
    """Between layers, and in front of a head: SGLang #25109 had them of the target's width where EAGLE-3 reads several layers."""
    runner = (await targets.runners(SystemClock()))[0]
    recipe = runner.extractor.recipe(need)
    for _ in range(2):
        logits, hidden = runner.target.forward_capturing([], recipe.layers)
        rows = runner.extractor.rows(recipe, hidden, torch.empty(0, dtype=torch.int64))
        assert (rows.shape, rows.dtype) == ((0, recipe.layout.width), torch.float32)
        assert recipe.layout.width == len(need.layers) * WIDTH and logits.shape == (0, 16)


def core(folder: Path) -> EngineCore:
    """An engine of a rank, without its threads."""
    settings, clock = settings_of(folder, kv_tokens=512), ManualClock()
    runner = load_target(settings, clock)
    return core_of(runner.target.info, runner.target.pool, runner.extractor.recipe, settings, clock, grouped=True)


def test_an_idle_turn_that_is_prepared_twice_is_the_same_turn_and_nothing_has_happened(folder: Path) -> None:
    it = core(folder)
    first, second = (it.propose(it.schedule()) for _ in range(2))
    assert first == second == StepInput(proposal=Proposal(plan=it.statistics().plan.default))
    assert it.outgoing() == ([], [])
    assert it.statistics().load.steps == 0


async def test_ranks_whose_sessions_end_in_the_same_turn_go_on_for_the_others_and_then_park(
    targets: ShardedTargets,
) -> None:
    async with sharded_ranks(targets) as ranks:
        with ranks.asleep():
            asked = [asyncio.ensure_future(write(ranks, rank, new)) for rank, new in ((0, 4), (1, 4), (2, 9), (2, 4))]
            await eventually(lambda: [verifier.load().waiting for verifier in ranks.verifiers] == [1, 1, 2, 0])
        written = await asyncio.gather(*asked)
        await ranks.parked()
    longest = written[2]
    assert written == [longest[:4], longest[:4], longest, longest[:4]]
    _, *turns = [[numbers[0] for numbers in told] for told in ranks.meshes[0].told]
    prompts, all_step, one_steps = [LENGTH + 1, LENGTH + 1, 2 * (LENGTH + 1), 0], [1, 1, 2, 0], [0, 0, 1, 0]
    assert turns == [prompts, *[all_step] * 3, *[one_steps] * 5, *[[0] * SIZE] * PARK_AFTER]


async def write(ranks: Ranks, rank: int, new: int) -> list[int]:
    request = DecodeRequest(f"{rank}", PROMPT, stopping=Stopping(new))
    return (await decode(ranks.verifiers[rank], request))[0]
