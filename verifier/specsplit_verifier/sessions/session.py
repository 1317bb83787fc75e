"""One request while it is being decoded, as the engine thread sees it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from specsplit.grammar import GrammarState
from specsplit.model.pages.pool import PageTable
from specsplit.sampling import TokenCounts
from specsplit.sessions import DecodeRequest, Finished, Tokens
from specsplit.speculation import Draft
from specsplit.values import FinishReason, NoDrafts, NoDraftsCause, Plan, SpeculationStatistics, Usage
from specsplit_verifier.records.step import Accepted, EndFloor, PromptPart, Reroot, SessionResult
from specsplit_verifier.records.undrafted import Undrafted
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.forced import forced_last
from specsplit_verifier.sessions.no_drafter import NoDrafter
from specsplit_verifier.sessions.tree_limits import TreeLimits
from specsplit_verifier.sessions.used_adapter import NO_ADAPTER, UsedAdapter


@dataclass(slots=True)
class SessionCounters:
    """What is counted of a session: the sums over its steps, and what penalties go by."""

    totals: SpeculationStatistics = field(default_factory=SpeculationStatistics)
    tokens: TokenCounts | None = None
    """None: the session has no penalties."""
    undrafted: Undrafted = field(default_factory=Undrafted)
    """Its steps by why they had no drafts."""
    told: int = 0
    """Tokens of its prompt, from the front, that were told with their log-probabilities."""
    cached: int | None = None
    """Tokens of its prompt whose KV was there when it began; None until then."""

    @property
    def accepted_a_step(self) -> float:
        """Drafts accepted in a step, the mean; infinite before the first."""
        return self.totals.accepted / self.totals.steps if self.totals.steps else math.inf

    @property
    def explains(self) -> bool:
        """True if it is to be told now why there were no drafts: with steps 1, 2, 4, 8 and so on, which costs next to nothing."""
        return not self.totals.steps & (self.totals.steps - 1)

    def step(self, drafted: int, accepted: int, hit: bool | None, undrafted: NoDraftsCause | None) -> None:
        """Count a step by its nodes. `hit`: None without a commit to a drafter. `undrafted`: why it had no nodes."""
        before = self.totals
        self.totals = SpeculationStatistics(
            before.steps + 1,
            before.drafted + drafted,
            before.accepted + accepted,
            before.hits + (hit is True),
            before.misses + (hit is False),
        )
        self.undrafted.step(undrafted)


@dataclass(frozen=True, slots=True)
class StopRule:
    """Where a session ends."""

    max_tokens: int
    """Tokens to generate at most."""
    token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    """Tokens to generate before any of `token_ids` may be picked."""

    def cut(self, generated: int, fresh: list[int]) -> tuple[list[int], FinishReason | None, int | None]:
        """Cut `fresh` tokens behind so many: (those to keep, why it ends here or None, the stop token that ended it)."""
        left = self.max_tokens - generated
        for i, token in enumerate(fresh[:left]):
            if token in self.token_ids:
                return fresh[:i], FinishReason.STOP, token
        if len(fresh) >= left:
            return fresh[:left], FinishReason.LENGTH, None
        return fresh, None, None


def _unexplained(_: Undrafted) -> NoDrafts | None:
    """Explain nothing."""


@dataclass(slots=True, eq=False)
class Session:
    """Tokens, KV pages, what its drafter is to it, and the counts. Owned by the engine thread."""

    id: int
    request: DecodeRequest
    plan: Plan
    stops: StopRule
    table: PageTable
    tokens: list[int] = field(default_factory=list[int])
    """Committed, prompt included; the last one is the root."""
    kv_length: int = 0
    """Committed tokens whose KV is held, from the front."""
    drafter: DraftSession | NoDrafter = field(default_factory=NoDrafter)
    refused_until: dict[str, float] = field(default_factory=dict[str, float])
    """Drafters that would not have it, by address, and until when they are not asked again."""
    counters: SessionCounters = field(default_factory=SessionCounters)
    grammar: GrammarState | None = None
    """What its output is held to, as far as that is committed; None: nothing."""
    adapter: UsedAdapter = NO_ADAPTER
    """What is added to the target for it."""

    def __post_init__(self) -> None:
        if self.request.sampling.penalised:
            self.counters.tokens = TokenCounts(self.prompt_length)

    @property
    def sampled(self) -> bool:
        """True if its tokens are drawn, and so harder to draft."""
        return not self.request.sampling.greedy

    @property
    def begun(self) -> bool:
        """True once it was admitted for the first time."""
        return self.counters.cached is not None

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return self.request.prompt_tokens

    @property
    def generated(self) -> int:
        """Tokens committed behind the prompt."""
        return len(self.tokens) - self.prompt_length

    @property
    def floor(self) -> EndFloor | None:
        """What may not be picked yet; None: anything may be."""
        if not self.stops.token_ids or self.generated >= self.stops.min_tokens:
            return None
        return EndFloor(self.prompt_length + self.stops.min_tokens, sorted(self.stops.token_ids))

    @property
    def ended(self) -> FinishReason | None:
        """Why nothing is left to be generated; None: something is."""
        if self.grammar is not None and self.grammar.complete:
            return FinishReason.STOP
        # The pool where it began may have been larger.
        return FinishReason.LENGTH if self.generated >= self.stops.max_tokens else None

    def _cut(self, fresh: list[int]) -> tuple[list[int], FinishReason | None, int | None]:
        """Cut what a step has accepted; see `StopRule.cut`. Nothing follows an output that its grammar says is complete."""
        kept, reason, stop_token = self.stops.cut(self.generated, fresh)
        if self.grammar is None:
            return kept, reason, stop_token
        kept = kept[: self.grammar.advance(kept)]
        return (kept, FinishReason.STOP, None) if self.grammar.complete else (kept, reason, stop_token)

    def refused_by(self, address: str, now: float) -> bool:
        """True if a drafter would not have it, and is not to be asked again yet."""
        return now < self.refused_until.get(address, -math.inf)

    @property
    def usage(self) -> Usage:
        """Tokens in and out so far."""
        return Usage(self.prompt_length, self.generated, self.counters.cached or 0)

    @property
    def telling(self) -> bool:
        """True while log-probabilities of its prompt are to be told: for these it reads all of the prompt, whatever is cached."""
        return self.request.prompt_logprobs is not None and self.counters.told < self.prompt_length

    def to_tell(self, positions: range) -> PromptPart | None:
        """What can be told of its prompt when these committed positions are read; None: nothing."""
        most, first = self.request.prompt_logprobs, max(self.counters.told, 1, positions.start + 1)
        stop = min(positions.stop + 1, self.prompt_length)
        if most is None or first >= stop:
            return None
        return PromptPart(first, self.tokens[first:stop], most, () if self.counters.told else self.tokens[:1])

    @property
    def unread(self) -> int:
        """Tokens before the root whose KV is missing."""
        return len(self.tokens) - 1 - self.kv_length

    @property
    def prefilling(self) -> bool:
        """True while KV is missing for tokens before the root."""
        return self.unread > 0

    @property
    def wants_drafts(self) -> bool:
        """True if its caller wants drafts, of one kind or of any."""
        return self.request.takes_drafter or self.request.any_drafter

    @property
    def needs_drafter(self) -> bool:
        """True if it has use for a drafter, may get one, and has none."""
        return self.drafter.needed and self.plan.speculates

    @property
    def width(self) -> int:
        """Tokens it may bring to a step, root included."""
        return self.plan.num_draft_tokens if self.drafter.attached and self.plan.speculates else 1

    @property
    def lookahead_slots(self) -> int:
        """Slots of its pages from its root on: for that, and drafts."""
        return len(self.table) - len(self.tokens) + 1

    @property
    def tree_limits(self) -> TreeLimits:
        """What a step may take of the speculation: nothing deeper than what may still be generated."""
        plan, left = self.plan, self.stops.max_tokens - self.generated - 1
        if self.grammar is None:
            return TreeLimits(plan.num_draft_tokens, plan.topk, min(plan.num_steps, left))
        forced = self.grammar.forced
        num_steps = plan.num_steps and plan.num_steps + len(forced)
        return TreeLimits(plan.num_draft_tokens, plan.topk, min(num_steps, left), forced, self.grammar)

    @property
    def undrafted(self) -> NoDraftsCause:
        """Why a step takes the root alone, if it does."""
        wished, drafter = self.request.plan, self.drafter
        if wished.num_steps == 0 or wished.num_draft_tokens == 1:
            return NoDraftsCause.REQUEST
        if not drafter.attached:
            return self._undrafted_alone
        if not self.plan.speculates:
            return NoDraftsCause.RESTING
        if not drafter.nodes:
            return NoDraftsCause.EMPTY if drafter.drafter_ready else NoDraftsCause.LATE
        room = self.tree_limits.num_steps >= 1 and self.lookahead_slots > 1
        return NoDraftsCause.PRICE if room else NoDraftsCause.ROOM

    @property
    def _undrafted_alone(self) -> NoDraftsCause:
        """Why it has no drafter."""
        request = self.request
        if not self.wants_drafts:
            return NoDraftsCause.REQUEST
        if not self.plan.speculates:
            return NoDraftsCause.PLAN
        refused = request.takes_drafter and not self.drafter.needed
        return NoDraftsCause.REFUSED if refused else NoDraftsCause.NO_DRAFTER

    def take(self, limits: TreeLimits) -> Draft:
        """The tokens this session brings to a step, in flight until `commit`."""
        draft = self.drafter.take(self.tokens[-1], len(self.tokens) - 1, limits)
        if self.grammar is None or not self.drafter.attached:
            return draft
        return forced_last(draft, self.grammar, limits)

    def commit(
        self,
        draft: Draft,
        accepted: Accepted,
        now: float,
        *,
        watched: bool = False,
        shown: Plan | None = None,
        undrafted: NoDraftsCause | None = None,
        explain: Callable[[Undrafted], NoDrafts | None] = _unexplained,
    ) -> SessionResult:
        """Commit the accepted path and the bonus, or finish. `watched`: somebody wants to see the speculation as it was.

        `shown`: its plan as it is shown, where that is another. `undrafted`: why the draft is its root alone.
        `explain`: asked now and then why the steps so far had no drafts.
        """
        path, drafter, counters = accepted.path, self.drafter, self.counters
        attached, held_since = len(draft.tokens) > 1 or drafter.attached, drafter.held_since
        tree = drafter.view(draft) if watched else None
        kept, reason, stop_token = self._cut(accepted.commits(draft))
        self.tokens += kept
        reroot = Reroot()
        if reason is None:
            self.kv_length += len(path)
            reroot = drafter.commit(draft, accepted, now)
        counters.step(len(draft.tokens) - 1, len(path) - 1, reroot.hit, undrafted)
        explains = watched or reason is not None or counters.explains
        totals, no_drafts = counters.totals, explain(counters.undrafted) if explains else None
        logprobs, cached = accepted.logprobs[: len(kept)], self.counters.cached or 0
        correct = min(len(path) - 1, len(kept))
        output = Tokens(kept, correct, totals, logprobs, cached, no_drafts) if kept else None
        finished = None if reason is None else Finished(reason, stop_token, self.usage, totals, no_drafts)
        return SessionResult(
            self.id,
            self.plan,
            draft,
            path,
            accepted.bonus,
            attached,
            held_since,
            output,
            finished,
            reroot,
            tree,
            shown,
            undrafted,
        )
