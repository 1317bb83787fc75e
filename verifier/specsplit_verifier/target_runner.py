"""The target: a step in, what it made of the step out. The only part of the verifier that touches tensors."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from specsplit.clock import Clock
from specsplit.errors import RankLost, SpecsplitError
from specsplit.model.capture import Hidden
from specsplit.model.causal_lm import CausalLM
from specsplit.model.paced import Paced
from specsplit.ranks.lockstep import Lockstep
from specsplit.ranks.mesh import LocalMesh
from specsplit_verifier.extraction import Extractor, Wanted
from specsplit_verifier.logprobs import with_logprobs
from specsplit_verifier.sampler import Sampler
from specsplit_verifier.step import Accepted, StepInput, StepOutput, TreeInput

_log = logging.getLogger(__name__)


class Profiled(NamedTuple):
    """What one step took."""

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
    ) -> None:
        """Without `lockstep` it is alone."""
        self.lockstep = Lockstep(LocalMesh(), clock) if lockstep is None else lockstep
        self.target = target
        self.extractor = Extractor(target) if extractor is None else extractor
        self.profile: Sequence[Profiled] = ()
        """What steps of a few sizes took at load."""
        self._paced = paced
        self._clock = clock
        self._sampler = Sampler(target.info.vocabulary.size, target.device)

    def run(self, step: StepInput) -> StepOutput:
        """Forward, picks, the walk down every tree, the KV of what was accepted to its place, features.

        What fails is tried again in halves, so that a session which fails by itself is the only one to end with that. If all of
        them do, a trial has to show that it is not the device; raises whatever that raises. In a group each try is a turn of its
        own, and a turn in which nobody has rows runs nothing. Raises RankLost.
        """
        output = self._in_halves(step)
        if output.failed and len(output.failed) == len(step.sessions):
            if not self.lockstep.alone:
                self.lockstep.turn(step.proposal, 1, 1)
            with self._turn():
                self.target.trial()
        return output

    def _turn(self) -> AbstractContextManager[None]:
        """The forward that was agreed upon. Nothing that may fail comes between the two, or the others would wait for this rank."""
        return self.target.blocks.turn(self.lockstep.rows)

    def _in_halves(self, step: StepInput) -> StepOutput:
        started, sessions = self._clock.now(), step.sessions
        try:
            return self._run(step)
        except RankLost:
            raise
        except Exception as error:
            if not sessions:
                raise
            if len(sessions) == 1:
                _log.exception("session %d: the target failed on it, and it ends", sessions[0])
                why = f"the target failed on this session: {type(error).__name__}: {error}"
                return StepOutput(failed={sessions[0]: SpecsplitError(why)}, started=started)
            _log.warning("a step of %d sessions failed and is tried again in halves: %s", len(sessions), error)
        half = len(sessions) // 2
        return self._in_halves(step.only(sessions[:half])).beside(self._in_halves(step.only(sessions[half:])))

    def _run(self, step: StepInput) -> StepOutput:
        pick = self._sampler.prepare(step.trees)
        if not (self.lockstep.alone or self.lockstep.turn(step.proposal, step.tokens, step.kv_tokens)):
            return StepOutput(started=self._clock.now())
        started = self._clock.now()
        with self._paced.step(step.tokens):
            logits, hidden = self._forward(step)
        forward_s = self._clock.now() - started
        accepted = with_logprobs(_walk(step.trees, pick(logits)), step.trees, logits) if step.trees else {}
        self._compact(step, accepted)
        features = self.extractor.extract(_wanted(step, accepted), hidden)
        no_pick = [tree.session for tree in step.trees if tree.session not in accepted]
        return StepOutput(accepted, features, {}, no_pick, started, forward_s)

    def _forward(self, step: StepInput) -> tuple[Tensor, Hidden]:
        with self._turn():
            logits, hidden = self.target.forward_capturing(step.rows, step.layers)
        if logits.is_cuda:
            torch.cuda.synchronize(logits.device)
        return logits, hidden

    def _compact(self, step: StepInput, accepted: Mapping[int, Accepted]) -> None:
        """The KV of accepted nodes moves to the front of its tree."""
        walked = [(tree, accepted[tree.session].path) for tree in step.trees if tree.session in accepted]
        moved = [(row, path) for row, path in walked if path[-1] != len(path) - 1]
        if moved:
            self.target.compact(moved)


def _walk(trees: Sequence[TreeInput], picks: Sequence[int | None]) -> dict[int, Accepted]:
    """Down every tree along the picks; a tree behind whose root there is none is left out."""
    accepted: dict[int, Accepted] = {}
    start = 0
    for tree in trees:
        own = picks[start : start + len(tree.draft.tokens)]
        start += len(own)
        path = tree.draft.accept(own)
        bonus = own[path[-1]]
        if bonus is not None:
            accepted[tree.session] = Accepted(path, bonus)
    return accepted


def _wanted(step: StepInput, accepted: Mapping[int, Accepted]) -> list[Wanted]:
    """Where in the forward features are worth taking: all of every chunk, and accepted paths, root included.

    Chunks come first: what a session computes anew may push out what its chunk has just joined up with.
    """
    starts = list(accumulate((row.num_tokens for row in step.rows), initial=0))
    wanted = [
        Wanted(chunk.session, chunk.recipe, chunk.first, range(start + chunk.lead, start + chunk.num_tokens))
        for chunk, start in zip(step.chunks, starts[len(step.trees) :], strict=False)
        if chunk.recipe is not None
    ]
    wanted += [
        Wanted(tree.session, tree.recipe, tree.draft.positions[0], [start + i for i in accepted[tree.session].path])
        for tree, start in zip(step.trees, starts, strict=False)
        if tree.recipe is not None and tree.session in accepted
    ]
    return wanted
