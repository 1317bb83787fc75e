"""What one step cost and brought; the edge turns these into metrics and spans, the benchmarks into tables."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from specsplit.sessions import WatchedStep
from specsplit.values import Miss, Plan, SpeculationStatistics


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step. Durations are microseconds; moments are seconds of the monotonic clock."""

    began: float
    """When the engine chose what to step."""
    started: float
    """When the forward started."""
    ended: float
    """When there was something to hand out."""
    gap_us: float
    """From when the step before was handed out to the start of this forward, waits included; 0 if there was nothing to do."""
    waited_us: float
    """How much of the gap was spent waiting for drafters."""
    forward_us: float
    """The model's forward."""
    host_us: float
    """Everything else on the engine thread since the step before had ended: handing out, events, scheduling, batching, picking."""
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
    unverified_nodes: int
    """Nodes that were cut off, or left at the end of their session or of its drafter, before any step took them; since the step before."""
    late_nodes: int
    """Nodes that came when their place in the tree was gone, since the step before."""
    failovers: int
    """Sessions that were given another drafter, since the step before."""
    round_trips_s: Sequence[float]
    """Seconds from a commit to the first grow made after it, of every one that came since the step before."""
    survivals: array[float]
    """Estimated log-survival of every node verified, float32."""
    outcomes: bytes
    """For each of them 1 if it was accepted, else 0."""


@dataclass(frozen=True, slots=True)
class SessionStep:
    """What one step was to a session that brought a tree, the root alone included."""

    session: int
    plan: Plan
    """What it stepped under."""
    attached: bool
    """True if it had a drafter."""
    held_since: float | None
    """When the engine began to hold it back for its drafter; None: it did not."""
    drafted: int
    """Nodes verified."""
    depth: int
    """Of the deepest of them below the root; 0 without any."""
    accepted: int
    """num_correct_drafts."""
    committed: int
    """Tokens that its caller gets; at a stop fewer than `accepted` + 1."""
    hit: bool | None
    """None if there was no commit to a drafter."""
    miss: Miss | None
    """Why, if `hit` is False."""
    totals: SpeculationStatistics
    """Sums up to and including this step."""


@dataclass(frozen=True, slots=True)
class ChunkStep:
    """What one step read of a session's prompt."""

    session: int
    first: int
    """Position of the first token."""
    tokens: int


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step, and what it was to each session in it. Made only while somebody wants to know."""

    record: StepRecord
    sessions: Sequence[SessionStep]
    chunks: Sequence[ChunkStep]
    watched: Sequence[tuple[int, WatchedStep]] = ()
    """Sessions that somebody looks at, with the tree that each brought."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """How the engine stands."""

    running: int
    waiting: int
    free_pages: int
    total_pages: int
    steps: int
    step_ms: float
