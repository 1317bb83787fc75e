from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specsplit.tree import as_sent
from specsplit_drafter.descent.device_edges import edges_of
from specsplit_drafter.drafts.calibration import DISTANCES, Calibrations, DistanceCalibration

LOG_PROBABILITIES = st.lists(st.floats(-40, 0), min_size=1, max_size=20)


def observe(calibration: DistanceCalibration, rate: float, raw: float, count: int, seed: int = 0) -> None:
    """`count` nodes with one candidate of raw probability `raw`, picked at `rate`."""
    random_numbers = random.Random(seed)
    for _ in range(count):
        calibration.observe([math.log(raw)], 0 if random_numbers.random() < rate else None, 0)


def calibrated(calibration: DistanceCalibration, *raw: float) -> float:
    """What is made of the last of a node's candidates with these raw probabilities."""
    return float(np.exp(calibration.log_probabilities(np.log([raw]), np.array([0]))[0, -1]))


@pytest.mark.parametrize("raw", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_before_any_observation_a_draft_is_taken_at_its_word(raw: float) -> None:
    assert calibrated(DistanceCalibration(), raw) == pytest.approx(raw, rel=1e-6)


@pytest.mark.parametrize(("raw", "rate"), [(0.9, 0.6), (0.5, 0.8), (0.05, 0.3), (0.97, 0.9)])
def test_it_converges_to_the_observed_rate(raw: float, rate: float) -> None:
    calibration = DistanceCalibration()
    observe(calibration, rate, raw, 3000)
    assert calibrated(calibration, raw) == pytest.approx(rate, abs=0.05)


def test_a_draft_that_is_quite_sure_and_sometimes_wrong_is_seen_through() -> None:
    calibration = DistanceCalibration()
    observe(calibration, 0.95, 1 - 1e-9, 3000)
    assert calibrated(calibration, 1 - 1e-9) == pytest.approx(0.95, abs=0.02)


def test_a_few_observations_move_it_only_a_little() -> None:
    calibration = DistanceCalibration()
    observe(calibration, 0.0, 0.9, 2)
    assert 0.5 < calibrated(calibration, 0.9) < 0.9


def test_it_follows_a_change_of_text() -> None:
    calibration = DistanceCalibration()
    observe(calibration, 0.9, 0.5, 3000)
    observe(calibration, 0.2, 0.5, 8000)
    assert calibrated(calibration, 0.5) == pytest.approx(0.2, abs=0.08)


def test_every_candidate_of_a_node_is_learnt_from() -> None:
    calibration = DistanceCalibration()
    for _ in range(500):
        calibration.observe(np.log([0.6, 0.3]), 1, 0)
    assert calibrated(calibration, 0.6) < 0.1
    assert calibrated(calibration, 1 - 1e-9, 0.3) > 0.5, "behind a first choice that nothing was learnt of"


@given(LOG_PROBABILITIES, st.lists(st.tuples(LOG_PROBABILITIES, st.booleans()), max_size=30))
def test_estimates_are_log_probabilities_and_keep_the_order(
    raw: list[float], nodes: list[tuple[list[float], bool]]
) -> None:
    calibration = DistanceCalibration()
    for candidates, picked in nodes:
        calibration.observe(candidates, 0 if picked else None, 0)
    estimates = calibration.log_probabilities(np.array(sorted(raw))[:, None], np.zeros(len(raw), dtype=int))[:, 0]
    assert np.isfinite(estimates).all()
    assert (estimates <= 0).all()
    assert (np.diff(estimates) >= -1e-9).all()


def by_distance(calibration: DistanceCalibration, raw: float) -> list[float]:
    distances = np.arange(DISTANCES + 2)
    rows = np.full((len(distances), 1), math.log(raw))
    return np.exp(calibration.log_probabilities(rows, distances))[:, 0].tolist()


def test_every_distance_has_a_reliability_of_its_own() -> None:
    calibration = DistanceCalibration(DISTANCES)
    for seed, rate in enumerate((0.8, 0.6, 0.4, 0.2)):
        random_numbers = random.Random(seed)
        for _ in range(2000):
            calibration.observe([math.log(0.5)], 0 if random_numbers.random() < rate else None, seed)
    assert by_distance(calibration, 0.5) == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.2, 0.2], abs=0.06)


def test_a_distance_that_has_shown_nothing_goes_by_what_the_others_have() -> None:
    calibration = DistanceCalibration(DISTANCES)
    for _ in range(500):
        calibration.observe([math.log(0.9)], None, 0)
    found = by_distance(calibration, 0.9)
    assert found == pytest.approx([found[0]] * len(found), abs=0.05)
    calibration.observe([math.log(0.9)], 0, 1)
    assert by_distance(calibration, 0.9)[1] > found[1], "and is told at once"


def test_without_distances_there_is_one_reliability_for_each_rank_and_it_is_the_plain_one() -> None:
    plain, calibration = (DistanceCalibration(), DistanceCalibration()), Calibrations().of(greedy=True)
    for i in range(50):
        plain[0].observe([math.log(0.7)], None, 0)
        plain[1].observe([math.log(0.2)], 0 if i % 2 else None, 0)
        calibration.observe([math.log(0.7), math.log(0.2)], i % 2 or None, 3)
    found = calibration.log_probabilities(np.log([[0.7, 0.2]]), np.array([2]))[0]
    first, other = (calibrated(each, raw) for each, raw in zip(plain, (0.7, 0.2), strict=True))
    np.testing.assert_allclose(np.exp(found), [first, min(first, other)], rtol=1e-12)


def test_a_first_choice_is_told_from_others_of_the_same_raw_probability() -> None:
    """Worked out by hand: with 0.4 and 0.4 the first is right 8 times in 10, the second once."""
    calibration = DistanceCalibration()
    for i in range(3000):
        calibration.observe(np.log([0.4, 0.4]), {8: 1, 9: None}.get(i % 10, 0), 0)
    found = np.exp(calibration.log_probabilities(np.log([[0.4, 0.4]]), np.array([0])))
    np.testing.assert_allclose(found, [[0.8, 0.1]], atol=0.01)


@given(
    st.lists(LOG_PROBABILITIES.map(lambda raw: sorted(raw, reverse=True)), min_size=1, max_size=4),
    st.lists(st.tuples(LOG_PROBABILITIES, st.integers(0, 19)), max_size=30),
)
def test_no_child_is_held_likelier_than_one_that_stands_before_it(
    rows: list[list[float]], nodes: list[tuple[list[float], int]]
) -> None:
    calibration = DistanceCalibration()
    for raw, picked in nodes:
        calibration.observe(sorted(raw, reverse=True), picked if picked < len(raw) else None, 0)
    for raw in rows:
        estimates = calibration.log_probabilities(np.array([[*raw, -math.inf]]), np.array([0]))
        assert (np.diff(estimates) <= 0).all()
        assert np.isfinite(estimates[:, :-1]).all()


@given(
    st.lists(st.lists(st.floats(-60, 0) | st.just(-math.inf), min_size=3, max_size=3), min_size=1, max_size=8),
    st.lists(st.tuples(st.floats(-20, -0.01), st.booleans(), st.integers(0, DISTANCES)), max_size=60),
)
def test_edges_on_the_device_are_those_of_the_host(raw: list[list[float]], seen: list[tuple[float, bool, int]]) -> None:
    calibration = DistanceCalibration(DISTANCES)
    for log_probability, picked, distance in seen:
        calibration.observe([log_probability], 0 if picked else None, distance)
    distances = np.arange(len(raw)) % DISTANCES
    shifts = torch.from_numpy(calibration.shifts[distances])
    ours = edges_of(torch.tensor(raw, dtype=torch.float64), shifts).numpy()
    theirs = as_sent(calibration.log_probabilities(np.array(raw), distances))
    np.testing.assert_allclose(ours, np.where(np.isfinite(raw), theirs, -np.inf), rtol=1e-6, atol=2.0**-19)


def test_what_is_no_number_is_no_edge_on_the_device() -> None:
    shifts = torch.from_numpy(DistanceCalibration().shifts)
    edges = edges_of(torch.tensor([[math.nan, math.inf, -math.inf]], dtype=torch.float64), shifts)
    assert edges.tolist() == [[-math.inf] * 3]
