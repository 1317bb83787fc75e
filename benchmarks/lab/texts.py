"""The source of texts that are known token by token, for the drafter without a model: what it draws is looked up in them."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.lab.replay import CONTEXT, VOCABULARY, ReplayTarget
from benchmarks.lab.scenario import DrafterSpec, Scenario
from benchmarks.lookup.turn import Turn
from specsplit.clock import Clock
from specsplit.sessions import DecodeRequest
from specsplit.values import Sampling, Stopping
from specsplit_drafter.drafts.proposer import Proposer
from specsplit_drafter.kinds.ngram import NgramProposer
from specsplit_verifier.records.step import Accepted, StepInput, StepOutput

NO_TOKEN = VOCABULARY.size - 1
"""What the target says behind a text."""


class TextTarget(ReplayTarget):
    """A target that says these texts. A session's number is that of its text."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        super().__init__("known texts")
        self._texts = texts

    def run(self, step: StepInput) -> StepOutput:
        """Walk down every tree along the text of its session."""
        accepted: dict[int, Accepted] = {}
        for tree in step.trees:
            text = self._texts[tree.session]
            picks = [text[at + 1] if at + 1 < len(text) else NO_TOKEN for at in tree.draft.positions]
            path = tree.draft.accept(picks)
            accepted[tree.session] = Accepted(path, picks[path[-1]])
        return StepOutput(accepted)


class TextSource:
    """Texts in the place of models: one request each."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns

    def target(self, clock: Clock) -> TextTarget:
        return TextTarget([turn.prompt + turn.output for turn in self._turns])

    def proposer(self, spec: DrafterSpec) -> Proposer:
        return NgramProposer(spec.children, CONTEXT)

    def requests(self, scenario: Scenario) -> list[DecodeRequest]:
        """The requests of these texts, in order."""
        return [
            DecodeRequest(
                str(number), turn.prompt, Sampling(), Stopping(len(turn.output), ignore_eos=True), scenario.plan
            )
            for number, turn in enumerate(self._turns[: scenario.requests])
        ]

    def truth(self, request: DecodeRequest) -> Sequence[int]:
        turn = self._turns[int(request.request_id)]
        return turn.prompt + turn.output
