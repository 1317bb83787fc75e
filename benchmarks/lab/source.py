"""Where a laboratory's requests, target and drafters come from: models, or a recorded trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from benchmarks.lab.scenario import DrafterSpec, Scenario
from specsplit.clock import Clock
from specsplit.features import FeatureNeed
from specsplit.model.pages.pool import PagePool
from specsplit.sessions import DecodeRequest
from specsplit.values import ModelInfo
from specsplit_drafter.drafts.proposer import Proposer
from specsplit_verifier.records.feed import Recipe
from specsplit_verifier.records.step import StepInput, StepOutput


class Target(Protocol):
    """What a verifier steps with. What it does takes no time of the clock."""

    @property
    def info(self) -> ModelInfo:
        """What it says of itself."""
        ...

    @property
    def pool(self) -> PagePool:
        """The pool of its KV pages."""
        ...

    def recipe(self, need: FeatureNeed) -> Recipe:
        """How what a drafter needs is made here. Raises Incompatible."""
        ...

    def run(self, step: StepInput) -> StepOutput:
        """What becomes of a step."""
        ...


class Source(Protocol):
    """Makes everything anew for every run, so that no run depends on another."""

    def target(self, clock: Clock) -> Target:
        """A target that nobody has used."""
        ...

    def proposer(self, spec: DrafterSpec) -> Proposer:
        """A proposer that nobody has used."""
        ...

    def requests(self, scenario: Scenario) -> Sequence[DecodeRequest]:
        """The requests of a scenario, without drafters, in order of arrival. Their ids are their numbers."""
        ...

    def truth(self, request: DecodeRequest) -> Sequence[int]:
        """The prompt, and all that the target says behind it."""
        ...
