"""Layers by what FlashInfer's wrappers are told of them: layers of one kind are served by the same plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from specsplit.model.pages.geometry import NO_ATTENTION, Geometry, Layer


class Kinds:
    """The kinds of a model's layers. Layers without attention are of none."""

    def __init__(self, geometry: Geometry) -> None:
        # What sinks change is computed from what a wrapper gives (`with_sinks`), so a plan knows nothing of them.
        kinds = [None if layer == NO_ATTENTION else replace(layer, sinks=False) for layer in geometry.layers]
        self.each: Final = tuple(dict.fromkeys(kind for kind in kinds if kind is not None))
        """Every kind that there is, once: a layer that stands for all of it."""
        self.spans: Final = tuple(dict.fromkeys(kind.span for kind in self.each))
        """Every span that one of them has, once."""
        self.of_layer: Final = tuple(-1 if kind is None else self.each.index(kind) for kind in kinds)
        """By layer, the index of its kind in `each`; -1 for one without attention."""

    def example(self, kind: Layer) -> int:
        """The first layer that is of a kind."""
        return self.of_layer.index(self.each.index(kind))
