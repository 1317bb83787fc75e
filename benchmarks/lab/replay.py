"""The source that has no models: a trace says what would have been accepted.

A replayed text is its own positions: the right token at position p is p, and every other token is none. So the real trees, mirrors and
planners can be used on it, and a request of any length needs no text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.lab.scenario import DrafterSpec, Scenario
from benchmarks.lab.trace import Level, Trace
from specsplit.clock import Clock
from specsplit.draft_events import Open
from specsplit.errors import Incompatible
from specsplit.features import FeatureNeed
from specsplit.model.pages.pool import PagePool
from specsplit.sessions import DecodeRequest
from specsplit.settings import VerifierSettings
from specsplit.tree import TokenTree
from specsplit.values import DrafterInfo, DrafterKind, ModelInfo, Sampling, Stopping, Vocabulary
from specsplit_drafter.drafts.calibration import DISTANCES
from specsplit_drafter.drafts.proposer import (
    UNBOUNDED,
    AppliedCommit,
    Children,
    FrontierPart,
    ProposerDefaults,
    ProposerPages,
    SessionKey,
)
from specsplit_verifier.records.feed import Recipe
from specsplit_verifier.records.step import Accepted, StepInput, StepOutput

CONTEXT = 1 << 16
"""Tokens from here on are wrong ones."""
VOCABULARY = Vocabulary(CONTEXT + 256)
KV_TOKENS = 1 << 20


class ReplayTarget:
    """A target that says the recorded text."""

    def __init__(self, name: str) -> None:
        self.info = ModelInfo(name, VOCABULARY, CONTEXT)
        self.pool = PagePool(KV_TOKENS // VerifierSettings.page_size, VerifierSettings.page_size)

    def recipe(self, need: FeatureNeed) -> Recipe:
        """Refuse: there are no hidden states."""
        raise Incompatible("a replayed target has no features")

    def run(self, step: StepInput) -> StepOutput:
        """Walk down every tree along the positions."""
        accepted: dict[int, Accepted] = {}
        for tree in step.trees:
            picks = [position + 1 for position in tree.draft.positions]
            path = tree.draft.accept(picks)
            accepted[tree.session] = Accepted(path, picks[path[-1]])
        return StepOutput(accepted)


class ReplayProposer(ProposerDefaults):
    """A drafter that says what was recorded. A session's seed is the number of its request in the trace.

    Of what hangs below a wrong token nothing was recorded; it is drawn as if it hung at the right one of its depth, with no right child.
    """

    def __init__(self, trace: Trace, kind: DrafterKind, texts: Sequence[Sequence[int]] | None = None) -> None:
        """`texts`: of the requests, their prompts included; None: they are their own positions."""
        self._trace = trace
        self._texts = texts
        self._sessions: dict[SessionKey, tuple[TokenTree, int]] = {}
        self.info = DrafterInfo(kind, trace.header.drafter, VOCABULARY, CONTEXT)
        self.redraws = self.shares_root = trace.header.by_depth
        self.distances = DISTANCES if trace.header.by_depth else 1
        self.free_kv_slots = UNBOUNDED
        self.pages = ProposerPages(0, 0)

    def open(self, session: SessionKey, tree: TokenTree, opened: Open) -> None:
        """Begin a session."""
        self._sessions[session] = tree, opened.sampling.seed

    def commit(self, session: SessionKey, applied: AppliedCommit) -> None:
        """Follow a commit: the tree has been rerooted, and there is nothing else."""

    def pending(self, session: SessionKey) -> int:
        """Zero: there is no context to read."""
        return 0

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[Children]:
        """Say what was recorded of each node."""
        return [self._expand(*self._sessions[part.session], part.slots.tolist()) for part in frontier]

    def close(self, session: SessionKey) -> None:
        """Forget a session."""
        del self._sessions[session]

    def _expand(self, tree: TokenTree, request: int, slots: Sequence[int]) -> Children:
        root, positions, tokens = tree.root_position, tree.positions, tree.tokens
        text = range(CONTEXT) if self._texts is None else self._texts[request]
        rows: list[list[tuple[int, float]]] = []
        for slot in slots:
            position = int(positions[slot])
            level = self._trace.level(request, root, position - root)
            right = position + 1 < len(text) and tokens[slot] == text[position]
            rows.append(_children(level, text[position + 1] if right else None))
        return Children.of(rows)


def _children(level: Level, right: int | None) -> list[tuple[int, float]]:
    """(token, log-probability), likeliest first; `right`: the token that stands at the recorded rank, if one does."""
    return [
        (right if right is not None and place == level.rank else CONTEXT + place, math.log(probability))
        for place, probability in enumerate(level.probabilities)
        if probability > 0
    ]


class ReplaySource:
    """A trace in the place of models. Prompt and length of every request are the recorded ones; there may be more than were recorded."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def fitted(self, scenario: Scenario) -> Scenario:
        """A scenario with the drafter and the temperature that were recorded, in the place of its own."""
        header = self._trace.header
        drafters = tuple(replace(spec, kind=DrafterKind(header.kind)) for spec in scenario.drafters)
        return replace(scenario, drafters=drafters, temperature=header.temperature)

    def target(self, clock: Clock) -> ReplayTarget:
        return ReplayTarget(self._trace.header.target)

    def proposer(self, spec: DrafterSpec) -> ReplayProposer:
        """The recorded drafter, whatever kind the scenario names."""
        return ReplayProposer(self._trace, DrafterKind(self._trace.header.kind))

    def requests(self, scenario: Scenario) -> list[DecodeRequest]:
        """The recorded requests, again and again."""
        return [
            self._request(str(number), number % len(self._trace.requests), scenario)
            for number in range(scenario.requests)
        ]

    def _request(self, name: str, recorded: int, scenario: Scenario) -> DecodeRequest:
        roots = self._trace.requests[recorded]
        sampling = Sampling(self._trace.header.temperature, seed=recorded)
        return DecodeRequest(
            name, range(min(roots) + 1), sampling, Stopping(len(roots), ignore_eos=True), scenario.plan
        )

    def truth(self, request: DecodeRequest) -> range:
        return range(len(request.tokens) + len(self._trace.requests[request.sampling.seed]))
