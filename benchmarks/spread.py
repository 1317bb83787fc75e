"""Repeated measurements as a median with its spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of repeated measurements."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    repeats: int

    def quartiles(self, form: str = ".3g") -> str:
        """The quartiles, as a cell of a table."""
        return f"{self.low:{form}}..{self.high:{form}}"

    def told(self, form: str = ".4g") -> str:
        """The median, and the quartiles in brackets."""
        return f"{self.median:{form}} ({self.quartiles(form)})"

    def __str__(self) -> str:
        return self.told()


def spread(values: Sequence[float]) -> Spread:
    """Summarise `values`, at least one."""
    low, median, high = np.percentile(np.asarray(values, dtype=float), [25, 50, 75])
    return Spread(float(median), float(low), float(high), len(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """The given percentile of `values`; 0 if there are none."""
    return float(np.percentile(np.asarray(values, dtype=float), percent)) if len(values) else 0.0
