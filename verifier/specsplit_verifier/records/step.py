"""A step as values: what goes into the target, what comes out of it, and what that was to everybody."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from specsplit.errors import SpecsplitError
from specsplit.features import Features
from specsplit.grammar import GrammarState
from specsplit.model.pages.batch import Row
from specsplit.ranks.lockstep import NOTHING, Proposal
from specsplit.records import StepRecord
from specsplit.sampling import TokenCounts
from specsplit.sessions import Finished, Tokens
from specsplit.speculation import Commit, Draft
from specsplit.values import Miss, NoDraftsCause, Plan, PromptLogprobs, Sampling, TokenLogprob
from specsplit.values.lean import lean
from specsplit_verifier.records.feed import Recipe


@dataclass(frozen=True, slots=True)
class EndFloor:
    """The tokens that would end a session, and how long it may not end (`min_tokens`)."""

    position: int
    """The first position at which one of them may be picked."""
    tokens: Sequence[int]


@lean(eq=False, kw_only=True)
class TreeInput(Row):
    """A session's draft, root first: logits behind every token of it."""

    session: int
    draft: Draft
    sampling: Sampling
    recipe: Recipe | None = None
    """How features are made of its accepted tokens; None: none are wanted."""
    logprobs: int | None = None
    """Likeliest tokens wanted beside each of its accepted tokens and the bonus; None: no log-probabilities at all."""
    counts: TokenCounts | None = None
    """What its penalties count of the committed tokens; None: it has none. The session's own, which stands still while the step is run."""
    floor: EndFloor | None = None
    """What may not be picked yet; None: anything may be."""
    grammar: GrammarState | None = None
    """What its output is held to; None: nothing. The session's own, which stands still while the step is run."""
    undrafted: NoDraftsCause | None = None
    """Why it brings its root alone; None: it does not."""


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Tokens of a prompt whose log-probabilities are to be told next."""

    first: int
    """Position of the first of them; the token before it is the first whose logits are read."""
    tokens: Sequence[int]
    most: int
    """Likeliest tokens wanted beside each."""
    beginning: Sequence[int] = ()
    """The first token of the prompt, if it is told with these; it has no log-probability."""

    @property
    def end(self) -> int:
        """Position behind the last of them."""
        return self.first + len(self.tokens)


@lean(eq=False, kw_only=True)
class ChunkInput(Row):
    """A stretch of a session's committed tokens: no logits, but where its prompt is to be told.

    What is recomputed is written to scratch pages, since batch shapes round differently, and others may read what is there.
    """

    session: int
    first: int
    """Position of the first token, those of the lead not counted."""
    recipe: Recipe | None = None
    """How features are made of its tokens; None: none are wanted."""
    lead: int = 0
    """Tokens in front that are run only because a scratch page begins with them."""
    recomputed: bool = False
    """True if its KV was there, and it is run for the features that a drafter lacks; else it is of the prompt."""
    told: PromptPart | None = None
    """What its logits tell of the prompt, one token for each; None: nothing."""


@dataclass(frozen=True)
class StepInput:
    """One step. Without trees and chunks it is an idle one, which costs what the model does together with other ranks."""

    trees: Sequence[TreeInput] = ()
    chunks: Sequence[ChunkInput] = ()
    """What is recomputed, then prompts."""
    planned_at: float = 0.0
    """When it was chosen what to step, in seconds of the clock."""
    proposal: Proposal = NOTHING
    """What a rank of a group tells the others of it, its size left out."""

    @property
    def sessions(self) -> list[int]:
        """Sessions of the step, each once."""
        return list(dict.fromkeys(part.session for part in (*self.trees, *self.chunks)))

    def only(self, sessions: Collection[int]) -> StepInput:
        """Their part of the step."""
        trees = [tree for tree in self.trees if tree.session in sessions]
        chunks = [chunk for chunk in self.chunks if chunk.session in sessions]
        return StepInput(trees, chunks, self.planned_at, self.proposal)

    @property
    def telling(self) -> list[ChunkInput]:
        """Chunks whose logits tell of their prompts."""
        return [chunk for chunk in self.chunks if chunk.told is not None]

    @cached_property
    def rows(self) -> list[Row]:
        """The trees, then the chunks."""
        return [*self.trees, *self.chunks]

    @cached_property
    def tokens(self) -> int:
        """Tokens in all rows."""
        return sum(row.num_tokens for row in self.rows)

    @cached_property
    def kv_tokens(self) -> int:
        """Tokens whose KV is read: of every row the text before it, and its own."""
        return sum(row.pages.length for row in self.rows)

    @property
    def layers(self) -> frozenset[int]:
        """Layers whose hidden states are wanted."""
        recipes = (part.recipe for part in (*self.trees, *self.chunks))
        return frozenset(chain.from_iterable(recipe.layers for recipe in recipes if recipe is not None))


@lean()
class Accepted:
    """What the target made of one draft."""

    path: Sequence[int]
    """Indices of the accepted tokens within the draft, root first."""
    bonus: int
    """The target's own pick behind them."""
    logprobs: Sequence[TokenLogprob] = ()
    """One for each of the tokens that this commits, if they are wanted."""

    def commits(self, draft: Draft) -> list[int]:
        """The tokens behind the root of the draft that this is of: one for each index of the path, the bonus last."""
        return [*[draft.tokens[i] for i in self.path[1:]], self.bonus] if len(self.path) > 1 else [self.bonus]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What the target made of a step. The KV of accepted tokens is in its place."""

    accepted: Mapping[int, Accepted] = field(default_factory=dict[int, Accepted])
    """By session, of every tree behind whose root the target has a pick."""
    features: Sequence[tuple[int, Recipe, Features]] = ()
    """(session, how they were made, features): all of every chunk that wants some, then those of accepted tokens."""
    failed: Mapping[int, SpecsplitError] = field(default_factory=dict[int, SpecsplitError])
    """By session, why it got nothing; it ends here with that, and may go on elsewhere."""
    no_pick: Sequence[int] = ()
    """Sessions behind whose root the target's logits are no numbers. They are where they were before the step."""
    started: float = 0.0
    """When the forward began, in seconds of the clock."""
    forward_s: float = 0.0
    cold: bool = False
    """True if the forward says nothing of what others take: it was the first of its size, was run again, or had logits of prompts."""
    prompts: Sequence[tuple[int, PromptLogprobs]] = ()
    """(session, what it is told of its prompt), in order."""

    def merged_with(self, other: StepOutput) -> StepOutput:
        """This, and what came of the rest of the step after it."""
        return StepOutput(
            {**self.accepted, **other.accepted},
            [*self.features, *other.features],
            {**self.failed, **other.failed},
            [*self.no_pick, *other.no_pick],
            self.started,
            self.forward_s + other.forward_s,
            cold=True,
            prompts=[*self.prompts, *other.prompts],
        )


@dataclass(frozen=True, slots=True)
class TreeView:
    """A whole speculation as it was before a commit: root first, parents before children; as in `WatchedStep`."""

    ids: Sequence[int]
    parents: Sequence[int]
    tokens: Sequence[int]
    edges: Sequence[float]


@lean()
class Reroot:
    """What a commit made of the speculation; all of it empty without one."""

    commits: Sequence[Commit] = ()
    """The commits for the drafter, in order: one, and one more for every token that was forced and it had not drawn."""
    hit: bool | None = None
    """Whether the bonus was in the speculation; None without a commit."""
    miss: Miss | None = None
    """Why it was not, if `hit` is False."""
    cut: int = 0
    """Nodes that were cut off before any step had taken them."""
    rested: bool = False
    """Whether the drafter had said before the commit that it rests."""

    @property
    def commit(self) -> Commit | None:
        """The last commit."""
        return self.commits[-1] if self.commits else None


@lean()
class SessionResult:
    """What one step was to a session that brought a tree, the root alone included."""

    session: int
    plan: Plan
    """What it stepped under."""
    draft: Draft
    accepted_path: Sequence[int]
    """Indices into the draft, root first."""
    bonus: int
    """The target's own token behind them."""
    attached: bool
    """True if it had a drafter."""
    held_since: float | None
    """When the engine began to hold it back for its drafter; None: it did not."""
    output: Tokens | None
    """None if the step committed nothing that the caller gets to see."""
    finished: Finished | None = None
    reroot: Reroot = Reroot()
    tree: TreeView | None = None
    """The speculation that the draft was taken from, if somebody watches."""
    shown: Plan | None = None
    """What people are told of the plan, where a controller spends less than it; None: the plan."""
    undrafted: NoDraftsCause | None = None
    """Why the draft was its root alone; None: it was not."""

    @property
    def drafter_ready(self) -> bool:
        """True if the drafter had said what it has for the step, be it nothing; one that was late says nothing of its worth."""
        return self.undrafted is not NoDraftsCause.LATE

    @property
    def shown_plan(self) -> Plan:
        """The plan as it is shown."""
        return self.shown or self.plan

    @property
    def hit(self) -> bool | None:
        """Whether the bonus was in the speculation; None without a commit."""
        return self.reroot.hit

    @property
    def miss(self) -> Miss | None:
        """Why it was not, if `hit` is False."""
        return self.reroot.miss

    @property
    def drafted(self) -> int:
        """Nodes verified."""
        return len(self.draft.tokens) - 1

    @property
    def depth(self) -> int:
        """The depth of the deepest node below the root; 0 without any."""
        return max(self.draft.positions) - self.draft.positions[0]

    @property
    def accepted(self) -> int:
        """Nodes accepted (num_correct_drafts)."""
        return len(self.accepted_path) - 1

    @property
    def committed(self) -> int:
        """Tokens that its caller gets; at a stop fewer than `accepted` + 1."""
        return 0 if self.output is None else len(self.output.tokens)

    @property
    def speculates(self) -> bool:
        """True if it had a drafter, and a plan to draft by."""
        return self.attached and self.plan.speculates

    @property
    def reply(self) -> Tokens | Finished:
        """What its caller gets first: tokens, or the end if there are none. It has the sums up to and including this step."""
        reply = self.output or self.finished
        assert reply is not None, "a session that goes on has got a token"
        return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult(StepRecord):
    """All that anybody may want to know of a step; metrics, spans and the page are made of it."""

    sessions: Sequence[SessionResult] = ()
    chunks: Sequence[ChunkInput] = ()
    failed: Mapping[int, SpecsplitError] = field(default_factory=dict[int, SpecsplitError])
    """By session, why it ended with this step."""

    @property
    def prompts(self) -> Iterator[ChunkInput]:
        """Stretches of prompts that were read."""
        return (chunk for chunk in self.chunks if not chunk.recomputed)
