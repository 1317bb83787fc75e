"""Drafters whose models are shared out over ranks: each rank drafts what one that is alone does, whatever the others have to do."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
from torch import Tensor

from specsplit.clock import SystemClock
from specsplit.errors import LoadError, RankLost
from specsplit.model import Row, RowPages
from specsplit.ranks.lockstep import Lockstep
from specsplit.ranks.mesh import LocalMesh
from specsplit.settings import DrafterSettings
from specsplit.values import DrafterKind, Plan, Sampling
from specsplit_drafter.drafts.draft_model import DraftModel, ExpansionInput
from specsplit_drafter.drafts.group_forwards import GroupForwards
from specsplit_drafter.drafts.proposer import Children, ExpansionOutcome, FrontierPart
from specsplit_drafter.edge.service import load_proposer
from specsplit_drafter.engine.session_table import SessionTable
from specsplit_drafter.kinds.heads import HeadModel
from specsplit_drafter.kinds.model_proposer import ModelProposer
from tests.drafter.group_toys import model_of
from tests.drafter.head_toys import EXPERTS, HEADS, VOCABULARY, HeadVerifier, head_of
from tests.drafter.toys import Verifier, deliver, run_until_all_rest, table_of
from tests.support.meshes import mesh_of
from tests.support.rounding import assert_same_log_probabilities

CHILDREN = 6
KINDS = [*HEADS, *EXPERTS, "standalone"]
PLAN = Plan(num_steps=2, num_draft_tokens=4)
SAMPLED = Sampling(temperature=1.0, top_k=20, seed=11)
SHARES = ((14, 5, 3), (4,), ())
"""How long the prompts of each rank are: many sessions, one, none."""


class Recording(ModelProposer):
    """Keeps what became of every frontier."""

    def __init__(self, model: DraftModel, group: GroupForwards | None = None) -> None:
        super().__init__(model, CHILDREN, 12, group)
        self.found: list[ExpansionOutcome] = []

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[ExpansionOutcome]:
        found = super().expand(frontier, levels)
        self.found += found
        return found


known = cache(head_of)


def script(name: str, proposer: ModelProposer, lengths: Sequence[int], between: Callable[[], None]) -> None:
    """Sessions that grow, get features and commit when they like, and are closed in the end."""
    table = table_of(proposer, width=12, survival=0.006)
    verifiers = [verifier_of(name, table, number, length) for number, length in enumerate(lengths)]
    timing = random.Random(1)
    for _ in range(8 if lengths else 0):
        for _ in range(timing.randrange(5)):
            table.expand()
        deliver(table, *verifiers)
        for verifier in verifiers:
            if timing.random() < 0.7:
                verifier.step()
            if isinstance(verifier, HeadVerifier) and timing.random() < 0.8:
                verifier.feed(None if timing.random() < 0.6 else timing.randrange(1, 6))
        between()
    run_until_all_rest(table, *verifiers)
    for verifier in verifiers:
        verifier.close()


def verifier_of(name: str, table: SessionTable, number: int, length: int) -> Verifier:
    session, prompt = (1, number), list(range(1, length + 1))
    sampling = SAMPLED if number % 2 else Sampling()
    if name != "standalone":
        return HeadVerifier(table, session, prompt, known(name), plan=PLAN, sampling=sampling)
    return Verifier(
        table, session, prompt, lambda seen: seen[-1] % 7, plan=PLAN, sampling=sampling, vocabulary=VOCABULARY
    )


def in_a_group(name: str) -> list[Recording]:
    """Every rank runs the script with prompts of its own; ranks sit out turns in between, and until all are done."""
    meshes = mesh_of(len(SHARES))
    makes = [model_of(name, mesh) for mesh in meshes]

    def rank(number: int) -> Recording:
        with meshes[number].dying():
            return scripted(number)

    def scripted(number: int) -> Recording:
        model, clock, chance = makes[number](), SystemClock(), random.Random(number)
        lockstep = Lockstep(meshes[number], clock, drawn=1)
        group = GroupForwards(model, lockstep, clock)
        proposer = Recording(model, group)
        assert len(model.blocks) == len(model.pools)

        def run_idle() -> None:
            for _ in range(chance.randrange(3)):
                group.run_idle(len(SHARES[number]))

        script(name, proposer, SHARES[number], run_idle)
        while lockstep.agreed is None or lockstep.agreed.unfinished:
            group.run_idle(0)
        return proposer

    with ThreadPoolExecutor(len(SHARES)) as threads:
        return list(threads.map(rank, range(len(SHARES))))


@pytest.mark.parametrize("name", KINDS)
def test_each_rank_drafts_what_one_that_is_alone_does_beside_ranks_with_other_work_and_with_none(name: str) -> None:
    drafted = 0
    if name != "standalone":
        known(name)
    for lengths, ours in zip(SHARES, in_a_group(name), strict=True):
        alone = Recording(model_of(name)())
        script(name, alone, lengths, lambda: None)
        for found, expected in zip(ours.found, alone.found, strict=True):
            if not isinstance(found, Children) or not isinstance(expected, Children):
                assert found is expected is None
                continue
            assert found.tokens.tolist() == expected.tokens.tolist()
            assert_same_log_probabilities(found.log_probabilities, expected.log_probabilities, VOCABULARY.size)
            drafted += len(found.tokens)
    assert drafted > 50


@pytest.mark.parametrize("name", [*HEADS, *EXPERTS])
def test_a_step_without_rows_has_the_widths_and_types_of_one_with_some(name: str) -> None:
    model = model_of(name)()
    for step in range(len(model.pools)):
        logits = model.run(step, ExpansionInput())
        assert (tuple(logits.shape), logits.dtype) == ((0, VOCABULARY.size), torch.float32)


def test_a_rank_that_fails_in_the_middle_of_an_expansion_holds_nobody_up_and_drafts_on() -> None:
    meshes = mesh_of(2)
    makes, clock = [model_of("mimo", mesh) for mesh in meshes], SystemClock()
    work = [ExpansionInput([Row.chunk([token], RowPages(0, 1))]) for token in (1, 2, 3)]

    def rank(number: int) -> tuple[list[int], list[str]]:
        with meshes[number].dying():
            model = makes[number]()
            group, ran, failures = (
                GroupForwards(model, Lockstep(meshes[number], clock), clock),
                list[int](),
                list[str](),
            )

            def run(step: int, part: ExpansionInput) -> Tensor:
                model.blocks[step].run(0, torch.zeros(part.num_tokens, 32))
                if number == 1 and step == 1 and not failures:
                    raise torch.OutOfMemoryError("none left at step 1")
                ran.append(step)
                return torch.zeros(0)

            model.run = run  # pyright: ignore[reportAttributeAccessIssue]
            for _ in range(2):
                try:
                    group.run(work, 1)
                except torch.OutOfMemoryError as error:
                    failures.append(str(error))
            return ran, failures

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(rank, range(2))
    assert first == ([0, 1, 2, 0, 1, 2], [])
    assert second == ([0, 0, 1, 2], ["none left at step 1"])


def test_a_rank_of_a_group_sets_nothing_up_for_levels_that_it_does_not_draw() -> None:
    clock, planned = SystemClock(), list[bool]()
    for grouped in (True, False):
        model = HeadModel(head_of("eagle"), 64)
        group = GroupForwards(model, Lockstep(LocalMesh(), clock), clock) if grouped else None
        proposer = ModelProposer(model, CHILDREN, group=group)
        planned.append("device_planner" in vars(model.runners[0]))  # it is kept from the first time it is asked for
        assert (proposer.max_levels == 1) is grouped
    assert planned == [False, True]


def test_a_lost_rank_is_no_sessions_fault_and_ends_the_drafter() -> None:
    first, second = mesh_of(2)
    model, clock = model_of("eagle")(), SystemClock()
    with ThreadPoolExecutor(2) as threads:
        lockstep, _ = threads.map(lambda mesh: Lockstep(mesh, clock), (first, second))
    proposer = Recording(model, GroupForwards(model, lockstep, clock))
    table = table_of(proposer)
    known_head = known("eagle")
    verifier = HeadVerifier(table, (1, 1), [1, 2, 3], known_head, plan=PLAN)
    verifier.feed()
    second.die()
    with pytest.raises(RankLost):
        table.expand()


def test_a_drafter_without_a_model_is_no_rank() -> None:
    settings = DrafterSettings(kind=DrafterKind.NGRAM, dp_size=2)
    with pytest.raises(LoadError, match=r"kind ngram has no model that ranks could share \(dp_size\)"):
        load_proposer(settings, SystemClock())
