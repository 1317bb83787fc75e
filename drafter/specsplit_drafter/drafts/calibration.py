"""From a draft's raw probabilities to the probability that the target accepts.

A draft's own probability of a token is not the probability that the target picks that token: a small model is wrong in its
own way, an ngram count more so. Verifiers report what the target picked at every accepted node, so the drafter can look: of all
the candidates it had given a raw probability near 0.8, how many did the target pick? That is histogram binning (Zadrozny and
Elkan 2001): in logit space, so that bins are narrow near 0 and 1 where scores are decided; with a Beta prior that pulls an empty
bin to its own probability; pooled, so that a likelier candidate never gets a lower estimate; interpolated between bin centres;
and with old observations forgotten exponentially, so that it follows a change of text.

A first choice is right far more often than its raw probability says, and a second choice of the same raw probability far less: where two
tokens are likely, the target mostly picks the likelier one. So the first choices of nodes have a calibration, and all others have another.

A head is the less right the more of its own guesses its state was made of. So there is a calibration for every *distance*: guessed states
since the last true feature. What all distances have shown together stands for one that has shown little.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

NUM_BINS = 24
LOGIT_LIMIT = 9.0
"""Bin centres span -LOGIT_LIMIT .. LOGIT_LIMIT: probabilities of 0.0001 to 0.9999."""
PRIOR_WEIGHT = 4.0
"""Pseudo-observations of each bin at its own probability."""
KEEP = 0.9995
"""Weight that an observed node keeps when another is observed: a memory of about 1 / (1 - KEEP) nodes."""


_PARTS = slice(0, 1), slice(1, None)
"""Candidates of a node, likeliest first, that are calibrated apart: the first choice, and all others."""
DISTANCES = 4
"""Distances with a calibration of their own, for a kind whose nodes are the better, the nearer they are to a true feature."""


class Calibration:
    """Reliability of the nodes of one kind."""

    def __init__(self, *, wider: Calibration | None = None) -> None:
        """wider: the prior of a bin with few observations; None: that raw probabilities are right."""
        self._centres: FloatArray = np.linspace(-LOGIT_LIMIT, LOGIT_LIMIT, NUM_BINS)
        self._step = float(self._centres[1] - self._centres[0])
        self._seen: FloatArray = np.zeros(NUM_BINS)
        self._picked: FloatArray = np.zeros(NUM_BINS)
        self._shift: FloatArray = np.zeros(NUM_BINS)
        self._wider = wider
        self._observed = self._fitted = 0
        """Nodes observed, by the wider one too, and how many of them the fit knows."""

    @property
    def shifts(self) -> FloatArray:
        """The numbers that are added to a logit at the centre of every bin [num_bins]."""
        self._fit()
        return self._shift

    def observe(self, raw: npt.ArrayLike, picked: int | None) -> None:
        """Learn from one expanded node on an accepted path.

        raw: raw log-probabilities [n] of its candidates; picked: which of them the target picked there, None if none of them.
        """
        # A candidate counts in the two bins around it, by nearness, as it is interpolated between them later.
        places = (_logit(np.asarray(raw, dtype=np.float64)) + LOGIT_LIMIT) / self._step
        places = places.clip(0, len(self._centres) - 1)
        lower = places.astype(np.int64).clip(max=len(self._centres) - 2)
        upper_share = places - lower
        self._seen *= KEEP
        self._picked *= KEEP
        np.add.at(self._seen, lower, 1.0 - upper_share)
        np.add.at(self._seen, lower + 1, upper_share)
        if picked is not None:
            self._picked[lower[picked]] += 1.0 - upper_share[picked]
            self._picked[lower[picked] + 1] += upper_share[picked]
        self._observed += 1

    @property
    def _known(self) -> int:
        return self._observed + (self._wider._known if self._wider is not None else 0)

    def _fit(self) -> None:
        if self._fitted == self._known:
            return
        self._fitted = self._known
        prior = self._centres
        if self._wider is not None:
            self._wider._fit()
            prior = prior + self._wider._shift
        weights = self._seen + PRIOR_WEIGHT
        rates = _isotonic((self._picked + PRIOR_WEIGHT / (1.0 + np.exp(-prior))) / weights, weights)
        self._shift = np.log(rates) - np.log1p(-rates) - self._centres


class RankedCalibration:
    """Reliability of the children of a node, by their rank."""

    def __init__(self, *, wider: RankedCalibration | None = None) -> None:
        """wider: the prior where there are few observations, as a Calibration has it."""
        believed = [None] * len(_PARTS) if wider is None else wider.by_rank
        self.by_rank = [Calibration(wider=each) for each in believed]

    @property
    def shifts(self) -> FloatArray:
        """The numbers that are added to a logit at the centre of every bin, by rank [R, num_bins]."""
        return np.stack([calibration.shifts for calibration in self.by_rank])

    def observe(self, raw: FloatArray, picked: int | None) -> None:
        """Learn as `Calibration.observe` does from one node, whose candidates stand likeliest first."""
        for calibration, part in zip(self.by_rank, _PARTS, strict=True):
            own = range(len(raw))[part]
            if own:
                calibration.observe(raw[part], None if picked is None or picked not in own else own.index(picked))


class DistanceCalibration:
    """Reliability of one kind of session (greedy, or sampled), by distance."""

    def __init__(self, distances: int = 1) -> None:
        """distances: how many have a calibration of their own; the last is of all that are as far or farther."""
        self._overall = RankedCalibration()
        self.by_distance = (
            [self._overall] if distances == 1 else [RankedCalibration(wider=self._overall) for _ in range(distances)]
        )
        self._shifts: FloatArray | None = None
        """None: something was observed since the shifts were last computed."""

    def log_probabilities(self, raw: FloatArray, distances: Ints) -> FloatArray:
        """Calibrate raw log-probabilities [n, c] of the children of nodes at these distances [n].

        Each is <= 0, and no child is likelier than one that stands before it.
        """
        shifts = self.shifts
        logits = np.minimum(_logit(raw), LOGIT_LIMIT)
        places = (logits + LOGIT_LIMIT) * ((NUM_BINS - 1) / (2 * LOGIT_LIMIT))
        places = np.minimum(np.maximum(places, 0.0), NUM_BINS - 1)  # ndarray.clip takes several times as long
        lower = np.minimum(places.astype(np.int64), NUM_BINS - 2)
        ranks = np.minimum(np.arange(raw.shape[1]), len(_PARTS) - 1)
        of_child = np.minimum(distances, len(shifts) - 1)[:, None] * len(_PARTS) + ranks
        low, high = (shifts.take(of_child * NUM_BINS + lower + i) for i in (0, 1))
        found = -np.logaddexp(0.0, -(logits + low + (high - low) * (places - lower)))
        return np.minimum(found, np.minimum.accumulate(np.where(np.isfinite(raw), found, 0.0), axis=1))

    @property
    def shifts(self) -> FloatArray:
        """The numbers that are added to a logit at the centre of every bin, by distance and rank [D, R, num_bins]."""
        if self._shifts is None:
            self._shifts = np.stack([calibration.shifts for calibration in self.by_distance])
        return self._shifts

    def observe(self, raw: npt.ArrayLike, picked: int | None, distance: int) -> None:
        """Learn as `RankedCalibration.observe` does from a node at this distance."""
        self._shifts = None
        own, raw = self.by_distance[min(distance, len(self.by_distance) - 1)], np.asarray(raw, dtype=np.float64)
        for calibration in {self._overall, own}:
            calibration.observe(raw, picked)


class Calibrations:
    """One calibration for greedy sessions and one for sampled ones: noise makes a draft's first choice mean something else."""

    def __init__(self, distances: int = 1) -> None:
        self.greedy = DistanceCalibration(distances)
        self.sampled = DistanceCalibration(distances)

    def of(self, greedy: bool) -> DistanceCalibration:
        """Choose the calibration of a session."""
        return self.greedy if greedy else self.sampled


def _logit(log_probabilities: FloatArray) -> FloatArray:
    bounded = np.minimum(log_probabilities, -1e-12)
    return bounded - np.log(-np.expm1(bounded))


def _isotonic(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Find the non-decreasing sequence nearest to `values` in weighted squares: pool adjacent violators."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] >= pool[0]:
            pool = _merged(pools.pop(), pool)
        pools.append(pool)
    return np.repeat([pool[0] for pool in pools], [pool[2] for pool in pools])


def _merged(a: tuple[float, float, int], b: tuple[float, float, int]) -> tuple[float, float, int]:
    """Pool two (mean, weight, bins)."""
    weight = a[1] + b[1]
    return (a[0] * a[1] + b[0] * b[1]) / weight, weight, a[2] + b[2]
