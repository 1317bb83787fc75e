"""The target: it takes a step and returns the results. No other part of the verifier touches tensors."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final, NamedTuple

from specsplit.clock import Clock
from specsplit.errors import LoadError, RankLost, TargetFailed
from specsplit.first_runs import FirstRuns
from specsplit.model.attention.support import refusing
from specsplit.model.lm.causal_lm import CausalLM
from specsplit.model.lm.paced import Paced
from specsplit.model.lm.revision import Revision
from specsplit.model.lm.split_lm import SplitLM
from specsplit.model.pages.pool import PageTable
from specsplit.model_thread import SITE
from specsplit.ranks.lockstep import Lockstep
from specsplit.ranks.mesh import LocalMesh
from specsplit.sampling.kernels import obstacle
from specsplit.values import PromptLogprobs
from specsplit_verifier.records.step import ChunkInput, StepInput, StepOutput
from specsplit_verifier.target.extraction import Extractor
from specsplit_verifier.target.forward_time import forward_time
from specsplit_verifier.target.prompt_logprobs import prompts_of
from specsplit_verifier.target.torch_profiler import TorchProfiler
from specsplit_verifier.target.tree_sampler import HostTreeSampler, TreeSampler

_log = logging.getLogger(__name__)


class Profiled(NamedTuple):
    """The time of one step."""

    tokens: int
    kv_tokens: int
    seconds: float


class TargetRunner:
    """The target, its KV, and how its tokens are picked. `run` belongs to one thread, and touches no session."""

    def __init__(
        self,
        target: CausalLM,
        paced: Paced,
        extractor: Extractor | None,
        clock: Clock,
        lockstep: Lockstep | None = None,
        tree_sampler: TreeSampler | None = None,
    ) -> None:
        """Without `lockstep` it is alone; without `tree_sampler` it has the one for its device."""
        self.lockstep = Lockstep(LocalMesh(), clock) if lockstep is None else lockstep
        self.target = target
        self.extractor = Extractor(target) if extractor is None else extractor
        self.profile: Sequence[Profiled] = ()
        """The times of steps of a few sizes, measured at load."""
        self.profiler = TorchProfiler()
        """What an operator wants to see of steps."""
        self.weights_version = 1
        """1 for the weights that were loaded at the start, and one more for each update."""
        self._paced = paced
        self._clock = clock
        self._first_runs = FirstRuns()
        """Which forwards are the first of their token counts."""
        self._tree_sampler = tree_sampler_for(target, self.extractor) if tree_sampler is None else tree_sampler

    def run(self, step: StepInput) -> StepOutput:
        """Run the forward of a step, pick, walk down every tree, move the KV of accepted nodes, and make features.

        A step that fails is tried again in halves, and a session that fails by itself once more: another process may have had the memory
        that was missing. A session that fails then too is handed back, and may go on elsewhere. If all of them fail, a trial has to show
        that it is not the device; raises whatever that raises. In a group each try is a turn of its own, and a turn in which nobody has
        rows runs nothing. Raises RankLost.
        """
        with SITE.stepping:
            output = self._in_halves(step)
        self.profiler.stepped()
        if output.failed and len(output.failed) == len(step.sessions):
            if not self.lockstep.alone:
                self.lockstep.turn(step.proposal, 1, 1)
            with self._turn():
                self.target.trial()
        return output

    def prepare(self) -> bool:
        """Capture a forward that is not captured yet, while there is nothing to step. False: there is none."""
        with SITE.stepping:
            return self.target.capture_next()

    def take(self, revision: Revision) -> None:
        """Go on with other weights. No page of the KV may be taken. Raises whatever leaves the target between the two."""
        with SITE.stepping:
            revision.copy_into(self.target)
            for step in _trial_steps(self.target):
                self.target.capture_for(step.rows)
        self.weights_version += 1

    def _turn(self) -> AbstractContextManager[None]:
        """Run the forward of the turn in here. Nothing fallible comes between agreement and forward: the other ranks would wait."""
        return self.target.turn(self.lockstep.rows, self.lockstep.demand)

    def _agree(self, step: StepInput) -> bool:
        """Agree with the other ranks whether there is a forward."""
        demand = self.target.demand(step.rows, step.layers)
        return self.lockstep.turn(step.proposal, step.tokens, step.kv_tokens, demand)

    def _in_halves(self, step: StepInput) -> StepOutput:
        sessions = step.sessions
        try:
            return self._run(step)
        except RankLost:
            raise
        except Exception as error:
            if not sessions:
                raise
            how = "in halves" if len(sessions) > 1 else "once"
            _log.warning("a step of sessions %s failed and is tried again %s: %s", sessions, how, error)
        if len(sessions) == 1:
            return self._once_more(step)
        half = len(sessions) // 2
        return self._in_halves(step.only(sessions[:half])).merged_with(self._in_halves(step.only(sessions[half:])))

    def _once_more(self, step: StepInput) -> StepOutput:
        """Run a step of one session for the last time."""
        started, (session,) = self._clock.now(), step.sessions
        try:
            return replace(self._run(step), cold=True)
        except RankLost:
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is: logged, and told to the caller)
            _log.exception("session %d: the target failed on it twice in a row, and it is handed back", session)
            why = f"the target failed on this session, twice in a row: {type(error).__name__}: {error}"
            return StepOutput(failed={session: TargetFailed(why)}, started=started)

    def _run(self, step: StepInput) -> StepOutput:
        accept = self._tree_sampler.prepare(step)
        if not (self.lockstep.alone or self._agree(step)):
            return StepOutput(started=self._clock.now())
        started = self._clock.now()
        with forward_time(self.target.device, self._clock) as time, self._paced.step(step.tokens), self._turn():
            logits, hidden = self.target.forward_capturing(step.rows, step.layers, time.launched)
        prompts: Sequence[tuple[int, PromptLogprobs]] = ()
        if telling := step.telling:
            drafted = sum(len(tree.logits_at) for tree in step.trees)
            prompts, logits = prompts_of(telling, logits[drafted:]), logits[:drafted]
        accepted, features = accept(logits, hidden)
        if self.target.states is not None:
            ends = [(tree, accepted[tree.session].path[-1]) for tree in step.trees if tree.session in accepted]
            read = [(chunk, chunk.num_tokens - 1) for chunk in step.chunks if not chunk.recomputed]
            self.target.keep_states([*ends, *read])
        no_pick = [tree.session for tree in step.trees if tree.session not in accepted]
        cold = self._first_runs.is_first(sum(self.lockstep.rows) or step.tokens) or bool(telling)
        return StepOutput(accepted, features, {}, no_pick, started, time.seconds, cold, prompts)


_SIZES: Final = (1, 8, 32, 64)


def profile(runner: TargetRunner) -> Iterator[Profiled]:
    """Run a forward of each size that there is room for, twice: the first of a size may be slow for reasons that do not come back.

    All ranks of a group do so together. Raises LoadError if one fails, and RankLost.
    """
    for step in _trial_steps(runner.target):
        runner.target.capture_for(step.rows)  # a larger one takes longer
        _seconds(runner, step)
        seconds = _seconds(runner, step)
        # A forward of a group runs the rows of all ranks; which these are, the turn has told.
        yield Profiled(sum(runner.lockstep.rows) or step.tokens, step.kv_tokens, seconds)


def _trial_steps(target: CausalLM) -> Iterator[StepInput]:
    """A step of each size that there is room for; its pages are free again when the next is asked for."""
    most = min(target.pool.most_seen, target.info.max_context)
    for size in (each for each in _SIZES if each <= most):
        table = PageTable(target.pool)
        table.reserve(size)
        table.see(0, size)
        yield StepInput(chunks=[ChunkInput.chunk([0] * size, table.upto(size), session=0, first=0)])
        table.release()


def _seconds(runner: TargetRunner, step: StepInput) -> float:
    failed = f"a first step of {step.tokens} tokens fails (if for want of memory, set kv_tokens lower)"
    with refusing(failed):
        output = runner.run(step)
    for error in output.failed.values():
        raise LoadError(f"{failed}: {error}")
    return output.forward_s


def tree_sampler_for(target: CausalLM, extractor: Extractor) -> TreeSampler:
    """Choose the tree sampler of the target's device: kernels where they run. Raises LoadError if they should, and do not.

    Followers of a split target move KV as its leader does, and only the host tells them.
    """
    if isinstance(target, SplitLM):
        return HostTreeSampler(target, extractor)
    problem = obstacle(target.device)
    if problem is None:
        from specsplit_verifier.target.device_tree_sampler import DeviceTreeSampler  # noqa: PLC0415 (imports triton)

        with refusing(f"the kernels that pick tokens do not run on {target.device}"):
            return DeviceTreeSampler(target, extractor)
    if target.device.type != "cpu":
        _log.warning("tokens are picked and trees walked on the host, which is slower than by kernels: %s", problem)
    return HostTreeSampler(target, extractor)
