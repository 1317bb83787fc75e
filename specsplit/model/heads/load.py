"""Loading of a head from a local folder, in one of the published layouts, without conversion."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PretrainedConfig

from specsplit.errors import LoadError
from specsplit.model.attention.interface import NAME
from specsplit.model.attention.support import check_folder, refusing
from specsplit.model.heads.block_config import BlockConfig
from specsplit.model.heads.block_head import MASK_EMBEDDING, BlockHead
from specsplit.model.heads.blocks import block_config
from specsplit.model.heads.checkpoint import Checkpoint
from specsplit.model.heads.config import architecture, require_one_layer
from specsplit.model.heads.eagle import EagleHead
from specsplit.model.heads.eagle3 import Eagle3Head
from specsplit.model.heads.eagle3_config import MASK, Eagle3Config
from specsplit.model.heads.head import Head
from specsplit.model.heads.known_keys import BLOCK_READ, EAGLE3_READ, EAGLE_READ, require_known, tell_of_unread
from specsplit.model.heads.layouts import (
    SPECULATORS,
    Family,
    Layout,
    block_layout,
    eagle3_layout,
    eagle_layout,
    mtp_layout,
    recognise,
)
from specsplit.model.heads.mtp import MtpHead
from specsplit.model.heads.target import TargetEmbeddings
from specsplit.model.heads.weights import load_weights
from specsplit.model.layers.sharded import TensorMesh
from specsplit.model.tensors.dtypes import AUTO, dtype_of, said_by
from specsplit.mtp.families import REFUSED, family_among, kinds_of
from specsplit.text.json_file import read_json
from specsplit.values import DrafterKind

_log: Final = logging.getLogger(__name__)
_EMBEDDINGS: Final = "embed_tokens.weight"
_USUAL_CHOICE: Final = 2048
"""Tokens that an indexer chooses where config.json says nothing."""
_META: Final = torch.device("meta")
"""Heads are built of shapes first, so that nothing is allocated for the checkpoint to replace."""


def load_head(
    folder: Path,
    target: Path,
    kind: DrafterKind,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    attn_implementation: str = NAME,
    mesh: TensorMesh | None = None,
    max_context: int | None = None,
) -> Head:
    """Load the head in `folder`, and from its target's folder the embeddings that it shares; with a `mesh`, this rank's part of the head.

    kind eagle on a folder of one MTP layer runs that layer recurrently (SGLang's NEXTN) on its normed states.
    dtype: "float32", "bfloat16", "float16" or "auto" (as in config.json). attn_implementation: other than ours to train. max_context:
    tokens of a text that it drafts for; None: all that its target takes. Raises LoadError for what cannot be loaded, naming every tensor
    that is missing, left over or misshapen, or that cannot be shared out, and RankLost.
    """
    for each in (folder, target):
        check_folder(each)
    with refusing(f"the head in {folder} cannot be loaded for the target in {target}"):
        source = _Source(folder, target, dtype, device, attn_implementation, max_context)
        source.require_runs_as(kind)
        head, layout = _BUILDERS[source.family](source, kind)
        load_weights(head, source.checkpoint, layout, source.dtype)
        source.warn_of_reach(head.shape.max_context, head.target.max_context)
        if mesh is not None:
            head.shard(mesh)  # what others hold never reaches the device
        head.to(torch.device(device)).eval()
        if mesh is not None:
            mesh.assemble()  # the next thing that all do has a shorter limit
        if attn_implementation == NAME:
            head.requires_grad_(False)
            _ = head.geometries  # attention that is not supported is refused now, not at the first session
        return head


def load_block_head(
    folder: Path,
    target: Path,
    kind: DrafterKind | None = None,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    attn_implementation: str = NAME,
    max_context: int | None = None,
) -> BlockHead:
    """Load the block drafter in `folder`, DFlash, DFlash 2 or DSpark, as `load_head` loads others. kind: None: either. Raises LoadError."""
    for each in (folder, target):
        check_folder(each)
    with refusing(f"the block drafter in {folder} cannot be loaded for the target in {target}"):
        source = _Source(folder, target, dtype, device, attn_implementation, max_context)
        if not source.family.drafts_blocks:
            raise LoadError(f"model folder {folder} holds {source.family.value}, which is no block drafter")
        if kind is not None:
            source.require_runs_as(kind)
        head, layout = _block(source)
        load_weights(head, source.checkpoint, layout, source.dtype)
        _take_mask_embedding(head, folder)
        source.warn_of_reach(head.shape.max_context, head.target.max_context)
        head.to(torch.device(device)).eval()
        return head.requires_grad_(attn_implementation != NAME)


class _Source:
    """A head's folder, and how it is to be loaded."""

    def __init__(
        self,
        folder: Path,
        target: Path,
        dtype: str,
        device: str,
        attn_implementation: str,
        max_context: int | None,
    ) -> None:
        self.folder: Final = folder
        self.target: Final = target
        self.device: Final = device
        self.attn_implementation: Final = attn_implementation
        self.max_context: Final = max_context
        self.facts: Final = read_json(folder / "config.json")
        self.dtype: Final = self._dtype(dtype)
        self.checkpoint: Final = Checkpoint(folder)
        self.family: Final = family_of(folder, self.facts, self.checkpoint)

    def require_runs_as(self, kind: DrafterKind) -> None:
        """Raise LoadError if what is in the folder does not run as this kind."""
        if kind not in self.family.kinds:
            runs = f"which runs as {' or '.join(self.family.kinds)}, not as {kind}"
            raise LoadError(f"model folder {self.folder} holds {self.family.value}, {runs}")

    def warn_of_reach(self, own: int, served: int) -> None:
        """Say in the log if the head was made for shorter texts than its target is served with."""
        if own < served:
            _log.warning(
                "the head in %s was made for texts of %d tokens (max_position_embeddings), and its target is served with %d: "
                "behind the first %d tokens of a text it drafts nothing",
                self.folder,
                own,
                served,
                own,
            )

    def warn_of_indexer(self, served: int) -> None:
        """Say in the log if a text as long as the target is served with has more tokens than an indexer would choose."""
        chosen = self.facts.get("index_topk", _USUAL_CHOICE)
        if chosen < served:
            _log.warning(
                "the MTP layers in %s attend to all tokens, where those of the release attend to %d that an indexer chooses (index_topk): "
                "behind the first %d tokens of a text, of %d that its target is served with, drafts may be worse",
                self.folder,
                chosen,
                chosen,
                served,
            )

    @property
    def names(self) -> frozenset[str]:
        """The names of the tensors in the folder."""
        return self.checkpoint.names

    def target_embeddings(self, *, lm_head: bool = True, own: Tensor | None = None) -> TargetEmbeddings:
        """Load the target's embeddings, or take the head's `own` in their place, and the target's LM head if asked for."""
        return TargetEmbeddings.load(
            self.target, lm_head=lm_head, own=own, dtype=self.dtype, device=self.device, max_context=self.max_context
        )

    def own_embeddings(self, name: str = _EMBEDDINGS) -> Tensor | None:
        """Read the embeddings that lie in the head's folder; None: there are none."""
        if name not in self.names:
            return None
        return self.checkpoint.read([name])[name].to(torch.device(self.device), self.dtype)

    def require_embeddings(self, target: TargetEmbeddings, width: int, name: str = _EMBEDDINGS) -> None:
        """Raise LoadError if the embeddings of the folder are misshapen."""
        shape, found = [target.vocabulary.size, width], list(target.embeddings.shape)
        if name in self.names and found != shape:
            raise LoadError(f"model folder {self.folder}: {name} is {found}, expected {shape}")

    def _dtype(self, name: str) -> torch.dtype:
        """Look up a dtype: with auto the head's own, or its target's if the head names none."""
        if name != AUTO:
            return dtype_of(name)
        return said_by({str(self.folder): self.facts, str(self.target): read_json(self.target / "config.json")})

    def common(self) -> dict[str, Any]:
        """Keywords that every head takes."""
        return {"model": self.folder.resolve().name, "attn_implementation": self.attn_implementation}

    def config(self, target: TargetEmbeddings, *, width: int | None) -> PretrainedConfig:
        """Read the config of the decoder layer. Raises LoadError if the head is made for another target: other tokens, or another width."""
        config = architecture(self.facts, self.max_context)
        if "max_position_embeddings" not in (self.facts.get("transformer_layer_config") or self.facts):
            config.max_position_embeddings = (
                target.max_context
            )  # transformers has a number of its own for who says none
        wrong: list[str] = []
        if config.vocab_size != target.vocabulary.size:
            wrong.append(f"a vocabulary of {config.vocab_size} tokens, the target has {target.vocabulary.size}")
        if width is not None and width != target.hidden_size:
            wrong.append(f"hidden states of width {width}, the target's have {target.hidden_size}")
        if wrong:
            raise LoadError(
                f"the head in {self.folder} is not for the target in {self.target}: it is for {' and '.join(wrong)}"
            )
        return config


def family_of(folder: Path, facts: dict[str, Any], checkpoint: Checkpoint) -> Family:
    """Recognise the family of a folder's layout. Raises LoadError, saying what was found, for a layout of no known family."""
    family = recognise(checkpoint.names, facts)
    refused = sorted(kinds_of(facts) & REFUSED.keys()) if family in (None, Family.MTP) else []
    if refused:
        raise LoadError(f"the MTP layers of {refused[0]} are not supported: {REFUSED[refused[0]]}")
    if family is not None:
        return family
    if "speculators_model_type" in facts:
        found = f"speculators_model_type {facts['speculators_model_type']!r}, expected {' or '.join(SPECULATORS)}"
    else:
        names = sorted(checkpoint.names)
        found = f"{len(names)} tensors, {', '.join(names[:3])} first; expected one of: {', '.join(Family)}"
    raise LoadError(f"model folder {folder} holds no head that is known: found {found}")


def _eagle(source: _Source, kind: DrafterKind) -> tuple[Head, Layout]:
    require_one_layer(source.facts)
    target, layout = source.target_embeddings(), eagle_layout(source.names)
    config = source.config(target, width=architecture(source.facts, source.max_context).hidden_size)
    with _META:
        head = EagleHead(config, target, bias=layout.has_bias, **source.common())
    require_known(source.folder, source.facts, config, EAGLE_READ)
    return head, layout


def _eagle3(source: _Source, kind: DrafterKind) -> tuple[Head, Layout]:
    borrowed = source.names.isdisjoint({"d2t", "lm_head.weight"})
    target = source.target_embeddings(lm_head=borrowed, own=source.own_embeddings())
    said = Eagle3Config.read(source.facts, source.names, target.num_layers)
    width = said.target_hidden_size or architecture(source.facts, source.max_context).hidden_size
    config = said.of_layers(source.config(target, width=width))
    source.require_embeddings(target, config.hidden_size)
    if said.variant.mask_token is not None and said.variant.mask_token >= target.vocabulary.size:
        raise LoadError(
            f"the head in {source.folder}: its mask is token {said.variant.mask_token} of {target.vocabulary.size}"
        )
    layout = eagle3_layout(source.names, said.num_blocks)
    few = said.draft_vocab_size not in (None, target.vocabulary.size)
    tables = few or "d2t" in source.names
    with _META:
        head = Eagle3Head(
            config,
            target,
            layers=said.layers,
            num_blocks=said.num_blocks,
            draft_vocab_size=said.draft_vocab_size if tables else None,
            variant=said.variant,
            own_lm_head=few or not borrowed,
            bias=layout.has_bias,
            **source.common(),
        )
    if MASK in source.names:
        head.fusion.lay_mask(source.checkpoint.shapes([MASK])[MASK])
    require_known(source.folder, source.facts, config, EAGLE3_READ)
    return head, layout


def _block(source: _Source) -> tuple[BlockHead, Layout]:
    own_lm_head = "lm_head.weight" in source.names
    target = source.target_embeddings(lm_head=not own_lm_head, own=source.own_embeddings())
    said = BlockConfig.read(source.facts, source.names, target.num_layers)
    width = said.target_hidden_size or architecture(source.facts, source.max_context).hidden_size
    config = source.config(target, width=width)
    if config.model_type != "qwen3":
        raise LoadError(f"a block drafter of {config.model_type} layers is not supported: expected those of qwen3")
    source.require_embeddings(target, config.hidden_size)
    if said.mask_token >= target.vocabulary.size:
        raise LoadError(f"its mask is token {said.mask_token} of {target.vocabulary.size}")
    whole = said.draft_vocab_size in (None, target.vocabulary.size) and "d2t" not in source.names
    if not whole and not own_lm_head:
        raise LoadError(
            f"model folder {source.folder} lacks lm_head.weight, which a drafter of {said.draft_vocab_size} tokens needs"
        )
    with _META:
        head = BlockHead(said, config, target, whole_vocabulary=whole, own_lm_head=own_lm_head, **source.common())
        if MASK_EMBEDDING in source.names:
            shape = source.checkpoint.shapes([MASK_EMBEDDING])[MASK_EMBEDDING]
            head.mask_embedding = torch.nn.Parameter(torch.empty(shape))
    require_known(source.folder, source.facts, config, BLOCK_READ)
    return head, block_layout(source.family, source.names)


def _take_mask_embedding(head: BlockHead, folder: Path) -> None:
    """Take the mask's embedding out of the file of its own that some folders have. Raises LoadError for one of another width, or mask."""
    file, found = folder / f"{MASK_EMBEDDING}.pt", head.mask_embedding
    if file.is_file():
        stored: Any = torch.load(file, map_location="cpu", weights_only=True)
        if isinstance(stored, dict):
            if stored.get("mask_token_id", head.said.mask_token) != head.said.mask_token:
                raise LoadError(
                    f"{file} is of token {stored['mask_token_id']}, and the mask of config.json is {head.said.mask_token}"
                )
            stored = stored["embedding"]
        found = stored.to(head.dtype)
    if found is None:
        return
    if found.numel() != head.config.hidden_size:
        raise LoadError(f"{MASK_EMBEDDING} has {found.numel()} numbers, expected {head.config.hidden_size}")
    head.mask_embedding = torch.nn.Parameter(found.detach().flatten())


def _mtp(source: _Source, kind: DrafterKind) -> tuple[Head, Layout]:
    family = family_among(source.facts, source.names)
    assert family is not None
    layers = family.layers(source.names)
    _require_stated(source, len(layers))
    tell_of_unread(source.folder, source.facts)
    recurrent = kind is DrafterKind.EAGLE
    if recurrent and len(layers) > 1:
        raise LoadError(
            f"model folder {source.folder} holds {len(layers)} MTP layers: run it as {DrafterKind.MULTI_LAYER_EAGLE}, not as eagle"
        )
    own = source.own_embeddings(family.embeddings) if family.embeddings else None
    if family.embeddings and own is None:
        raise LoadError(f"model folder {source.folder} lacks {family.embeddings}, the embeddings of its MTP layers")
    target = source.target_embeddings(lm_head=not family.formula.own_lm_head, own=own)
    if family.behind_target and layers.start != target.num_layers:
        raise LoadError(
            f"model folder {source.folder} has its first MTP layer at {layers.start}, expected it behind the target's "
            f"{target.num_layers} layers, at {target.num_layers}"
        )
    if own is not None:
        source.require_embeddings(target, target.hidden_size, family.embeddings)
    config = source.config(target, width=architecture(source.facts, source.max_context).hidden_size)
    if family.indexer:
        source.warn_of_indexer(target.max_context)
    with _META:
        head = MtpHead(
            [block_config(config, source.facts, step) for step in range(len(layers))],
            target,
            formula=family.formula,
            recurrent=recurrent,
            **source.common(),
        )
    return head, mtp_layout(family, layers)


def _require_stated(source: _Source, found: int) -> None:
    """Raise LoadError unless there are as many MTP layers as config.json says, if it says so, and they use the target's embeddings."""
    for facts in (source.facts, source.facts.get("text_config") or {}):
        if facts.get("mtp_use_dedicated_embeddings"):
            raise LoadError(
                f"model folder {source.folder} says mtp_use_dedicated_embeddings: MTP layers with embeddings of their own are not "
                "supported for this kind of target"
            )
        for name in ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers"):
            if facts.get(name, found) not in (found, None):
                raise LoadError(
                    f"model folder {source.folder} holds {found} MTP layers, its config.json says {facts[name]}"
                )


_BUILDERS: Final[dict[Family, Callable[[_Source, DrafterKind], tuple[Head, Layout]]]] = {
    Family.EAGLE: _eagle,
    Family.EAGLE3: _eagle3,
    Family.MTP: _mtp,
}
