"""Three lossless ways to verify a token tree, each as two pure functions of logits.

`children` says which tokens the draft proposes below a node, in order; `acceptance` gives, for each of them, the probability that
it is the token accepted there, given the proposals and (for shared noise) the noise. The chance that a node is accepted is the
product along its path, so the expected accepted length of a tree is exact: nothing is sampled on the target's side.

Legend: V vocabulary, k children. Logits float32 [V], already the row of one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specsplit.sampling.noise import gumbel


def distribution(logits: Tensor, temperature: float) -> Tensor:
    """Probabilities float64 [V]; temperature 0 puts all on the argmax."""
    if temperature == 0:
        return torch.zeros_like(logits, dtype=torch.float64).index_fill_(0, logits.argmax(), 1.0)
    return (logits.double() / temperature).softmax(-1)


class Scheme(Protocol):
    """How children are drawn from the draft's logits and accepted by the target's."""

    name: str
    confident: bool
    """True if the tree may follow the draft's confidence without biasing the output."""

    def scores(self, draft: Tensor, temperature: float, seed: int, position: int) -> Tensor:
        """What the draft ranks tokens by, [V]; the token will stand at `position`."""
        ...

    def acceptance(
        self, target: Tensor, draft: Tensor, children: Sequence[int], temperature: float, seed: int, position: int
    ) -> list[float]:
        """Probability of each child to be the accepted one."""
        ...


class SharedNoise:
    """Draft and target add the same Gumbel noise and take the largest (design.md, "Sampling"; arXiv 2408.07978, 2506.05632)."""

    name = "shared noise"
    confident = True

    def scores(self, draft: Tensor, temperature: float, seed: int, position: int) -> Tensor:
        return (
            draft if temperature == 0 else draft / temperature + gumbel([seed], [position], len(draft), draft.device)[0]
        )

    def acceptance(
        self, target: Tensor, draft: Tensor, children: Sequence[int], temperature: float, seed: int, position: int
    ) -> list[float]:
        """1 for the token the target picks with this noise, 0 for all others."""
        pick = int(self.scores(target, temperature, seed, position).argmax())
        return [float(child == pick) for child in children]


class TargetOnly:
    """The draft proposes its likeliest tokens; the target samples by itself, and a node is accepted if it is what came out."""

    name = "target-only"
    confident = True

    def scores(self, draft: Tensor, temperature: float, seed: int, position: int) -> Tensor:
        """Log-probabilities at the sampling temperature, less a constant."""
        return draft if temperature == 0 else draft / temperature

    def acceptance(
        self, target: Tensor, draft: Tensor, children: Sequence[int], temperature: float, seed: int, position: int
    ) -> list[float]:
        """The target's probability of each."""
        return distribution(target, temperature)[list(children)].tolist()


class RecursiveRejection:
    """Children sampled from the draft without replacement and tried in turn against the residual distribution (arXiv 2402.14160,
    2402.12374). The tree's shape must be fixed before the tokens are drawn: a shape that follows the tokens would bias the output.
    """

    name = "recursive rejection"
    confident = False

    def scores(self, draft: Tensor, temperature: float, seed: int, position: int) -> Tensor:
        """Logits with noise of the draft's own: the order of its largest is a sample without replacement."""
        own = seed ^ 0x9E3779B97F4A7C15
        return (
            draft if temperature == 0 else draft / temperature + gumbel([own], [position], len(draft), draft.device)[0]
        )

    def acceptance(
        self, target: Tensor, draft: Tensor, children: Sequence[int], temperature: float, seed: int, position: int
    ) -> list[float]:
        """Each child against what the target's distribution is after the earlier ones were rejected."""
        p, q = distribution(target, temperature), distribution(draft, temperature)
        left, chances = 1.0, []
        for child in children:
            accept = min(1.0, float(p[child] / q[child])) if q[child] > 0 else float(p[child] > 0)
            chances.append(left * accept)
            left *= 1.0 - accept
            p, q = _residual(p, q), _without(q, child)
        return chances


def _residual(p: Tensor, q: Tensor) -> Tensor:
    rest = (p - q).clamp(min=0)
    total = rest.sum()
    return rest / total if total > 0 else p


def _without(q: Tensor, token: int) -> Tensor:
    rest = q.index_fill(0, torch.tensor(token), 0.0)
    total = rest.sum()
    return rest / total if total > 0 else rest
