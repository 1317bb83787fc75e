"""The weights of a draft model: compared with those of another revision, which are copied into them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specsplit.errors import Incompatible
from specsplit.model.layers.weights import Held, copy_tensors, first_difference
from specsplit.values import DrafterInfo


@dataclass(frozen=True)
class DraftWeights:
    """All tensors of a draft model, and what verifiers are told of it."""

    info: DrafterInfo
    tensors: Held

    def require_fit(self, other: DraftWeights) -> None:
        """Raise Incompatible, naming the first difference, unless the weights of `other` can be copied into these."""
        found, expected = (replace(each.info, model="") for each in (other, self))
        difference = "" if found == expected else f"it is for {found}, expected {expected}"
        if difference := difference or first_difference(self.tensors, other.tensors):
            raise Incompatible(f"the weights are of another model: {difference}; start the drafter anew for it")

    def copy_from(self, other: DraftWeights) -> None:
        """Take the numbers of `other`, which has to fit. No tensor changes its place, which captured graphs and kernels know."""
        copy_tensors(other.tensors, self.tensors)
