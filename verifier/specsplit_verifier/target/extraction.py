"""Extraction of features from hidden states: of the wanted tokens, with layers side by side, projected if the need says so, encoded.

Tensors in; out come bytes that are made when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear

from specsplit.errors import Incompatible
from specsplit.features import FeatureFormat, FeatureNeed, Features
from specsplit.model.heads.projection import projection_of
from specsplit.model.layers.capture import Hidden
from specsplit.model.lm.causal_lm import CausalLM
from specsplit.model.tensors.feature_codec import format_of, pack, split
from specsplit.model.tensors.transfer import HostCopy, on_device, to_host
from specsplit_verifier.records.feed import Recipe


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """The projection of a head, which is applied here, with the digest that names it."""

    weight: Tensor
    """[projected_size, feature width]"""
    digest: str

    @classmethod
    def load(cls, folder: Path, target: CausalLM) -> Projection:
        """Load the projection of the EAGLE-3 head in `folder`, in the target's dtype. Raises LoadError."""
        weight, digest = projection_of(folder)
        return cls(weight.to(target.device, target.model.dtype), digest)


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Tokens of one session in a forward whose features are wanted."""

    session: int
    recipe: Recipe
    first: int
    """Position of the first of these tokens."""
    at: Sequence[int]
    """[n] indices into the T tokens of the forward, in order of position."""


LATE_TOKENS = 256
"""Forwards of so many tokens at most, whose features are made later on a CPU."""

Bytes: TypeAlias = NDArray[np.uint8]
Made: TypeAlias = tuple[int, Recipe, Features]
"""(session, recipe, features)"""


def by_recipe(wanted: Sequence[Wanted]) -> dict[Recipe, list[Wanted]]:
    """Group the wanted tokens by recipe; sessions without any are left out."""
    groups: dict[Recipe, list[Wanted]] = {}
    for want in wanted:
        if want.at:
            groups.setdefault(want.recipe, []).append(want)
    return groups


def cut(group: Sequence[Wanted], packed: Callable[[], Bytes], counts: Sequence[int]) -> Iterator[Made]:
    """Split packed features [m, bytes_per_token] of one recipe by session: of each so many tokens, from the front.

    One of which the count is 0 gets nothing. `packed` is asked when somebody asks for bytes.
    """
    start = 0
    for want, count in zip(group, counts, strict=True):
        if count:
            data, scales = split(packed, slice(start, start + count), want.recipe.layout)
            yield want.session, want.recipe, Features(want.first, count, data, scales)
        start += len(want.at)


def parted(groups: Sequence[Sequence[Wanted]], copy: HostCopy, count: Callable[[Wanted], int]) -> list[Made]:
    """Split the packed features of every group, which are being copied, by session: of each `count` tokens, from the front."""
    made: list[Made] = []
    for number, group in enumerate(groups):
        made += cut(group, partial(_array, copy, number), [count(want) for want in group])
    return made


def _array(copy: HostCopy, number: int) -> Bytes:
    return copy.arrays()[number]


class Extractor:
    """Knows the target's layers, width and dtype, and the one projection that this verifier applies, if any."""

    def __init__(self, target: CausalLM, projection: Projection | None = None) -> None:
        self._target = target
        self._projection = projection

    def recipe(self, need: FeatureNeed) -> Recipe:
        """Make the recipe of the features that a drafter needs. Raises Incompatible, saying why, if they cannot be made here."""
        self._target.capture.check(need.layers)
        layout = need.layout(self._target.hidden_size, self._format())
        if need.projection:
            self._check(need, layout.width)
        return Recipe(need.layers, need.projection, layout)

    def _format(self) -> FeatureFormat:
        try:
            return format_of(self._target.model.dtype)
        except ValueError as error:
            raise Incompatible(f"the target's hidden states cannot be sent: {error}") from error

    def _check(self, need: FeatureNeed, width: int) -> None:
        if self._projection is None:
            raise Incompatible(
                f"it wants features projected by {need.projection[:12]}, and this verifier projects none; "
                "set feature_projection to the folder of that head"
            )
        if self._projection.digest != need.projection:
            raise Incompatible(
                f"it wants features projected by {need.projection[:12]}, and this verifier projects by {self._projection.digest[:12]}; "
                "feature_projection has to be the folder of the head that the drafter serves"
            )
        shape = [width, replace(need, projection="").layout(self._target.hidden_size, FeatureFormat.FLOAT32).width]
        if list(self._projection.weight.shape) != shape:
            raise Incompatible(
                f"the projection is {list(self._projection.weight.shape)}, features of {need} here want {shape}"
            )

    def extract(self, wanted: Sequence[Wanted], hidden: Hidden) -> list[Made]:
        """Make the features of all wanted tokens, and begin to copy them to the host in one copy. No tokens give no features.

        On a CPU that copy is made when somebody asks for the bytes: who serialises them is not waited for, and a step is. Not so of many
        tokens, whose hidden states would be held until then, nor where they are projected, which takes time of whoever asks.
        """
        groups = by_recipe(wanted)
        if not groups:
            return []
        if self._may_be_late(hidden, groups):
            made = ((group, cache(partial(self._array, group, hidden))) for group in groups.values())
            return [each for group, late in made for each in cut(group, late, [len(want.at) for want in group])]
        copy = to_host([self._packed(group, hidden) for group in groups.values()], aside=True)
        return parted(list(groups.values()), copy, lambda want: len(want.at))

    def _may_be_late(self, hidden: Hidden, recipes: Iterable[Recipe]) -> bool:
        few = next(iter(hidden.values())).shape[0] <= LATE_TOKENS
        return few and self._target.device.type == "cpu" and not any(recipe.projection for recipe in recipes)

    def _array(self, group: Sequence[Wanted], hidden: Hidden) -> Bytes:
        """Packed features of one recipe, on a CPU."""
        return self._packed(group, hidden).numpy()

    def _packed(self, group: Sequence[Wanted], hidden: Hidden) -> Tensor:
        """Make all features of one recipe, as `packed` does."""
        index = on_device(np.concatenate([want.at for want in group]), self._target.device)
        return self.packed(group[0].recipe, hidden, index)

    def packed(self, recipe: Recipe, hidden: Hidden, index: Tensor) -> Tensor:
        """Features of tokens index [m] as they travel, uint8 [m, bytes_per_token] on the device."""
        return pack(self.rows(recipe, hidden, index), recipe.layout)

    @torch.inference_mode()
    def rows(self, recipe: Recipe, hidden: Hidden, index: Tensor) -> Tensor:
        """Hidden states [T, hidden_size] by layer -> [m, width] of tokens index [m], in the target's dtype."""
        states = torch.cat([hidden[layer].index_select(0, index) for layer in recipe.layers], dim=1)
        if recipe.projection and self._projection is not None:
            return linear(states, self._projection.weight)
        return states
