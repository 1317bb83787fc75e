"""What drafters would say at best without the text: how often tokens are right, fitted to the very trace that is replayed.

No policy knows its probabilities better, unless it knows the text. The fit is a logistic regression for every rank, over a drafter's own
probabilities, the depth below the root and the request, so that it knows even how well drafts do in a request before that begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.lab.trace import Level, Trace
from specsplit.tree import Ints, Scores
from specsplit_drafter.drafts.calibration import Calibrations, DistanceCalibration, FloatArray

LEAST: float = 1e-4
"""Least probability."""
DEPTHS = 12
"""Depths that are told apart."""
ROUNDS = 30
"""Rounds of Newton's method."""


class Exact(DistanceCalibration):
    """A calibration that believes what it is told, and learns nothing."""

    def observe(self, raw: object, picked: int | None, distance: int) -> None:
        """Do nothing."""


def exact() -> Calibrations:
    """Make the calibrations of a drafter that says the probabilities of `hindsight`."""
    found = Calibrations()
    found.greedy = found.sampled = Exact()
    return found


def hindsight(trace: Trace) -> Trace:
    """Replace what the drafter said by how often it is right: the same trees can be grown, by other survivals."""
    levels = [(request, depth, level) for request, depth, level in _levels(trace) if level.probabilities]
    width = max(len(level.probabilities) for *_, level in levels)
    said = np.full((len(levels), width), LEAST)
    for row, (*_, level) in zip(said, levels, strict=True):
        row[: len(level.probabilities)] = np.maximum(level.probabilities, LEAST)
    places = np.array([(request, min(depth, DEPTHS - 1)) for request, depth, _ in levels])
    ranks = np.array([level.rank for *_, level in levels])
    found = np.stack([_fitted(said, rank, places, ranks == rank) for rank in range(width)], axis=1)
    found = np.maximum(np.minimum.accumulate(found / np.maximum(1.0, found.sum(axis=1, keepdims=True)), axis=1), LEAST)
    told = {id(level): row for (*_, level), row in zip(levels, found.tolist(), strict=True)}
    return Trace(trace.header, [_retold(request, told) for request in trace.requests])


def _levels(trace: Trace) -> list[tuple[int, int, Level]]:
    """List all levels as (number of the request, depth below the root, level)."""
    return [
        (number, depth, level)
        for number, request in enumerate(trace.requests)
        for levels in request.values()
        for depth, level in enumerate(levels)
    ]


def _retold(request: Mapping[int, Sequence[Level]], told: Mapping[int, Sequence[float]]) -> dict[int, list[Level]]:
    return {
        position: [
            replace(level, probabilities=tuple(told[id(level)][: len(level.probabilities)]))
            if level.probabilities
            else level
            for level in levels
        ]
        for position, levels in request.items()
    }


def _fitted(said: Scores, rank: int, places: Ints, right: FloatArray) -> FloatArray:
    """Fit the probability that the child of a rank is the right one [n]. places [n, 2]: request and depth. said [n, c]."""
    logits = np.log(said) - np.log1p(-np.minimum(said, 1 - LEAST))
    own, first, second = (logits[:, min(each, logits.shape[1] - 1)] for each in (rank, 0, 1))
    each_place = [column == value for column in places.T for value in np.unique(column)]
    features = np.stack([own, own**2 / 10, first, second, *each_place], axis=1).astype(np.float64)
    weights = np.zeros(features.shape[1])
    for _ in range(ROUNDS):
        found = 1 / (1 + np.exp(-features @ weights))
        slope = features.T @ (found - right) + weights  # a prior of variance 1 about 0
        curvature = (features.T * (found * (1 - found))) @ features + np.eye(len(weights))
        weights -= np.linalg.solve(curvature, slope)
    return 1 / (1 + np.exp(-features @ weights))
