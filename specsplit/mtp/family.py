"""How families publish their MTP layers: what the tensors are called, and what is computed with them."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from specsplit.errors import LoadError

_LAYER: Final = "{layer}"


@dataclass(frozen=True)
class MtpFormula:
    """What families do differently in a step: state' = layer(proj([norm(embedding), norm(state)])), logits = lm_head(norm(state'))."""

    embedding_first: bool = True
    """Whether the embedding is the first half of proj's input."""
    normed_states: bool = True
    """Whether the next step reads the output of the final norm, not its input. A step that feeds itself always does."""
    final_norm: bool = True
    """Whether there is a norm in front of the LM head at all."""
    own_lm_head: bool = False
    """Whether every step has an LM head of its own; else it is the target's."""
    first_blank: bool = False
    """Whether the embedding of the first token that a step sees is replaced by zeros."""
    normed_features: bool = True
    """Whether the first step reads the target's last hidden state behind its final norm, as the LM head does, or in front of it."""


@dataclass(frozen=True)
class MtpFamily:
    """The names of a family's tensors, without their last part; `{layer}` stands for the number of a layer."""

    name: str
    """What messages call it."""
    token_norm: str
    hidden_norm: str
    proj: str
    final_norm: str
    """Empty: there is none."""
    block: str
    """The names of the decoder layer's own tensors begin with this and a dot."""
    formula: MtpFormula
    model_types: tuple[str, ...]
    """The `model_type` of targets that have such layers."""
    behind_target: bool = False
    """Whether layers are numbered on from the target's; else from 0."""
    copies: tuple[str, ...] = ()
    """Parts of the names of tensors that are copies of the target's, and are not read."""
    indexer: tuple[str, ...] = ()
    """Parts of the names of the tensors of an indexer, which chooses the tokens that the layer attends to. They are not read: the layer
    attends to all."""
    renames: tuple[tuple[str, str], ...] = ()
    """Within the decoder layer, the beginnings of names in transformers' and the published ones, where they differ."""
    lm_head: str = ""
    """Of a step; empty: it has none."""
    embeddings: str = ""
    """The tensor of embeddings that are used in the place of the target's; empty: the target's are."""

    def layers(self, names: Collection[str]) -> range:
        """The numbers of the MTP layers that tensors with these names belong to; empty: there are none. Raises LoadError for gaps."""
        numbers = sorted({number for name in names if (number := self._number(name)) is not None})
        layers = range(numbers[0], numbers[-1] + 1) if numbers else range(0)
        if list(layers) != numbers or (not self.behind_target and layers.start != 0):
            raise LoadError(
                f"MTP layers {numbers}: expected consecutive ones" + ("" if self.behind_target else " from 0")
            )
        return layers

    def recognises(self, names: Collection[str]) -> bool:
        """Whether there are MTP layers of this family among tensors with these names."""
        return any(self._number(name) is not None for name in names)

    def prefixes(self, layers: range) -> tuple[tuple[str, str], ...]:
        """Pairs of a prefix of names in `MtpHead`, whose steps are counted from 0, and the published one."""
        return tuple(
            (f"steps.{step}.{own}", published)
            for step, layer in enumerate(layers)
            for own, published in self._published(layer)
        )

    def scope(self, layers: range) -> str:
        """A pattern of the beginnings of all names that belong to these layers, whether they are known or not."""
        if not self.behind_target:
            return r"(?:model\.)?mtp[._]"
        return "|".join(rf"model\.layers\.{layer}\." for layer in layers)

    @property
    def ignored(self) -> str:
        """A pattern of names that are no part of the layers."""
        own = [f"^{re.escape(self.embeddings)}$"] if self.embeddings else []
        return "|".join([*own, *(rf"\.{re.escape(part)}\." for part in (*self.copies, *self.indexer)), r"rotary_emb\."])

    def _number(self, name: str) -> int | None:
        """The number of the MTP layer that a tensor belongs to; None: it is none of its own."""
        match = self._telling.match(name)
        return None if match is None else int(next(filter(None, match.groups())))

    @cached_property
    def _telling(self) -> re.Pattern[str]:
        """Names that tell an MTP layer, with its number, from the target's layers."""
        block = () if self.behind_target else (self.block,)
        names = (*block, self.token_norm, self.hidden_norm, self.proj, self.final_norm)
        numbered = (re.escape(f"{name}.").replace(re.escape(_LAYER), r"(\d+)") for name in names if _LAYER in name)
        return re.compile("|".join(numbered))

    def _published(self, layer: object) -> list[tuple[str, str]]:
        """Beginnings of names in a step of `MtpHead` and the published ones; the first that fits counts."""
        block = (("layer.block." + own, f"{self.block}.{published}") for own, published in (*self.renames, ("", "")))
        parts = {
            "token_norm.": self.token_norm,
            "hidden_norm.": self.hidden_norm,
            "proj.": self.proj,
            "final_norm.": self.final_norm,
            "lm_head.": self.lm_head,
        }
        named = [(own, f"{name}.") for own, name in parts.items() if name]
        return [(own, name.replace(_LAYER, str(layer))) for own, name in (*named, *block)]
