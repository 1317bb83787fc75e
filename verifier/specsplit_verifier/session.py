"""One request while it is being decoded, as the engine thread sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from specsplit.features import FeatureLayout
from specsplit.model.pages import PageTable
from specsplit.sessions import DecodeRequest, Finished, Open, Tokens
from specsplit.speculation import Commit, Draft, Mirror
from specsplit.values import FinishReason, Plan, SpeculationStatistics, Usage, Vocabulary
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

    output: Tokens | None
    """None if the step committed nothing that the caller gets to see."""
    finished: Finished | None
    commit: Commit | None
    """For the drafter; None if the session ended or has none."""
    hit: bool | None
    """Whether the bonus was in the speculation; None without a drafter."""
    path: list[int]
    """Indices of the accepted tokens within the draft, root first."""

    @property
    def accepted(self) -> int:
        """num_correct_drafts."""
        return len(self.path) - 1


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
    """True if its drafter was lost and no other has been found yet."""
    refused_by: set[str] = field(default_factory=set[str])
    """Addresses of drafters that would not have it."""
    wait: Wait = field(default_factory=Wait)
    tally: Tally = field(default_factory=Tally)
    feed: Feed | None = None
    """Features for the drafter, and what is kept of them for the next one; None if it needs none."""

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
    def width(self) -> int:
        """Tokens it may bring to a step, root included."""
        return 1 if self.mirror is None else self.plan.num_draft_tokens

    @property
    def depth(self) -> int:
        """Levels below the root worth verifying: no deeper than what may still be generated."""
        return min(self.plan.num_steps, self.limit - self.generated - 1)

    def attach(self, address: str, mirror: Mirror, feed: Feed | None = None) -> None:
        """From now on the drafter at `address` grows for this session, and reads `feed` if it needs features."""
        self.drafter, self.mirror, self.feed, self.orphan = address, mirror, feed, False

    def detach(self, *, orphan: bool) -> None:
        """Go on without drafts. What is kept of an orphan's features waits for its next drafter."""
        if self.mirror is not None:
            self.mirror.close()
        self.drafter = self.mirror = None
        self.orphan = orphan
        if self.feed is not None:
            self.feed.detach()
            self.feed = self.feed if orphan else None

    def open_event(self, vocabulary: Vocabulary, max_nodes: int) -> Open:
        """What a drafter needs to begin here."""
        layout = self.feed.recipe.layout if self.feed is not None else FeatureLayout()
        return Open(tuple(self.tokens), self.request.sampling, self.plan, vocabulary, max_nodes, features=layout)

    def preview(self) -> Draft:
        """What `take` would take."""
        if self.mirror is None:
            return Draft.root_alone(self.tokens[-1], len(self.tokens) - 1)
        return self.mirror.preview(self.plan.num_draft_tokens, self.plan.topk, self.depth)

    def take(self) -> Draft:
        """The tokens this session brings to a step, in flight until `settle`."""
        if self.mirror is None:
            return self.preview()
        return self.mirror.take(self.plan.num_draft_tokens, self.plan.topk, self.depth)

    def settle(self, draft: Draft, path: list[int], bonus: int) -> Verdict:
        """Commit the accepted `path` (indices into `draft`, root first) and the bonus, or finish."""
        fresh = [*(draft.tokens[i] for i in path[1:]), bonus]
        self._count(draft, path)
        kept, reason, stop_token = self._stop(fresh)
        self.tokens += kept
        correct = min(len(path) - 1, len(kept))
        if reason is not None:
            finished = Finished(reason, stop_token, Usage(self.prompt_length, self.generated), self.tally.frozen())
            return Verdict(Tokens(kept, correct, self.tally.frozen()) if kept else None, finished, None, None, path)
        self.kv_length += len(path)
        commit, hit = None, None
        if self.mirror is not None:
            commit, hit = self.mirror.commit(draft, path, bonus)
            self.tally.hits += hit
            self.tally.misses += not hit
        return Verdict(Tokens(kept, correct, self.tally.frozen()), None, commit, hit, path)

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
