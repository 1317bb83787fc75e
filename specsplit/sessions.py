"""What coordinator and verifier say to each other about one session: decode, watch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specsplit.errors import InvalidRequest
from specsplit.stream_interval import check_stream_interval
from specsplit.values import (
    Constraint,
    Endpoint,
    FinishReason,
    NoDrafts,
    Plan,
    PlanChanges,
    PromptLogprobs,
    Sampling,
    SpeculationStatistics,
    Stopping,
    TokenLogprob,
    Usage,
    check_logprobs,
)
from specsplit.values.checks import check_name
from specsplit.values.lean import lean


@dataclass(frozen=True)
class DecodeRequest:
    """One session for a verifier. Raises InvalidRequest for a value out of range."""

    request_id: str
    tokens: Sequence[int]
    """The prompt, and behind it what was generated earlier; at least one token."""
    sampling: Sampling = field(default_factory=Sampling)
    stopping: Stopping = field(default_factory=Stopping)
    plan: PlanChanges = field(default_factory=PlanChanges)
    drafter: Endpoint | None = None
    """None: the target decodes alone."""
    logprobs: int | None = None
    """Likeliest tokens wanted beside each token, as in `GenerateRequest`."""
    any_drafter: bool = False
    """True: drafts of any kind will do, as the caller asked for no kind or none of that kind is there. A drafter of another kind may take
    the session over, and the verifier may look up for it while it has none."""

    committed: int = 0
    """How many of the tokens, at the end, were generated earlier, here or elsewhere. They are not sent again, and count as generated."""
    scope: bytes = b""
    """Whose session it is (`specsplit.identity.scope_of`), for its drafters; empty: like no other session."""
    stream_interval: int = 1
    """Tokens that are sent at once, at least; the first are sent as they come."""
    constraint: Constraint | None = None
    """What the output is held to; None: nothing."""
    prompt_logprobs: int | None = None
    """Likeliest tokens wanted beside each token of the prompt but the first, as in `GenerateRequest`."""
    adapter: str = ""
    """Name of the target's adapter to decode with; empty: none."""
    session: int = 0
    """The number that the verifier has given the session. This and the next two are not part of the message."""
    traceparent: str = ""
    """What its drafters are told to hang their spans below; empty: nothing."""
    from_roster: bool = False
    """True: nobody has chosen a drafter for it, and the verifier takes one of its roster."""

    def __post_init__(self) -> None:
        check_logprobs(self.logprobs)
        check_logprobs(self.prompt_logprobs, "prompt_logprobs")
        check_stream_interval(self.stream_interval)
        check_name("adapter", self.adapter)
        if self.committed and self.committed >= len(self.tokens):
            raise InvalidRequest(
                "committed",
                f"is {self.committed}, expected less than the {len(self.tokens)} tokens: some are the prompt",
            )
        most = self.stopping.max_tokens
        if self.committed and most is not None and self.committed >= most:
            raise InvalidRequest("committed", f"is {self.committed}, expected less than max_tokens = {most}")

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.tokens) - self.committed

    @property
    def takes_drafter(self) -> bool:
        """True if a drafter is to serve it: the one that was chosen, or one of the verifier's roster."""
        return self.drafter is not None or self.from_roster


@lean(slots=False)
class Tokens:
    """What one step committed."""

    tokens: Sequence[int]
    num_correct_drafts: int
    """How many of them, from the front, were accepted drafts."""
    speculation: SpeculationStatistics
    """Sums up to and including this step."""
    logprobs: Sequence[TokenLogprob] = ()
    """One for each of the tokens, if the session asked for them."""
    cached_prompt_tokens: int = 0
    """Prompt tokens that were cached, as in Usage, for whoever does not wait for the end."""
    no_drafts: NoDrafts | None = None
    """Why the steps so far had no drafts, or hardly any, for whoever does not wait for the end; None: it is not told with this step."""


@dataclass(frozen=True)
class Finished:
    """The end of a session."""

    reason: FinishReason
    stop_token: int | None
    usage: Usage
    speculation: SpeculationStatistics
    no_drafts: NoDrafts | None = None
    """Why its steps had no drafts, or hardly any; None: they had some, there was no step, or it is not known."""


@dataclass(frozen=True)
class Preempted:
    """The session gave its KV pages back, and waits for others to be computed again, unless its caller has it decoded elsewhere."""


DecodeEvent = PromptLogprobs | Tokens | Preempted | Finished
"""What a session gets: PromptLogprobs of its whole prompt if it asked for them, any number of Tokens, Preempted among all of these, then
Finished."""


@dataclass(frozen=True)
class Begin:
    """A session begins on a stream that carries many. Raises InvalidRequest for a time that is none."""

    request: DecodeRequest
    timeout_s: float | None = None
    """How long it may take; None: as long as it takes."""
    traceparent: str = ""
    """The span that what is done for it belongs below; empty: nobody traces it."""

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise InvalidRequest("timeout_s", f"is {self.timeout_s}, expected a time above 0")
        if self.request.prompt_logprobs is not None:
            raise InvalidRequest(
                "prompt_logprobs",
                "is set, and a stream of many sessions does not wait for who reads a prompt; use Decode",
            )


@dataclass(frozen=True)
class Leave:
    """A session on such a stream is left by whoever began it."""


@dataclass(frozen=True)
class Failed:
    """A session on such a stream failed, and is over."""

    status: bytes
    """The google.rpc.Status that a call of its own would end with."""


@dataclass(frozen=True, slots=True)
class WatchedStep:
    """One step as people see it who look on. The first five are the whole speculation, in parallel: root first, parents before children."""

    ids: Sequence[int]
    """Ascending; 0 for a root that was no node."""
    parents: Sequence[int]
    """Indices into these sequences; -1 for the root."""
    tokens: Sequence[int]
    edges: Sequence[float]
    """Edges as in `Grow`; the root's means nothing."""
    verified: Sequence[bool]
    """Whether the step verified it; True for the root."""
    accepted: Sequence[int]
    """The accepted path as indices into these sequences, root first."""
    bonus: int
    """The target's own token behind that path; the next root if the session goes on."""
    committed: int
    """Tokens that the caller gets of the accepted ones and the bonus, from the front."""
    root_position: int
    commits: int
    """Commits made on this drafter's stream for the session, this one included; says to which root a grow belongs. 0: no drafter."""
    plan: Plan
    speculation: SpeculationStatistics
    """Sums up to and including this step."""
    no_drafts: NoDrafts | None = None
    """Why the steps of the session up to this one had no drafts, or hardly any; None: they had some, or it is not known."""
