"""Sampling after the forward of a step: picks, the walk down every tree, moving the KV of accepted nodes, log-probabilities, features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeAlias

from torch import Tensor

from specsplit.model.layers.capture import Hidden
from specsplit.model.lm.causal_lm import CausalLM
from specsplit_verifier.records.step import Accepted, StepInput, TreeInput
from specsplit_verifier.target.extraction import Extractor, Made, Wanted
from specsplit_verifier.target.logprobs import with_logprobs
from specsplit_verifier.target.sampler import Sampler


class Outcome(NamedTuple):
    """The results of a step."""

    accepted: Mapping[int, Accepted]
    """The accepted path by session, of every tree behind whose root the target has a pick."""
    features: Sequence[Made]
    """Features: those of whole chunks, then those of accepted tokens."""


Accept: TypeAlias = Callable[[Tensor, Hidden], Outcome]
"""Logits [n, V] behind every token of the drafts, end to end, and hidden states of all tokens -> the results.

The KV of accepted nodes is in its place, or is moved there before the device does anything else.
"""


class TreeSampler(Protocol):
    """Samples steps, one after the other."""

    def prepare(self, step: StepInput) -> Accept:
        """Begin the work that has to be under way before the forward of a step."""
        ...


class HostTreeSampler:
    """Picks by torch and walks on the host: the reference, and the faster way on a CPU."""

    def __init__(self, target: CausalLM, extractor: Extractor) -> None:
        self._target = target
        self._extractor = extractor
        self._sampler = Sampler(target.info.vocabulary.size, target.device)

    def prepare(self, step: StepInput) -> Accept:
        """Begin to make the noise."""
        pick = self._sampler.prepare(step.trees)

        def accept(logits: Tensor, hidden: Hidden) -> Outcome:
            walked = _walk(step.trees, pick(logits)) if step.trees else {}
            accepted = with_logprobs(walked, step.trees, logits)
            self._compact(step, accepted)
            return Outcome(accepted, self._extractor.extract(_wanted(step, accepted), hidden))

        return accept

    def _compact(self, step: StepInput, accepted: Mapping[int, Accepted]) -> None:
        """Move the KV of accepted nodes to the front of its tree."""
        walked = [(tree, accepted[tree.session].path) for tree in step.trees if tree.session in accepted]
        moved = [(row, path) for row, path in walked if path[-1] != len(path) - 1]
        if moved:
            self._target.compact(moved)


def _walk(trees: Sequence[TreeInput], picks: Sequence[int | None]) -> dict[int, Accepted]:
    """Walk down every tree along the picks; a tree without a pick behind its root is left out."""
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
    """Find the tokens of the forward whose features are wanted: those of chunks, and of accepted paths, root included."""
    starts = list(accumulate((row.num_tokens for row in step.rows), initial=0))
    return [
        *wanted_of_chunks(step, starts[len(step.trees) :]),
        *(
            Wanted(tree.session, tree.recipe, tree.draft.positions[0], [start + i for i in accepted[tree.session].path])
            for tree, start in zip(step.trees, starts, strict=False)
            if tree.recipe is not None and tree.session in accepted
        ),
    ]


def wanted_of_chunks(step: StepInput, starts: Sequence[int]) -> list[Wanted]:
    """Find the features that are wanted of chunks that start at these places of the forward.

    They come before what was accepted: what a session computes anew may push out what its chunk has just joined up with.
    """
    return [
        Wanted(chunk.session, chunk.recipe, chunk.first, range(start + chunk.lead, start + chunk.num_tokens))
        for chunk, start in zip(step.chunks, starts, strict=False)
        if chunk.recipe is not None
    ]
