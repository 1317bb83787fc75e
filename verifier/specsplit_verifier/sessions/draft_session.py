"""What a session's drafter is to it: the mirror of what it grows, the features on their way to it, and whether to wait for it.

A session knows nothing more of drafters than what this has in common with `NoDrafter`, which it has without one, and with `OwnLookup`,
which it has where the verifier itself drafts meanwhile. What the verifier drafts beside the drafter is `LookupBeside`.

A grow is not applied when it comes. It is queued, and applied once there is enough of it for arrays to be worth while, or when the target
should soon be done with its step; the engine applies the rest at the beginning of `schedule` and of `commit`. All grows made between the
same two commits that are queued reach the mirror as one, so that a tree costs a few operations a step and not some for every grow.
What the mirror says (live nodes, whether the drafter rests or has caught up) is as of when grows were last applied, and right wherever
somebody decides by it. Everything else that a drafter says is taken in at once, behind what it had grown before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from specsplit.draft_events import Close, ToDrafter
from specsplit.errors import InvalidRequest
from specsplit.features import Features
from specsplit.records import DraftCounters
from specsplit.speculation import BULK_FROM, Commit, Draft, Grow, Mirror, State
from specsplit.values import Miss, Plan
from specsplit_verifier.records.feed import Feed, Recipe
from specsplit_verifier.records.step import Accepted, Reroot, TreeView
from specsplit_verifier.sessions.drafter_record import DrafterRecord, Entry
from specsplit_verifier.sessions.forced import known_of, with_unknown
from specsplit_verifier.sessions.grow_queue import GrowQueue, Merged
from specsplit_verifier.sessions.legal import legal, looked_at
from specsplit_verifier.sessions.lookup_beside import LookupBeside
from specsplit_verifier.sessions.outlined import grammar_first
from specsplit_verifier.sessions.tree_limits import TreeLimits
from specsplit_verifier.sessions.wait_policy import Prospect, Wait, WaitPolicy

KEPT_BACK: Final = 32
"""Commits, and features behind them, that a drafter at rest is sent together: one at a time they cost a third of a step of 3 ms."""


class DraftSession:
    """One session at one drafter."""

    served: ClassVar = True
    attached: ClassVar = True
    needed: ClassVar = False

    def __init__(
        self,
        address: str,
        mirror: Mirror,
        wait_policy: WaitPolicy,
        feed: Feed | None = None,
        counters: DraftCounters | None = None,
        record: DrafterRecord | None = None,
        beside: LookupBeside | None = None,
        *,
        movable: bool = False,
        opening: int = 0,
    ) -> None:
        """`wait_policy`: what waiting for this drafter has brought, in whatever session. `feed`: None if it reads no features.

        `record`: what the drafter brings, in whatever session. `beside`: what drafts beside it; None: nothing does. `movable`: a drafter
        of another kind may take over. `opening`: which of all openings it is.
        """
        self.address: Final = address
        self.mirror: Final = mirror
        self.feed: Final = feed
        self.opening: Final = opening
        self._wait_policy = wait_policy
        self._counters = counters or DraftCounters()
        self._entry = Entry(record or DrafterRecord(), movable)
        self._beside = beside
        self._wait = Wait()
        self._queue = GrowQueue()
        self._in_flight = 0
        """Nodes that the latest step took and no commit has settled."""
        self._kept_back: list[Commit | Features] = []
        """What a drafter that was told to rest has not been sent yet, in order."""

    @property
    def recipe(self) -> Recipe | None:
        """How features of the session's tokens are made; None: none are wanted."""
        return None if self.feed is None else self.feed.recipe

    @property
    def recompute(self) -> range:
        """Positions to run once more, for features that the drafter lacks."""
        return range(0) if self.feed is None else self.feed.recompute

    @property
    def lacks_features(self) -> bool:
        """True while positions are to be run once more, now or when the drafter has read what it was sent."""
        return self.feed is not None and self.feed.gap

    @property
    def held_since(self) -> float | None:
        """When the session began to be held back for what may be grown; None: it has not been since the last commit."""
        return self._wait.held_since

    @property
    def drafter_ready(self) -> bool:
        """True if the drafter has said what it has for the next step, be it nothing."""
        return self.mirror.caught_up or self.mirror.resting or len(self.mirror) > 0

    @property
    def nodes(self) -> int:
        """Nodes of the speculation, and of what was drafted beside it."""
        return len(self.mirror) + (0 if self._beside is None else self._beside.nodes)

    @property
    def seen(self) -> int:
        """Highest id of a node that has come; 0: none has."""
        return self.mirror.seen

    @property
    def untaken(self) -> int:
        """Nodes of the speculation that no step has taken."""
        return len(self.mirror) - self._in_flight

    @property
    def catching_up(self) -> bool:
        """True while the drafter has yet to read features of what lay before the root when it came."""
        return self.feed is not None and self.feed.catching_up

    @property
    def _beginning(self) -> bool:
        """True until there is a commit behind the features of the prompt."""
        return self.mirror.commits <= (0 if self.feed is None else self.feed.early_commits)

    @property
    def _features_withheld(self) -> bool:
        return self.feed is not None and not self.feed.complete

    def begin(self, root: int, now: float) -> list[Features]:
        """The drafter begins below the root at position `root`: the features that it is to be sent now."""
        self._entry.begin()
        self._wait.begin(now)
        return [] if self.feed is None else self._sent(self.feed.attach(root), now, prefilling=True)

    def at(self, address: str) -> DraftSession | None:
        """Return this, if `address` is the drafter's."""
        return self if self.address == address else None

    @property
    def looked_up(self) -> bool:
        """True if it is looked up for beside the drafter now."""
        return self._beside is not None and not self._beside.resting

    def meet(self, *, repeating: bool) -> None:
        """The session may step now, and its text repeats itself or does not."""
        if self._beside is not None and self._beside.meet(repeating=repeating):
            self._wait.before = None  # what grows add is measured with what is looked up, or without

    def log_survivals(self, limits: TreeLimits) -> Sequence[float]:
        """Log-survivals of the nodes that a step would take now, best first."""
        return grammar_first(self._best(limits), limits).log_survivals[1:]

    def _best(self, limits: TreeLimits) -> Draft:
        """What a step would take now of what is not forced, root first: of as much as it looks at, so that no step merges twice."""
        wider = looked_at(limits)
        return self._merged(self.mirror.preview(*wider.of_tree), wider).first(limits.num_draft_tokens)

    def _merged(self, own: Draft, limits: TreeLimits) -> Draft:
        """The best of what the drafter has, and of what was drafted beside it."""
        return own if self._beside is None else self._beside.merged(own, limits)

    def take(self, root: int, position: int, limits: TreeLimits) -> Draft:
        """What the session brings to a step: the best of what was grown, root first; in flight until `commit`."""
        wider = looked_at(limits)
        own = self.mirror.take(*wider.of_tree)
        draft = grammar_first(legal(self._merged(own, wider), limits), limits)
        self._in_flight = len(known_of(draft, range(len(draft.ids)))) - 1
        self._look(limits)
        return draft

    def commit(self, draft: Draft, accepted: Accepted, now: float) -> Reroot:
        """Take the speculation to its next root, and see what became of it; from now on time counts towards the next grow."""
        mirror, untaken, rested = self.mirror, self.untaken, self.mirror.resting
        empty = Miss.NONE if rested else Miss.LATE
        path, tokens = known_of(draft, accepted.path), accepted.commits(draft)
        if self.feed is not None and self.feed.end < draft.positions[0]:
            self.feed.early_commits = 1 + len(tokens) - len(path)
        cause = Miss.WRONG if mirror.has_nodes_below(draft, path) else empty
        first, hit = mirror.commit(draft, path, tokens[len(path) - 1])
        commits = [first]
        for token in tokens[len(path) :]:  # forced or looked up, and the drafter may have drawn them meanwhile
            commit, hit = mirror.commit(mirror.take(1, 1, 0), [0], token)
            commits.append(commit)
        self._entry.record.step(len(path) - 1, hit=hit)
        if self._beside is not None:
            self._counters.lookup_rests += self._beside.resting
            self._counters.lookups += self._beside.draft is not None
            self._beside.commit(draft, accepted)
        self._in_flight = 0
        self._wait.restart(now, hit, probed=self._wait_policy.probes(), commits=len(commits))
        # Below 0 where the bonus had been taken, as a node behind which the target has no pick: then nothing was cut off.
        return Reroot(commits, hit, None if hit else cause, max(0, untaken - hit - len(mirror)), rested)

    def view(self, draft: Draft) -> TreeView:
        """The whole speculation."""
        view, whole = TreeView(*self.mirror.listed()), None if self._beside is None else self._beside.draft
        return with_unknown(view if whole is None else with_unknown(view, whole), draft)

    def grow(self, grow: Grow, now: float) -> None:
        """Queue what was grown, until the engine applies it. Raises InvalidRequest for more new edges than there can be nodes."""
        if len(grow.rescored) > self.mirror.max_nodes:
            raise InvalidRequest(
                "grow.rescored_ids", f"has {len(grow.rescored)}, expected at most {self.mirror.max_nodes}"
            )
        self._queue.add(grow, now)

    @property
    def grows_queued(self) -> bool:
        """True if something is queued."""
        return self._queue.size > 0

    @property
    def urgent(self) -> bool:
        """True if what is queued should not wait: arrays take it at no more cost a node than later, and now the target may be at work."""
        return self._queue.size >= BULK_FROM or (self._wait.probed and not self.mirror.caught_up)

    def apply_grows(self, limits: TreeLimits, *, prefilling: bool) -> None:
        """Apply what is queued, and learn from when it came. Raises IllegalEvent if the drafter broke the protocol."""
        for merged in self._queue.take():
            self._apply(merged, limits, prefilling=prefilling)

    def _apply(self, merged: Merged, limits: TreeLimits, *, prefilling: bool) -> None:
        mirror, times = self.mirror, merged.times
        if merged.grow.commits == mirror.commits:
            self._look(limits)  # what is late is of what the last commit left, and no answer to it
        seen, first = mirror.acknowledged, not mirror.caught_up
        self._counters.late_nodes += len(merged.grow.ids) - mirror.grow(merged.grow)
        if self.catching_up and not merged.last.ids:
            mirror.mark_busy()  # it rests for want of features, which are on their way
        made = self._wait.answered(mirror.acknowledged - seen)
        if made is not None:
            self._counters.round_trips_s.append(times[0] - made)
            self._entry.record.round_trip(times[0] - made)
        if self.catching_up or self._kept_back or limits.num_steps < 1:
            return  # what it does now, or at rest, says nothing about how it answers a commit
        if not mirror.caught_up:
            if made is not None:
                self._wait_policy.late_grow(self._wait, times[0], made)
        elif not prefilling:
            self._learn(times, limits, first=first)

    def _learn(self, times: Sequence[float], limits: TreeLimits, *, first: bool) -> None:
        """Learn from grows that answer the last commit; from what they brought only if no step is in flight, or in a probe."""
        wait, wait_policy = self._wait, self._wait_policy
        if self.mirror.state is State.READY or (first and wait.probed):
            wait_policy.grew(wait, times, self._best(limits), first=first)
        elif first:
            wait_policy.late_grow(wait, times[0])

    def read(self, position: int, now: float, *, prefilling: bool) -> list[Features]:
        """The drafter has read the features of every position below: what it is to be sent now. Raises InvalidRequest if it cannot have."""
        if self.feed is None:
            raise InvalidRequest("features_read", "it was sent no features")
        return self._sent(self.feed.acknowledge(position), now, prefilling=prefilling)

    def computed(self, features: Features, now: float, *, prefilling: bool) -> list[Features]:
        """Features were computed, new or lacking: what the drafter is to be sent now. Raises Overrun if it reads too slowly."""
        sent = [] if self.feed is None else self.feed.add(features)
        if self._kept_back:  # a drafter that is not told of commits has no use for their features either
            self._kept_back += sent
            return []
        return self._sent(sent, now, prefilling=prefilling)

    def _sent(self, features: Sequence[Features], now: float, *, prefilling: bool) -> list[Features]:
        """When these are the last that the drafter needs for a first grow, the wait for that begins."""
        if features:
            self.mirror.mark_busy()
            if self._beginning and not prefilling and not self._features_withheld:
                self._wait.begin(now)
        return list(features)

    def _look(self, limits: TreeLimits) -> None:
        """Note what the last commit left before anything is added. The step takes what was looked at, so it costs nothing more."""
        if self._wait.before is None:
            self._wait.look(self._best(limits))

    def pause(self, now: float, plan: Plan, limits: TreeLimits) -> float:
        """Seconds that a session which drafts and verifies alternately still leaves to its drafter; 0: step now."""
        if plan.draft_ahead or self._brings_nothing(plan, limits) or limits.all_forced:
            return 0.0
        self._look(limits)
        return max(0.0, self._wait.left_s(now, plan))

    def prospect(self, now: float, plan: Plan, limits: TreeLimits) -> Prospect | None:
        """What may still be grown before the next step; None: nothing that might be waited for."""
        if limits.forced or self._brings_nothing(plan, limits):  # what is forced is as good as anything
            return None
        self._look(limits)
        return self._wait_policy.prospect(self._wait, now, plan, self.mirror.caught_up)

    def _brings_nothing(self, plan: Plan, limits: TreeLimits) -> bool:
        """True if nothing comes before the next step, or nothing that it could be told when or that the step could take."""
        if self.mirror.resting or self._features_withheld or not plan.speculates or limits.num_steps < 1:
            return True
        return self.catching_up and not self._beginning

    def replan(self, plan: Plan, now: float) -> Sequence[ToDrafter]:
        """The drafter is to be told of another plan, and answers as it would a commit: by growing, or by saying that it rests."""
        if self.feed is not None and self.feed.resting is plan.speculates:
            self.feed.rest(resting=not plan.speculates)
        if self.mirror.resting:
            self.mirror.mark_busy()
            self._wait.begin(now)
        return (plan,)

    def keep_back(self, commit: Commit, *, rested: bool) -> bool:
        """Keep a commit back from a drafter that was told to rest; it is sent with what comes next. False: it is to be sent now.

        `rested`: the drafter had said that it rests before the commit.
        """
        if len(self._kept_back) + 1 >= KEPT_BACK:
            return False
        self._kept_back.append(commit)
        self.mirror.keep_back(rested=rested)
        return True

    def kept_back(self) -> Sequence[ToDrafter]:
        """Take what was kept back, to be sent now."""
        if not self._kept_back:  # nearly always
            return ()
        kept, self._kept_back = self._kept_back, []
        self.mirror.release()
        return kept

    def hold(self, now: float) -> None:
        """The session is not stepped now, for what may be grown."""
        self._wait.hold(now)

    def stepping(self, now: float) -> None:
        """The session is about to step: note for how long it was held back, and if waiting brought nothing."""
        if self._wait.held_since is not None:
            self._entry.record.held_s += now - self._wait.held_since
        if not self.catching_up and not self.mirror.caught_up:
            self._wait_policy.in_vain(self._wait, now)

    def close(self) -> Sequence[ToDrafter]:
        """End the session at its drafter. What was grown is lost; what is kept of features waits for another drafter."""
        queued = sum(len(merged.grow.ids) for merged in self._queue.take())
        self._counters.unverified_nodes += self.untaken + queued
        self._entry.end()
        if self._beside is not None:
            self._beside.close()
        self.mirror.close()
        if self.feed is not None:
            self.feed.detach()
        return (Close(),)
