"""The names that the tensors of a head have in published checkpoints.

EAGLE      fc.*, layers.0.*                                  its authors, SpecForge, speculators
EAGLE-3    fc.*, midlayer.* or layers.0.*, norm, lm_head, d2t, t2d    its authors and SpecForge, or speculators
MiMo       model.mtp_layers.{i}.*                            inside the target's checkpoint (github.com/XiaomiMiMo/MiMo)
DeepSeek   model.layers.{L + i}.*                            inside the target's, behind its L layers (DeepSeek-V3, GLM-4.5)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from torch import Tensor

from specsplit.errors import LoadError
from specsplit.values import DrafterKind


class Family(StrEnum):
    """The families of checkpoints, by whose names they use."""

    EAGLE = "EAGLE"
    EAGLE3 = "EAGLE-3"
    MIMO = "MTP layers as MiMo names them"
    DEEPSEEK = "MTP layers as DeepSeek names them"

    @property
    def kinds(self) -> tuple[DrafterKind, ...]:
        """The kinds of drafter that a head of this family can be run as."""
        return _KINDS[self]


_MTP_KINDS: Final = (DrafterKind.MULTI_LAYER_EAGLE, DrafterKind.EAGLE)
_KINDS: Final[dict[Family, tuple[DrafterKind, ...]]] = {
    Family.EAGLE: (DrafterKind.EAGLE,),
    Family.EAGLE3: (DrafterKind.EAGLE3,),
    Family.MIMO: _MTP_KINDS,
    Family.DEEPSEEK: _MTP_KINDS,
}
_MIMO_LAYER: Final = re.compile(r"model\.mtp_layers\.(\d+)\.")
_DEEPSEEK_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.(?:eh_proj|enorm|hnorm|shared_head)\.")
_MIMO_PARTS: Final = {
    "token_norm": "token_layernorm",
    "hidden_norm": "hidden_layernorm",
    "proj": "input_proj",
    "final_norm": "final_layernorm",
}
_DEEPSEEK_PARTS: Final = {
    "token_norm": "enorm",
    "hidden_norm": "hnorm",
    "proj": "eh_proj",
    "final_norm": "shared_head.norm",
}


@dataclass(frozen=True)
class Layout:
    """The names of one head's tensors: pairs of a prefix in our modules and the published one; and which tensors are ignored."""

    family: Family
    prefixes: tuple[tuple[str, str], ...]
    ignored: str
    """Names in `scope` that match this are ignored: they are the target's own, or can be derived."""
    scope: str = ""
    """Names that match this belong to the head: one of them left over is an error."""
    has_bias: bool = False
    """True if the checkpoint has an fc.bias."""

    def published(self, own: str) -> str:
        """Return the published name of one of our tensors."""
        for prefix, published in self.prefixes:
            if own.startswith(prefix):
                return published + own[len(prefix) :]
        return own

    def pieces(self, own: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """List the published names of one of our tensors, each with the view that it names: experts are published one by one."""
        name = self.published(own)
        stem, _, last = name.rpartition(".")
        if not stem.endswith("experts") or tensor.ndim != 3:
            yield name, tensor
            return
        for expert, matrix in enumerate(tensor.unbind()):
            if last == "gate_up_proj":
                gate, up = matrix.chunk(2)
                yield f"{stem}.{expert}.gate_proj.weight", gate
                yield f"{stem}.{expert}.up_proj.weight", up
            else:
                yield f"{stem}.{expert}.{last}.weight", matrix

    def left_over(self, names: Collection[str], used: Collection[str]) -> list[str]:
        """List the names that should be this head's and are not used."""
        return sorted(
            name for name in set(names) - set(used) if re.match(self.scope, name) and not re.search(self.ignored, name)
        )


def recognise(names: Collection[str], facts: dict[str, Any]) -> Family | None:
    """Recognise the family of a layout by config.json and the names of the tensors; None: it is of no known family."""
    if "speculators_model_type" in facts:
        return {"eagle": Family.EAGLE, "eagle3": Family.EAGLE3}.get(facts["speculators_model_type"])
    if any(_MIMO_LAYER.match(name) for name in names):
        return Family.MIMO
    if any(_DEEPSEEK_LAYER.match(name) for name in names):
        return Family.DEEPSEEK
    if any(name.startswith("midlayer.") for name in names) or {"layers.0.hidden_norm.weight", "d2t"} & set(names):
        return Family.EAGLE3
    if any(name.startswith(("layers.0.", "fc.")) for name in names):
        return Family.EAGLE
    return None


def eagle_layout(names: Collection[str]) -> Layout:
    """The layout of an EAGLE head. Its LM head and embeddings are the target's; copies in the folder are ignored."""
    return Layout(
        Family.EAGLE,
        (("layer.block.", "layers.0."),),
        ignored=r"^(lm_head|embed_tokens)\.|rotary_emb\.",
        has_bias="fc.bias" in names,
    )


def eagle3_layout(names: Collection[str]) -> Layout:
    """The layout of an EAGLE-3 head. Its embeddings are the folder's if that has some (see `load_head`)."""
    block = "layers.0." if any(name.startswith("layers.") for name in names) else "midlayer."
    return Layout(
        Family.EAGLE3,
        (("layer.block.", block),),
        ignored=r"^(t2d$|embed_tokens\.)|rotary_emb\.",
        has_bias="fc.bias" in names,
    )


def mimo_layout(num_steps: int) -> Layout:
    """The layout of MTP layers as MiMo names them: all of them, counted from 0."""
    prefixes = _step_prefixes(_MIMO_PARTS, [f"model.mtp_layers.{step}" for step in range(num_steps)])
    return Layout(Family.MIMO, prefixes, ignored=r"rotary_emb\.", scope=r"model\.mtp_layers\.")


def deepseek_layout(first: int, num_steps: int) -> Layout:
    """The layout of MTP layers as DeepSeek names them, counted from `first`. Their copies of embeddings and LM head are ignored."""
    layers = range(first, first + num_steps)
    prefixes = _step_prefixes(_DEEPSEEK_PARTS, [f"model.layers.{layer}" for layer in layers])
    scope = rf"model\.layers\.({'|'.join(map(str, layers))})\."
    return Layout(Family.DEEPSEEK, prefixes, ignored=r"\.(embed_tokens|shared_head\.head)\.|rotary_emb\.", scope=scope)


def mtp_layers(family: Family, names: Collection[str]) -> range:
    """Find the numbers of the MTP layers that the tensors name. Raises LoadError unless they are consecutive."""
    pattern = _MIMO_LAYER if family is Family.MIMO else _DEEPSEEK_LAYER
    numbers = sorted({int(match[1]) for name in names if (match := pattern.match(name))})
    layers = range(numbers[0], numbers[-1] + 1)
    if list(layers) != numbers or (family is Family.MIMO and layers.start != 0):
        raise LoadError(
            f"MTP layers {numbers}: expected consecutive ones" + (" from 0" if family is Family.MIMO else "")
        )
    return layers


def _step_prefixes(parts: dict[str, str], published: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple(
        pair
        for step, prefix in enumerate(published)
        for pair in (
            *((f"steps.{step}.{own}.", f"{prefix}.{name}.") for own, name in parts.items()),
            (f"steps.{step}.layer.block.", f"{prefix}."),
        )
    )
