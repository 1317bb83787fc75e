"""The names that the tensors of a head have in published checkpoints.

EAGLE      fc.*, layers.0.*                                  its authors, SpecForge, speculators
EAGLE-3    fc.*, midlayer.* or layers.0.*, norm, lm_head, d2t, t2d    its authors and SpecForge, or speculators and ModelOpt;
           a second layer is layers.1.*; norms of features are input_norm or fc_norm.{i}; P-EAGLE has mask_hidden
DFlash     fc, hidden_norm, layers.{i}.*, norm, at times midlayer.* for layers.0.*, encoder.fc, encoder.output_norm_enc; lm_head and d2t
           where it proposes fewer tokens than the target; DFlash 2 has convolutions in its layers, and candidate_selector
DSpark     besides markov_head.*, confidence_head.*
MTP        inside the target's checkpoint, as each family names them: `specsplit.mtp`
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from torch import Tensor

from specsplit.model.heads.block_config import is_dspark
from specsplit.mtp.families import family_among
from specsplit.mtp.family import MtpFamily
from specsplit.values import DrafterKind


class Family(StrEnum):
    """The families of checkpoints, by whose names they use."""

    EAGLE = "EAGLE"
    EAGLE3 = "EAGLE-3"
    MTP = "MTP layers"
    DFLASH = "DFlash"
    DSPARK = "DSpark"

    @property
    def kinds(self) -> tuple[DrafterKind, ...]:
        """The kinds of drafter that a head of this family can be run as."""
        return _KINDS[self]

    @property
    def drafts_blocks(self) -> bool:
        """Whether one forward drafts several tokens."""
        return self in (Family.DFLASH, Family.DSPARK)


_KINDS: Final[dict[Family, tuple[DrafterKind, ...]]] = {
    Family.EAGLE: (DrafterKind.EAGLE,),
    Family.EAGLE3: (DrafterKind.EAGLE3,),
    Family.MTP: (DrafterKind.MULTI_LAYER_EAGLE, DrafterKind.EAGLE),
    Family.DFLASH: (DrafterKind.DFLASH,),
    Family.DSPARK: (DrafterKind.DSPARK,),
}
SPECULATORS: Final = {
    "eagle": Family.EAGLE,
    "eagle3": Family.EAGLE3,
    "peagle": Family.EAGLE3,
    "dflash": Family.DFLASH,
    "dflash2": Family.DFLASH,
    "dspark": Family.DSPARK,
}
"""Families by the speculators_model_type of their config.json."""


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
        return SPECULATORS.get(facts["speculators_model_type"])
    if facts.get("dflash_config") or is_dspark(facts, names):
        return Family.DSPARK if is_dspark(facts, names) else Family.DFLASH
    if family_among(facts, names) is not None:
        return Family.MTP
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


def eagle3_layout(names: Collection[str], num_blocks: int = 1) -> Layout:
    """The layout of an EAGLE-3 head of so many layers. Its embeddings are the folder's if that has some (see `load_head`).

    vLLM gives every layer a hidden_norm, and uses that of the first alone.
    """
    first = "midlayer." if any(name.startswith("midlayer.") for name in names) else "layers.0."
    further = ((f"layer.further.{block - 1}.", f"layers.{block}.") for block in range(1, num_blocks))
    return Layout(
        Family.EAGLE3,
        (("layer.block.", first), *further, ("fusion.", "")),
        ignored=r"^(t2d$|embed_tokens\.|layers\.[1-9]\d*\.hidden_norm\.)|rotary_emb\.",
        has_bias="fc.bias" in names,
    )


def block_layout(family: Family, names: Collection[str]) -> Layout:
    """The layout of a block drafter."""
    first = "midlayer." if any(name.startswith("midlayer.") for name in names) else "layers.0."
    encoder = any(name.startswith("encoder.fc.") for name in names)
    return Layout(
        family,
        (
            ("body.layers.0.", first),
            ("body.", ""),
            ("choice.", ""),
            *((("fc.", "encoder.fc."), ("hidden_norm.", "encoder.output_norm_enc.")) if encoder else ()),
        ),
        ignored=r"^(t2d$|embed_tokens\.)|rotary_emb\.",
    )


def mtp_layout(family: MtpFamily, layers: range) -> Layout:
    """The layout of these MTP layers of a family. Their copies of embeddings and LM head are ignored."""
    return Layout(Family.MTP, family.prefixes(layers), ignored=family.ignored, scope=family.scope(layers))
