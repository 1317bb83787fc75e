"""Features out of hidden states: the tokens wanted, layers side by side, projected if the need says so, encoded. Tensors in, bytes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear

from specsplit.errors import Incompatible
from specsplit.features import FeatureFormat, FeatureNeed, Features
from specsplit.model.capture import Hidden
from specsplit.model.causal_lm import CausalLM
from specsplit.model.feature_codec import encode, format_of
from specsplit.model.heads.projection import projection_of
from specsplit_verifier.feed import Recipe


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """A matrix that a head's owner wants applied here, known by its digest."""

    weight: Tensor
    """[projected_size, feature width]"""
    digest: str

    @classmethod
    def load(cls, folder: Path, target: CausalLM) -> Projection:
        """That of the EAGLE-3 head in `folder`, as the target computes. Raises LoadError."""
        weight, digest = projection_of(folder)
        return cls(weight.to(target.device, target.model.dtype), digest)


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Tokens of one session in a forward whose features are wanted."""

    session: int
    recipe: Recipe
    first: int
    """Position of the first."""
    at: Sequence[int]
    """[n] indices into the T tokens of the forward, in order of position."""


class Extractor:
    """Knows the target's layers, width and dtype, and the one projection that this verifier applies, if any."""

    def __init__(self, target: CausalLM, projection: Projection | None = None) -> None:
        self._target = target
        self._projection = projection

    def recipe(self, need: FeatureNeed) -> Recipe:
        """How what a drafter needs is made here. Raises Incompatible, saying why, if it cannot be."""
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

    def extract(self, wanted: Sequence[Wanted], hidden: Hidden) -> list[tuple[int, Recipe, Features]]:
        """The features of all that is wanted: gathered, and copied from the device, once per recipe. No tokens give no features."""
        groups: dict[Recipe, list[Wanted]] = {}
        for want in wanted:
            if want.at:
                groups.setdefault(want.recipe, []).append(want)
        return [made for recipe, group in groups.items() for made in self._group(recipe, group, hidden)]

    def _group(self, recipe: Recipe, group: list[Wanted], hidden: Hidden) -> list[tuple[int, Recipe, Features]]:
        rows = self.rows(recipe, hidden, [index for want in group for index in want.at])
        data, scales = encode(rows, recipe.layout)
        token_bytes, scale_bytes = len(data) // len(rows), len(scales) // len(rows)
        made: list[tuple[int, Recipe, Features]] = []
        start = 0
        for want in group:
            stop = start + len(want.at)
            features = Features(
                want.first,
                len(want.at),
                data[start * token_bytes : stop * token_bytes],
                scales[start * scale_bytes : stop * scale_bytes],
            )
            made.append((want.session, recipe, features))
            start = stop
        return made

    @torch.inference_mode()
    def rows(self, recipe: Recipe, hidden: Hidden, at: Sequence[int]) -> Tensor:
        """Hidden states [T, hidden_size] by layer -> [len(at), width] in the target's dtype."""
        index = torch.tensor(at, dtype=torch.long, device=self._target.device)
        states = torch.cat([hidden[layer].index_select(0, index) for layer in recipe.layers], dim=1)
        if recipe.projection and self._projection is not None:
            return linear(states, self._projection.weight)
        return states
