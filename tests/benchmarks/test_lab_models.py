"""The laboratory with the pocket models: what they say is what the target says by itself, and recorded acceptance is replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.lab.arrivals import Poisson
from benchmarks.lab.figures import figures, measured
from benchmarks.lab.laboratory import Laboratory
from benchmarks.lab.models import ModelSource
from benchmarks.lab.recorder import record
from benchmarks.lab.replay import ReplaySource
from benchmarks.lab.scenario import DrafterSpec, Policy, Scenario
from benchmarks.lab.trace import Trace
from benchmarks.lab.transport import Link
from specsplit.values import DrafterKind, PlanChanges
from specsplit_verifier.records.step import SessionResult
from specsplit_verifier.sessions.forced import UNKNOWN_ID
from tests.drafter.toys import Always
from tests.support.slow import slowly

POCKET = Path(__file__).resolve().parents[2] / "models" / "pocket"
SHORT = Scenario("short", requests=2, new=16, prompt=32)
CHAIN = PlanChanges(num_steps=3, topk=1, num_draft_tokens=4, draft_ahead=False, wait_budget_us=1_000_000)


@pytest.fixture(scope="module")
def source() -> ModelSource:
    torch.set_num_threads(1)
    return ModelSource(POCKET)


def steps_of(laboratory: Laboratory) -> list[SessionResult]:
    return [session for step in laboratory.ledger.stepped for session in step.sessions]


def accepted(laboratory: Laboratory) -> list[int]:
    return [session.accepted for session in steps_of(laboratory)]


@pytest.mark.parametrize("kind", [DrafterKind.EAGLE3, *slowly(DrafterKind.STANDALONE)])
def test_a_run_gives_the_same_digits_twice_and_the_targets_own_text(source: ModelSource, kind: DrafterKind) -> None:
    scenario = replace(SHORT, drafters=(DrafterSpec(kind),), link=Link(2.5), temperature=1.0)
    found: list[object] = []
    for _ in range(2):
        laboratory = Laboratory(scenario, source)
        for entry in laboratory.run().entries:
            assert [*entry.request.tokens, *entry.tokens] == source.truth(entry.request)
        assert sum(accepted(laboratory)) > 0
        found.append(figures(scenario, laboratory))
    assert found[0] == found[1]


def test_beside_a_head_verifiers_look_up_in_what_is_said_again(source: ModelSource) -> None:
    head = (DrafterSpec(DrafterKind.EAGLE3),)
    scenario = replace(SHORT, drafters=head, said=4, lookup=True, policy=Policy.GOODPUT)
    laboratory = Laboratory(scenario, source)
    for entry in laboratory.run().entries:
        assert len(entry.request.tokens) == 32 and entry.request.tokens[:8] == entry.request.tokens[8:16]
        assert [*entry.request.tokens, *entry.tokens] == source.truth(entry.request)
    nodes = [node_id for step in steps_of(laboratory) for node_id in step.draft.ids]
    assert any(node_id >= UNKNOWN_ID for node_id in nodes) and any(0 < node_id < UNKNOWN_ID for node_id in nodes)


@pytest.mark.parametrize("kind", [DrafterKind.EAGLE3, *slowly(DrafterKind.STANDALONE)])
@pytest.mark.parametrize("temperature", [1.0, *slowly(0.0)])
def test_with_levels_drawn_in_one_go_the_text_is_the_targets_own(
    source: ModelSource, kind: DrafterKind, temperature: float
) -> None:
    drafters = (DrafterSpec(kind, expand_levels=4),)
    laboratory = Laboratory(replace(SHORT, drafters=drafters, link=Link(2.5), temperature=temperature), source)
    (drafter,) = laboratory.drafters
    drafter.table.expansion_cost.level_cost = Always()
    for entry in laboratory.run().entries:
        assert [*entry.request.tokens, *entry.tokens] == source.truth(entry.request)
    assert sum(accepted(laboratory)) > 0
    assert drafter.table.counts.expanded_nodes > 3 * drafter.expansions
    assert drafter.table.proposer.pages.used == 0


@pytest.mark.slow
def test_sessions_of_two_verifiers_and_two_kinds_of_drafters_get_the_targets_own_text(source: ModelSource) -> None:
    drafters = (DrafterSpec(), DrafterSpec(DrafterKind.NGRAM))
    scenario = replace(SHORT, drafters=drafters, verifiers=2, arrivals=Poisson(50.0), requests=4)
    laboratory = Laboratory(scenario, source)
    for entry in laboratory.run().entries:
        assert [*entry.request.tokens, *entry.tokens] == source.truth(entry.request)
    assert all(drafter.expansions for drafter in laboratory.drafters)


def recorded(trace: Trace, step: SessionResult) -> int:
    """How many of the first choices below the root of a step were right, as far down as it went."""
    root = step.draft.positions[0]
    ranks = [trace.level(step.session, root, depth).rank for depth in range(step.depth)]
    return next((depth for depth, rank in enumerate(ranks) if rank != 0), len(ranks))


@pytest.mark.parametrize("kind", [DrafterKind.STANDALONE, DrafterKind.EAGLE3])
def test_what_is_drawn_below_a_fresh_root_is_accepted_as_it_was_recorded(
    source: ModelSource, kind: DrafterKind, tmp_path: Path
) -> None:
    scenario = replace(SHORT, drafters=(DrafterSpec(kind),), plan=CHAIN)
    file = tmp_path / "trace.jsonl"
    record(source, scenario, file)
    trace = Trace.read(file)
    runs = [Laboratory(scenario, one) for one in (source, ReplaySource(trace))]
    for laboratory in runs:
        laboratory.run()
        steps = steps_of(laboratory)
        fresh = [step for before, step in zip([None, *steps], steps, strict=False) if before is None or not before.hit]
        assert len(fresh) > 1
        assert [step.accepted for step in fresh] == [recorded(trace, step) for step in fresh]
    if kind is DrafterKind.STANDALONE:  # what survives a hit is as good as what is drawn anew
        assert accepted(runs[0]) == accepted(runs[1])


def test_a_warm_run_begins_with_what_an_earlier_one_has_shown(source: ModelSource) -> None:
    cold, warm = (measured(replace(SHORT, policy=Policy.KNOWS_SURVIVALS, warm=warm), source) for warm in (False, True))
    assert cold["tokens"] != warm["tokens"]
    assert float(str(warm["accept_length"])) > 1
