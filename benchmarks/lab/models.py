"""The source that has models: what they compute is real, what it costs is the scenario's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from benchmarks.lab.chat import chats
from benchmarks.lab.clock import VirtualClock
from benchmarks.lab.scenario import DrafterSpec, Scenario
from benchmarks.prompts import held_out
from specsplit.cli.folders import TARGET, drafts_beside
from specsplit.clock import Clock, SystemClock
from specsplit.features import FeatureNeed
from specsplit.model import CausalLM
from specsplit.model.lm.paced import CostCurve, Paced
from specsplit.model.pages.pool import PagePool
from specsplit.sessions import DecodeRequest, Tokens
from specsplit.settings import DrafterSettings, VerifierSettings
from specsplit.values import ModelInfo, Sampling, Stopping
from specsplit_drafter.drafts.proposer import Proposer
from specsplit_drafter.edge.service import load_proposer
from specsplit_verifier.engine.engine import core_of
from specsplit_verifier.policy.planner import Pause
from specsplit_verifier.records.feed import Recipe
from specsplit_verifier.records.step import StepInput, StepOutput
from specsplit_verifier.target.runner import TargetRunner

KV_TOKENS = 16_384
PAGE = VerifierSettings.page_size


class ModelTarget:
    """A target that is a model."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        model = CausalLM.load(folder, num_pages=KV_TOKENS // PAGE, page_size=PAGE)
        self._runner = TargetRunner(model, Paced(CostCurve(), clock), None, clock)
        self.info: ModelInfo = model.info
        self.pool: PagePool = model.pool

    def recipe(self, need: FeatureNeed) -> Recipe:
        """How what a drafter needs is made here. Raises Incompatible."""
        return self._runner.extractor.recipe(need)

    def run(self, step: StepInput) -> StepOutput:
        """One forward, and all that follows from it."""
        return self._runner.run(step)


class ModelSource:
    """Models in a folder like models/pocket: `target`, and drafts beside it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / TARGET
        self._drafts = drafts_beside(self._folder)
        self._truths: dict[tuple[Sequence[int], Sampling, Stopping], list[int]] = {}
        self._held_out = cache(lambda width, count: held_out(self._folder, width, count).tolist())

    def target(self, clock: Clock) -> ModelTarget:
        """The target, loaded afresh."""
        return ModelTarget(self._folder, clock)

    def proposer(self, spec: DrafterSpec) -> Proposer:
        """The draft of this kind, loaded afresh."""
        target = self._folder if spec.kind.is_head else None
        model = self._drafts[spec.kind] if spec.kind.needs_model else None
        settings = DrafterSettings(kind=spec.kind, model=model, target=target, children=spec.children)
        return load_proposer(settings, SystemClock())

    def requests(self, scenario: Scenario) -> list[DecodeRequest]:
        """Held-out prompts, or messages; a request's seed is its number."""
        return [
            DecodeRequest(
                str(number),
                tuple(prompt),
                Sampling(scenario.temperature, seed=number),
                Stopping(scenario.new, ignore_eos=True),
                scenario.plan,
            )
            for number, prompt in enumerate(self._prompts(scenario))
        ]

    def _prompts(self, scenario: Scenario) -> Sequence[Sequence[int]]:
        if scenario.prompt is None:
            return chats(self._folder, scenario.requests)
        windows = self._held_out(scenario.prompt // scenario.said, scenario.requests)
        return [scenario.said * window for window in windows]

    def truth(self, request: DecodeRequest) -> list[int]:
        """What the target says by itself; it is asked once."""
        key = request.tokens, request.sampling, request.stopping
        if key not in self._truths:
            self._truths[key] = plain(self.target(VirtualClock()), request)
        return self._truths[key]


def plain(target: ModelTarget, request: DecodeRequest) -> list[int]:
    """The prompt, and what the target says behind it without a drafter."""
    core = core_of(target.info, target.pool, target.recipe, VerifierSettings(model=Path()), VirtualClock())
    core.handle(request)
    tokens = list(request.tokens)
    while not isinstance(step := core.schedule(), Pause):
        core.commit(step, target.run(step))
        outputs, _ = core.outgoing()
        tokens += [token for _, output in outputs if isinstance(output, Tokens) for token in output.tokens]
    return tokens
