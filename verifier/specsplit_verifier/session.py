"""One request while it is being decoded, as the engine thread sees it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from specsplit.features import FeatureLayout
from specsplit.model.pages import PageTable
from specsplit.sessions import DecodeRequest, Finished, Open, Tokens
from specsplit.speculation import Commit, Draft, Mirror
from specsplit.values import FinishReason, Miss, Plan, SpeculationStatistics, Usage, Vocabulary
from specsplit_verifier.feed import Feed
from specsplit_verifier.patience import Wait


@dataclass(slots=True)
class Tally:
    """Counts behind SpeculationStatistics."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    hits: int = 0
    misses: int = 0

    def frozen(self) -> SpeculationStatistics:
        """The sums so far."""
        return SpeculationStatistics(self.steps, self.drafted, self.accepted, self.hits, self.misses)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one step made of a session."""

    path: list[int]
    """Indices of the accepted tokens within the draft, root first."""
    bonus: int
    """The target's own token behind them."""
    output: Tokens | None
    """None if the step committed nothing that the caller gets to see."""
    finished: Finished | None = None
    commit: Commit | None = None
    """For the drafter; None if the session ended or has none."""
    hit: bool | None = None
    """Whether the bonus was in the speculation; None without a commit."""
    miss: Miss | None = None
    """Why it was not, if `hit` is False."""
    cut: int = 0
    """Nodes that the commit cut off before any step had taken them."""

    @property
    def accepted(self) -> int:
        """num_correct_drafts."""
        return len(self.path) - 1

    @property
    def totals(self) -> SpeculationStatistics:
        """Sums up to and including this step."""
        told = self.output or self.finished
        assert told is not None, "a session that goes on has got a token"
        return told.speculation


@dataclass(slots=True, eq=False)
class Session:
    """Tokens, KV pages, the mirror of the speculation, and the counts. Owned by the engine thread."""

    id: int
    request: DecodeRequest
    plan: Plan
    limit: int
    """Tokens to generate at most."""
    stop_ids: frozenset[int]
    table: PageTable
    tokens: list[int] = field(default_factory=list[int])
    """Committed, prompt included; the last one is the root."""
    kv_length: int = 0
    """Committed tokens whose KV is held, from the front."""
    mirror: Mirror | None = None
    drafter: str | None = None
    """Address of the drafter that holds the original; None without one."""
    orphan: bool = False
    """True if it has no drafter and may get one: its own was lost and no other has been found yet, or its plan did not speculate."""
    refused_by: set[str] = field(default_factory=set[str])
    """Addresses of drafters that would not have it."""
    wait: Wait = field(default_factory=Wait)
    tally: Tally = field(default_factory=Tally)
    feed: Feed | None = None
    """Features for the drafter, and what is kept of them for the next one; None if it needs none."""
    room: int = 0
    """Tokens that it has KV pages for in a step, root included; never less than the plan has at first."""
    traceparent: str = ""
    """What its drafters hang their spans below; empty: nothing."""
    in_flight: int = 0
    """Nodes that the latest step took and no commit has settled."""

    def __post_init__(self) -> None:
        self.room = max(self.room, self.plan.num_draft_tokens)

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.tokens)

    @property
    def generated(self) -> int:
        """Tokens committed behind the prompt."""
        return len(self.tokens) - self.prompt_length

    @property
    def prefilling(self) -> bool:
        """True while KV is missing for tokens before the root."""
        return self.kv_length < len(self.tokens) - 1

    @property
    def starved(self) -> bool:
        """True while features are held back from the drafter, so that there is nothing to wait for."""
        return self.feed is not None and not self.feed.complete

    @property
    def catching_up(self) -> bool:
        """True while its drafter has yet to read features of what lay before the root when it came."""
        return self.feed is not None and self.feed.catching_up

    @property
    def width(self) -> int:
        """Tokens it may bring to a step, root included."""
        return 1 if self.mirror is None or not self.plan.speculates else self.plan.num_draft_tokens

    @property
    def depth(self) -> int:
        """Levels below the root worth verifying: no deeper than what may still be generated."""
        return min(self.plan.num_steps, self.limit - self.generated - 1)

    @property
    def untaken(self) -> int:
        """Nodes of the speculation that no step has taken."""
        return 0 if self.mirror is None else self.mirror.live - self.in_flight

    def follow(self, default: Plan) -> bool:
        """From the next step on the default plan is this, for what the request did not fix. True if it gets less, for want of KV pages.

        Its drafter hears nothing of it and goes on growing under the plan that it was opened with. So `draft_ahead`, which holds for
        both sides, stays as it is until another drafter is opened, and no node is deeper than the drafter grows.
        """
        wanted = self.request.plan.over(default)
        self.plan = replace(
            wanted,
            num_draft_tokens=min(wanted.num_draft_tokens, self.room),
            draft_ahead=wanted.draft_ahead if self.mirror is None else self.plan.draft_ahead,
        )
        return wanted.num_draft_tokens > self.room

    def attach(self, address: str, mirror: Mirror, feed: Feed | None = None) -> None:
        """From now on the drafter at `address` grows for this session, and reads `feed` if it needs features."""
        self.drafter, self.mirror, self.feed, self.orphan = address, mirror, feed, False

    def detach(self, *, orphan: bool) -> None:
        """Go on without drafts. What is kept of an orphan's features waits for its next drafter."""
        if self.mirror is not None:
            self.mirror.close()
        self.drafter = self.mirror = None
        self.wait = Wait()
        self.orphan = orphan
        if self.feed is not None:
            self.feed.detach()
            self.feed = self.feed if orphan else None

    def open_event(self, vocabulary: Vocabulary, max_nodes: int) -> Open:
        """What a drafter needs to begin here."""
        layout = self.feed.recipe.layout if self.feed is not None else FeatureLayout()
        return Open(
            tuple(self.tokens), self.request.sampling, self.plan, vocabulary, max_nodes, self.traceparent, layout
        )

    def preview(self) -> Draft:
        """What `take` would take."""
        if self.mirror is None:
            return Draft.root_alone(self.tokens[-1], len(self.tokens) - 1)
        return self.mirror.preview(self.plan.num_draft_tokens, self.plan.topk, self.depth)

    def take(self) -> Draft:
        """The tokens this session brings to a step, in flight until `settle`."""
        if self.mirror is None:
            return self.preview()
        draft = self.mirror.take(self.plan.num_draft_tokens, self.plan.topk, self.depth)
        self.in_flight = len(draft.tokens) - 1
        return draft

    def settle(self, draft: Draft, path: list[int], bonus: int) -> Verdict:
        """Commit the accepted `path` (indices into `draft`, root first) and the bonus, or finish."""
        fresh = [*(draft.tokens[i] for i in path[1:]), bonus]
        self._count(draft, path)
        kept, reason, stop_token = self._stop(fresh)
        self.tokens += kept
        correct = min(len(path) - 1, len(kept))
        if reason is not None:
            finished = Finished(reason, stop_token, Usage(self.prompt_length, self.generated), self.tally.frozen())
            return Verdict(path, bonus, Tokens(kept, correct, self.tally.frozen()) if kept else None, finished)
        self.kv_length += len(path)
        if self.mirror is None:
            self.in_flight = 0
            return Verdict(path, bonus, Tokens(kept, correct, self.tally.frozen()))
        return self._commit(self.mirror, draft, path, bonus)

    def _commit(self, mirror: Mirror, draft: Draft, path: list[int], bonus: int) -> Verdict:
        """Reroot, and see what became of the speculation."""
        empty = Miss.NONE if mirror.resting else Miss.LATE
        cause = Miss.WRONG if mirror.goes_on(draft, path) else empty
        untaken = self.untaken
        commit, hit = mirror.commit(draft, path, bonus)
        self.in_flight = 0
        self.tally.hits += hit
        self.tally.misses += not hit
        output = Tokens(commit.tokens, len(path) - 1, self.tally.frozen())
        return Verdict(path, bonus, output, None, commit, hit, None if hit else cause, untaken - hit - mirror.live)

    def _count(self, draft: Draft, path: list[int]) -> None:
        self.tally.steps += 1
        self.tally.drafted += len(draft.tokens) - 1
        self.tally.accepted += len(path) - 1

    def _stop(self, fresh: list[int]) -> tuple[list[int], FinishReason | None, int | None]:
        """(tokens to keep, why it ends here or None, the stop token that ended it)."""
        room = self.limit - self.generated
        for i, token in enumerate(fresh[:room]):
            if token in self.stop_ids:
                return fresh[:i], FinishReason.STOP, token
        if len(fresh) >= room:
            return fresh[:room], FinishReason.LENGTH, None
        return fresh, None, None
