"""The ema controller: SGLang's tiers, worked by hand, and their file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import InvalidRequest
from specsplit.settings import VerifierSettings
from specsplit.speculation import Draft
from specsplit.values import AS_SET, Adaptive, Plan, PlanChanges
from specsplit_verifier.policy.adaptive.choice import controller_for
from specsplit_verifier.policy.adaptive.ema import EmaController
from specsplit_verifier.policy.adaptive.tiers import DEFAULT_SLOTS, EmaSettings, Slot, Tier, first_tier, next_tier
from specsplit_verifier.policy.adaptive.tiers_file import DEFAULT, TiersConfig, read_tiers
from specsplit_verifier.policy.planner import Planner
from specsplit_verifier.records.step import SessionResult, StepResult
from tests.verifier.results import STEP

AT_ONCE = EmaSettings(ema_alpha=1.0, update_interval=1, warmup_batches=0)
"""Every batch decides, by itself alone."""
LAUNCHED = Plan(num_steps=5, topk=4, num_draft_tokens=16)


def result(*accepted: int, plan: Plan, attached: bool = True) -> StepResult:
    """A step in which each session had so many drafts accepted."""
    draft = Draft((1,), (1,), (-1,), (0,), ())
    sessions = [
        SessionResult(i, plan, draft, range(count + 1), 7, attached, None, None) for i, count in enumerate(accepted)
    ]
    return replace(STEP, sessions=sessions)


def test_the_first_tier_is_the_launched_one_or_the_middle() -> None:
    assert first_tier(DEFAULT_SLOTS[1], 5) == Tier(2, 4.0)
    assert first_tier(DEFAULT_SLOTS[8], 5) == Tier(1, 0.0), "[0, 1, 3] has no 5"
    assert first_tier(DEFAULT_SLOTS[64], 5) == Tier(0, -1.0)


def test_the_average_moves_by_alpha_and_only_every_fifth_batch_behind_the_tenth_decides() -> None:
    slot, settings = DEFAULT_SLOTS[1], EmaSettings()
    tier = first_tier(slot, 3)
    tier = next_tier(slot, settings, tier, [2, 4])
    assert (tier.index, tier.ema, tier.batches) == (1, pytest.approx(2.0 + 0.2 * (3.0 - 2.0)), 1)
    moves: list[int] = []
    for batch in range(2, 21):
        tier = next_tier(slot, settings, tier, [3, 3])
        if tier.index != 1 and not moves:
            moves.append(batch)
    assert moves == [15], "ten to warm up, then every fifth"


@pytest.mark.parametrize(
    ("index", "ema", "becomes"),
    [
        (3, 4.25, 2),  # 7 falls at 5 - 0.5 - 0.25
        (3, 4.26, 3),
        (3, 0.25, 0),  # several tiers at once: 1 is the lowest
        (2, 2.25, 1),
        (1, 2.5, 1),  # 3 climbs above 3 - 0.5, not at it
        (1, 2.51, 2),
        (0, 0.51, 1),
        (0, 9.0, 3),  # several at once, were so many ever accepted
    ],
)
def test_tiers_of_a_single_session(index: int, ema: float, becomes: int) -> None:
    tier = next_tier(DEFAULT_SLOTS[1], replace(AT_ONCE, ema_alpha=1e-12), Tier(index, ema), [0])
    assert tier.index == becomes


def test_a_tier_above_none_falls_to_none_and_is_probed_at_the_next_decision() -> None:
    slot = DEFAULT_SLOTS[8]
    off = next_tier(slot, AT_ONCE, Tier(1, 0.3), [0, 0, 0])
    assert off == Tier(0, 0.0, 1), "0.25 is where 1 falls to 0"
    assert next_tier(slot, AT_ONCE, off, [0, 0]) == Tier(1, 0.0, 2), "nothing can be learnt without drafts"
    assert next_tier(slot, AT_ONCE, Tier(0, -1.0), [0]) == Tier(1, 0.0, 1), "an average below 0 becomes the tier's own"
    assert next_tier(DEFAULT_SLOTS[64], AT_ONCE, Tier(0, -1.0), [0]) == Tier(0, -1.0, 1), "there is no other"


def test_a_ceiling_pulls_down_and_does_not_keep_from_climbing() -> None:
    slot = Slot((1, 3, 5, 7), ceiling_coeff=1.0)
    assert next_tier(slot, AT_ONCE, Tier(2, 0.0), [3]).index == 1, "5 > ceil(3 * 1)"
    assert next_tier(slot, AT_ONCE, Tier(0, 0.0), [1]).index == 1, "1 climbs to 3, though ceil(1 * 1) is 1"


def test_hysteresis_moves_the_thresholds() -> None:
    slot = Slot((1, 3), up_hysteresis=0.5, down_hysteresis=-0.5)
    assert next_tier(slot, AT_ONCE, Tier(0, 0.0), [1]).index == 0, "1 is not above 1 - 0.5 + 0.5"
    assert next_tier(slot, AT_ONCE, Tier(1, 0.0), [0, 1, 0, 1]).index == 1, "0.5 is above 1 - 0.5 - 0.5"


@given(
    steps=st.lists(st.integers(0, 16), min_size=1, max_size=6, unique=True).map(lambda steps: tuple(sorted(steps))),
    batches=st.lists(st.lists(st.integers(0, 16), max_size=4), max_size=40),
)
def test_a_tier_is_always_a_candidate_and_an_empty_batch_is_none(
    steps: tuple[int, ...], batches: list[list[int]]
) -> None:
    slot, tier = Slot(steps), first_tier(Slot(steps), 5)
    for accepted in batches:
        before, tier = tier, next_tier(slot, EmaSettings(warmup_batches=2, update_interval=2), tier, accepted)
        assert 0 <= tier.index < len(steps)
        assert accepted or tier == before


def test_the_plan_follows_the_batch_size_and_keeps_the_nodes_of_a_step() -> None:
    controller = EmaController(DEFAULT, 5)
    assert controller.plan(LAUNCHED, 1) == controller.plan(LAUNCHED, 7) == LAUNCHED
    eight = controller.plan(LAUNCHED, 8)
    assert (eight.num_steps, eight.num_draft_tokens, eight.topk) == (1, 4, 4), "three nodes a step, as launched"
    assert not controller.plan(LAUNCHED, 100).speculates
    chain = Plan(num_steps=3, topk=1, num_draft_tokens=4)
    assert EmaController(DEFAULT, 3).plan(chain, 1).num_draft_tokens == 4, "SGLang's num_steps + 1"


def test_what_an_older_plan_or_no_drafter_brought_does_not_move_it() -> None:
    controller = EmaController(DEFAULT, 5)
    plan = controller.plan(LAUNCHED, 1)
    before = controller.ema
    controller.observe(result(0, plan=replace(plan, num_steps=3)))
    controller.observe(result(0, plan=plan, attached=False))
    controller.observe(result(plan=plan))
    assert controller.ema == before
    controller.observe(result(0, plan=plan))
    assert controller.ema == pytest.approx(0.8 * before)


def test_a_tier_of_0_steps_is_left_though_nobody_has_a_drafter_any_more() -> None:
    config = TiersConfig(AT_ONCE, {1: Slot((0, 1))})
    controller = EmaController(config, 1)
    controller.observe(result(0, plan=controller.plan(LAUNCHED, 1)))
    off = controller.plan(LAUNCHED, 1)
    assert not off.speculates
    controller.observe(result(0, plan=off, attached=False))
    assert controller.plan(LAUNCHED, 1).num_steps == 1


def test_a_tier_has_a_node_for_every_step() -> None:
    few = Plan(num_steps=5, topk=4, num_draft_tokens=3)
    assert EmaController(DEFAULT, 1).plan(few, 1).num_draft_tokens == 2
    assert EmaController(DEFAULT, 7).plan(few, 1).num_draft_tokens == 8


def test_request_before_operator_before_controller_before_launch() -> None:
    planner = Planner(LAUNCHED, 100, lambda *_: EmaController(DEFAULT, 5))
    assert not planner.adapt(1) and planner.default == LAUNCHED
    assert planner.adapt(8) and planner.default.num_steps == 1
    planner.replan(PlanChanges(num_steps=4))
    assert planner.default == replace(LAUNCHED, num_steps=4), "steps that the tier does not have get the launched nodes"
    assert planner.plan_of(PlanChanges(num_steps=2)) == replace(LAUNCHED, num_steps=2)
    assert not planner.adapt(64) and planner.default.speculates, "a tier of 0 does not overrule him"
    planner.replan(PlanChanges())
    assert planner.default.num_steps == 0
    assert planner.plan_of(PlanChanges(num_steps=2)).speculates
    planner.replan(PlanChanges(num_draft_tokens=1))
    assert not planner.plan_of(PlanChanges(num_steps=2)).speculates, "he turned speculation off"


def test_sglangs_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "tiers.json"
    file.write_text(
        json.dumps(
            {
                "strategy": "ema",
                "ema_alpha": 0.5,
                "warmup_batches": 0,
                "up_hysteresis": 0.1,
                "8": {"candidate_steps": [3, 0, 1], "up_hysteresis": 0.2, "ceiling_coeff": 2},
                "1": {"candidate_steps": [1, 3, 7]},
            }
        )
    )
    config = read_tiers(file)
    assert config.ema == EmaSettings(0.5, 5, 0)
    assert config.slots == {1: Slot((1, 3, 7), 0.1), 8: Slot((0, 1, 3), 0.2, -0.25, 2.0)}
    assert config.steps == [0, 1, 3, 7]
    settings = VerifierSettings(model=tmp_path, adaptive=Adaptive.EMA, adaptive_config=file)
    controller = controller_for(settings, AS_SET)
    assert controller.plan(LAUNCHED, 1).num_steps == 3, "nobody asked for steps: the middle of the union"
    with pytest.raises(InvalidRequest, match=r"num_steps: is 5, and no tier has that; expected one of \[0, 1, 3, 7\]"):
        controller_for(
            VerifierSettings(model=tmp_path, num_steps=5, adaptive=Adaptive.EMA, adaptive_config=file), AS_SET
        )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{}", "has no batch size"),
        ('{"ema_alpha": 0.2}', "has no batch size"),
        ('{"1": {"candidate_steps": [1]}, "alpha": 0.2}', "wrong at alpha: Extra inputs"),
        ('{"1": {"candidate_steps": [1], "steps": 3}}', "wrong at 1.steps: Extra inputs"),
        ('{"1": {"candidate_steps": []}}', "wrong at 1.candidate_steps: List should have at least 1 item"),
        ('{"1": {}}', "wrong at 1.candidate_steps: Field required"),
        ('{"1": {"candidate_steps": [1.5]}}', "wrong at 1.candidate_steps.0: Input should be a valid integer"),
        ('{"0": {"candidate_steps": [1]}}', "wrong at 0"),
        ('{"1": {"candidate_steps": [1]}, "ema_alpha": 0}', "wrong at ema_alpha: Input should be greater than 0"),
        ('{"1": {"candidate_steps": [1]}, "strategy": "throughput_aware"}', "wrong at strategy: Input should be 'ema'"),
        ('{"1": {"candidate_steps": [1]}, "up_hysteresis": NaN}', "wrong at up_hysteresis"),
        ('{"1": {"candidate_steps": [1]}, "01": {"candidate_steps": [2]}}', "wrong at 01: Extra inputs"),
        ('{"1": {"candidate_steps": [1]}, "1": {"candidate_steps": [2]}}', "has the key '1' twice"),
        ("[1]", "is no object"),
        ("{", "cannot be read"),
        ('{"a": ' * 100_000, "cannot be read"),
        ('{"1": {"candidate_steps": [' + "9" * 5_000 + "]}}", "cannot be read"),
        ('{"' + "9" * 5_000 + '": {"candidate_steps": [1]}}', "has no batch size"),
    ],
)
def test_a_wrong_file_is_refused_with_the_key(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "tiers.json"
    file.write_text(content)
    with pytest.raises(InvalidRequest, match="adaptive_config") as refused:
        read_tiers(file)
    assert says in str(refused.value)


@pytest.mark.parametrize("off", [{"num_steps": 0}, {"num_draft_tokens": 1}])
def test_a_plan_that_does_not_speculate_leaves_nothing_to_adapt(tmp_path: Path, off: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"{next(iter(off))}: leaves nothing to adapt"):
        controller_for(VerifierSettings(model=tmp_path, adaptive=Adaptive.EMA, **off), AS_SET)


def test_a_file_without_ema_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is for adaptive = ema, and adaptive is goodput"):
        VerifierSettings(model=tmp_path, adaptive_config=tmp_path / "tiers.json")
    with pytest.raises(InvalidRequest, match="cannot read"):
        read_tiers(tmp_path / "none.json")
