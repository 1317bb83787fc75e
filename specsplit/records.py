"""What the engines of verifiers and drafters tell of their work, as metrics read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import NamedTuple, Protocol, Self

from specsplit.values import Arm, Estimate, Miss, Plan


@dataclass(frozen=True, slots=True)
class TurnCosts:
    """What a turn of a rank group was, seen from one of its ranks."""

    wave: int
    """The wave that it was of."""
    rows: Sequence[int]
    """Tokens that every rank brought, by rank."""
    waited_s: float = 0.0
    """For how long this rank waited until all had proposed."""
    woke_s: float | None = None
    """From when this rank had work, while it was parked, to the forward; None: the work came otherwise."""

    @property
    def imbalance(self) -> float:
        """Tokens of the rank that brought most, by the mean of all ranks: 1 if all brought as many, the number of ranks if only one did."""
        return max(self.rows) * len(self.rows) / max(1, sum(self.rows))


@dataclass(slots=True)
class Counters:
    """Counts since they were last taken. Every field has a default, from which it counts; who adds fields has slots too."""

    def take(self) -> Self:
        """The counts so far; they begin anew."""
        taken = type(self)(*[getattr(self, name) for name in self.__slots__])
        self.__init__()
        return taken


@dataclass(slots=True)
class DraftCounters(Counters):
    """What was lost to drafters, and how long they took, since this was last taken."""

    unverified_nodes: int = 0
    """Nodes that were cut off, or left at the end of their session or of its drafter, before any step took them."""
    late_nodes: int = 0
    """Nodes that came when their place in the tree, or all of it, was gone."""
    failovers: int = 0
    """Sessions that were given another drafter, for want of their own."""
    hand_overs: int = 0
    """Sessions that went on with another drafter because the coordinator wanted it."""
    lookups: int = 0
    """Steps of sessions that were looked up for beside their drafter."""
    lookup_rests: int = 0
    """Steps of sessions in which lookup beside their drafter rested."""
    round_trips_s: list[float] = field(default_factory=list[float])
    """From a commit to the first grow made after it, of every one that came."""


@dataclass(slots=True)
class KVCounters(Counters):
    """What happened to sessions since this was last taken."""

    preemptions: int = 0
    """Sessions that gave their KV pages back, to be computed again later."""
    cached_tokens: int = 0
    """Prompt tokens of sessions that began whose KV was there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step that is over, and where the time went since the one before it. Moments are seconds of the clock."""

    tokens: int
    """Tokens in the forward."""
    kv_tokens: int
    """Tokens whose KV the forward reads, its own included; those of a session's text once."""
    prefill_tokens: int
    recomputed_tokens: int
    """Committed tokens run once more, for features that a drafter lacks."""
    began: float
    """When it was chosen what to step."""
    started: float
    """When the forward began."""
    ended: float
    """When there was something to send."""
    waited_us: float
    """Spent waiting for drafters, or for anything to happen, before the step."""
    forward_us: float
    host_us: float
    """Everything else: sending, events, scheduling, batching, picking, committing."""
    sessions: Sequence[SessionStep] = ()
    """Sessions that brought a tree and got something for it."""
    drafts: DraftCounters = field(default_factory=DraftCounters)
    kv: KVCounters = field(default_factory=KVCounters)
    cold: bool = False
    """True if the forward says nothing of what others take: it was the first of its size, or was run in halves."""
    arm: Arm | None = None
    """What drafters did, and whether that was on trial; None: nobody tries (`rest_trials`)."""
    turn: TurnCosts | None = None
    """The turn that the step was, or the last of them if it was tried again; None: the verifier is alone."""

    @property
    def idle(self) -> bool:
        """True if the step was run for other ranks alone."""
        return self.turn is not None and not self.tokens

    @property
    def others_tokens(self) -> int:
        """Tokens that other ranks had in the same forward."""
        return 0 if self.turn is None else max(0, sum(self.turn.rows) - self.tokens)

    @property
    def drafted(self) -> int:
        """Nodes verified."""
        return sum(session.drafted for session in self.sessions)

    @property
    def accepted(self) -> int:
        """Nodes accepted."""
        return sum(session.accepted for session in self.sessions)

    @property
    def committed(self) -> int:
        """Tokens that callers get."""
        return sum(session.committed for session in self.sessions)

    @property
    def hits(self) -> int:
        """Commits whose bonus was a node."""
        return sum(session.hit is True for session in self.sessions)

    @property
    def misses(self) -> int:
        """Commits whose bonus was none."""
        return sum(session.hit is False for session in self.sessions)


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """The default plan of a verifier, and why it is in force."""

    default: Plan
    """What sessions are under where their requests say nothing, as it is shown."""
    switches: int = 0
    """How often it has changed."""
    estimate: Estimate | None = None
    """Why it is in force; None: nothing has been seen yet, or there is nothing to weigh."""


class SessionStep(Protocol):
    """What one step was to a session that brought a tree, the root alone included, in numbers."""

    @property
    def shown_plan(self) -> Plan:
        """The plan that the session stepped under, as it is shown."""
        ...

    @property
    def speculates(self) -> bool:
        """True if it had a drafter, and a plan to draft by."""
        ...

    @property
    def drafted(self) -> int:
        """Nodes verified, root not counted."""
        ...

    @property
    def depth(self) -> int:
        """The depth of the deepest of them below the root; 0 without any."""
        ...

    @property
    def accepted(self) -> int:
        """Nodes accepted in the step (num_correct_drafts)."""
        ...

    @property
    def committed(self) -> int:
        """Tokens that its caller gets; at a stop fewer than `accepted` + 1."""
        ...

    @property
    def hit(self) -> bool | None:
        """Whether the bonus was a node; None if there was no commit to a drafter."""
        ...

    @property
    def miss(self) -> Miss | None:
        """Why it was none, if `hit` is False."""
        ...


@dataclass(slots=True)
class StreamStatistics:
    """What went over one drafter's streams since the start of this process."""

    messages_sent: int = 0
    messages_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    nodes_received: int = 0
    feature_tokens_sent: int = 0
    """Tokens whose features were sent."""
    feature_bytes_sent: int = 0
    """Bytes of the features that were sent, framing not counted."""
    events_received: int = 0
    drops: int = 0
    """Streams that were closed here, since the drafter caused more work than it was asked for."""

    def add(self, other: StreamStatistics) -> None:
        """Count in what went over the streams of another drafter."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class Eager(StrEnum):
    """Why a forward was no CUDA graph, where others are."""

    SIZE = "size"
    """More tokens or rows than the largest graph takes."""
    LAYOUT = "layout"
    """The pages or masks of the forward are more than the memory for them holds."""
    LAYERS = "layers"
    """Hidden states are wanted that no graph leaves."""
    FIRST = "first"
    """A descent of this shape had not come before: the next one is captured."""
    FULL = "full"
    """Descents come in more shapes than graphs are kept for, and this one has none."""
    BIAS = "bias"
    """A descent for a session with a logit bias, which none is captured for."""
    FAILED = "failed"
    """Capturing has failed."""
    GROUP = "group"
    """There is no graph for what another rank of the group had in the same turn, or for all of them together."""


class StateBytes(NamedTuple):
    """Memory of the device for the states of recurrent layers, in bytes. Without such layers all of it is 0."""

    sessions: int = 0
    """Taken for sessions, whether they are there or not."""
    drafts: int = 0
    """What the drafts of one step may take at most."""
    prefixes: int = 0
    """What is kept behind shared pages."""


@dataclass(frozen=True, slots=True)
class GraphStatistics:
    """What has become of the forwards of a model since some of them were captured. Without graphs all of it is 0."""

    captured: int = 0
    """Graphs that there are."""
    nbytes: int = 0
    """Memory of the device that they take."""
    replayed: int = 0
    """Forwards that were a graph."""
    eager: Mapping[Eager, int] = field(default_factory=dict[Eager, int])
    """Forwards that were none, by reason."""

    def merged_with(self, other: GraphStatistics) -> GraphStatistics:
        """The sums of these statistics and the other's."""
        return GraphStatistics(
            self.captured + other.captured,
            self.nbytes + other.nbytes,
            self.replayed + other.replayed,
            {reason: self.eager.get(reason, 0) + other.eager.get(reason, 0) for reason in Eager},
        )


@dataclass(frozen=True)
class DrafterStatistics:
    """What a drafter has done and holds."""

    sessions: int
    """Sessions that are open now."""
    streams: int
    """Streams that are open now."""
    expansions: int
    """Expansions since start."""
    expanded_nodes: int
    """Nodes expanded since start, roots included."""
    pushed_nodes: int
    """Nodes sent to verifiers since start."""
    commits: int
    """Commits applied since start."""
    committed_nodes: int
    """Nodes that these commits accepted."""
    used_pages: int
    total_pages: int
    """0: the kind keeps no KV."""
    expansion_ms: float
    """Exponentially weighted mean duration of one."""
    drawn_expansions: int = 0
    """Expansions since start that brought children of nodes, and did not only read context."""
    used_expansions: int = 0
    """Expansions since start of which a node was committed so far."""
    graphs: GraphStatistics = GraphStatistics()
