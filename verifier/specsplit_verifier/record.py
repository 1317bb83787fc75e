"""What one step cost and brought; the edge turns these into metrics, the benchmarks into tables."""

from __future__ import annotations

from array import array
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step. Times are microseconds; `started` is the clock's seconds."""

    started: float
    gap_us: float
    """From the end of the step before to the start of this forward, waits included; 0 if there was nothing to do."""
    waited_us: float
    """How much of the gap was spent waiting for drafters."""
    forward_us: float
    """The model's forward."""
    host_us: float
    """Everything else on the engine thread since the step before: events, scheduling, batching, picking, committing, handing out."""
    sessions: int
    """Sessions that brought a tree."""
    tokens: int
    """Tokens in the forward."""
    prefill_tokens: int
    reprefill_tokens: int
    """Committed tokens run once more, for features that a drafter lacks."""
    drafted: int
    accepted: int
    committed: int
    hits: int
    misses: int
    followed_hit: bool
    """True if every session's commit before this step was a hit, so that nothing had to come over the wire first."""
    survivals: array[float]
    """Estimated log-survival of every node verified, float32."""
    outcomes: bytes
    """For each of them 1 if it was accepted, else 0."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """How the engine stands."""

    running: int
    waiting: int
    free_pages: int
    total_pages: int
    steps: int
    step_ms: float
