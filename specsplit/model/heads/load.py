"""Loading of a head from a local folder, in one of the published layouts, without conversion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from transformers import PretrainedConfig

from specsplit.errors import LoadError
from specsplit.model.attention.interface import NAME
from specsplit.model.attention.support import check_folder, refusing
from specsplit.model.heads.checkpoint import Checkpoint
from specsplit.model.heads.config import architecture, feature_layers, require_plain
from specsplit.model.heads.eagle import EagleHead
from specsplit.model.heads.eagle3 import Eagle3Head
from specsplit.model.heads.head import Head
from specsplit.model.heads.layouts import (
    Family,
    Layout,
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
from specsplit.mtp.families import family_among
from specsplit.text.json_file import read_json
from specsplit.values import DrafterKind

_EMBEDDINGS: Final = "embed_tokens.weight"
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
        source = _Source(folder, target, kind, dtype, device, attn_implementation, max_context)
        head, layout = _BUILDERS[source.family](source)
        load_weights(head, source.checkpoint, layout, source.dtype)
        if mesh is not None:
            head.shard(mesh)  # what others hold never reaches the device
        head.to(torch.device(device)).eval()
        if mesh is not None:
            mesh.assemble()  # the next thing that all do has a shorter limit
        if attn_implementation == NAME:
            head.requires_grad_(False)
            _ = head.geometry  # attention that is not supported is refused now, not at the first session
        return head


class _Source:
    """A head's folder, and how it is to be loaded."""

    def __init__(
        self,
        folder: Path,
        target: Path,
        kind: DrafterKind,
        dtype: str,
        device: str,
        attn_implementation: str,
        max_context: int | None,
    ) -> None:
        self.folder: Final = folder
        self.target: Final = target
        self.kind: Final = kind
        self.device: Final = device
        self.attn_implementation: Final = attn_implementation
        self.max_context: Final = max_context
        self.facts: Final = read_json(folder / "config.json")
        self.dtype: Final = self._dtype(dtype)
        self.checkpoint: Final = Checkpoint(folder)
        self.family: Final = family_of(folder, self.facts, self.checkpoint)
        if kind not in self.family.kinds:
            raise LoadError(
                f"model folder {folder} holds {self.family.value}, which runs as {' or '.join(self.family.kinds)}, not as {kind}"
            )

    @property
    def names(self) -> frozenset[str]:
        """The names of the tensors in the folder."""
        return self.checkpoint.names

    def target_embeddings(self, *, lm_head: bool = True) -> TargetEmbeddings:
        """Load the target's embeddings, and its LM head if asked for."""
        return TargetEmbeddings.load(
            self.target, lm_head=lm_head, dtype=self.dtype, device=self.device, max_context=self.max_context
        )

    def with_own_embeddings(self, target: TargetEmbeddings, width: int) -> TargetEmbeddings:
        """Put the folder's embeddings in the place of the target's. Raises LoadError if they are misshapen."""
        shape = (target.vocabulary.size, width)
        found = self.checkpoint.shapes([_EMBEDDINGS])[_EMBEDDINGS]
        if found != shape:
            raise LoadError(f"model folder {self.folder}: {_EMBEDDINGS} is {list(found)}, expected {list(shape)}")
        tensor = self.checkpoint.read([_EMBEDDINGS])[_EMBEDDINGS]
        return target.with_embeddings(tensor.to(torch.device(self.device), self.dtype))

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
    if family is not None:
        return family
    if "speculators_model_type" in facts:
        found = f"speculators_model_type {facts['speculators_model_type']!r}, expected eagle or eagle3"
    else:
        names = sorted(checkpoint.names)
        found = f"{len(names)} tensors, {', '.join(names[:3])} first; expected one of: {', '.join(Family)}"
    raise LoadError(f"model folder {folder} holds no head that is known: found {found}")


def _eagle(source: _Source) -> tuple[Head, Layout]:
    require_plain(source.facts)
    target, layout = source.target_embeddings(), eagle_layout(source.names)
    config = source.config(target, width=architecture(source.facts, source.max_context).hidden_size)
    with _META:
        return EagleHead(config, target, bias=layout.has_bias, **source.common()), layout


def _eagle3(source: _Source) -> tuple[Head, Layout]:
    require_plain(source.facts)
    facts, layout = source.facts, eagle3_layout(source.names)
    draft_vocab_size = facts.get("draft_vocab_size")
    own_lm_head = draft_vocab_size is not None or "lm_head.weight" in source.names
    target = source.target_embeddings(lm_head=not own_lm_head)
    config = source.config(
        target, width=facts.get("target_hidden_size") or architecture(facts, source.max_context).hidden_size
    )
    if _EMBEDDINGS in source.names:
        target = source.with_own_embeddings(target, config.hidden_size)
    with _META:
        head = Eagle3Head(
            config,
            target,
            layers=feature_layers(facts, target.num_layers),
            draft_vocab_size=draft_vocab_size,
            norm_before_residual=bool(facts.get("norm_before_residual")),
            own_lm_head=own_lm_head,
            bias=layout.has_bias,
            **source.common(),
        )
    return head, layout


def _mtp(source: _Source) -> tuple[Head, Layout]:
    family = family_among(source.facts, source.names)
    assert family is not None
    layers = family.layers(source.names)
    stated = source.facts.get("num_nextn_predict_layers", len(layers))
    if stated != len(layers):
        raise LoadError(f"model folder {source.folder} holds {len(layers)} MTP layers, its config.json says {stated}")
    recurrent = source.kind is DrafterKind.EAGLE
    if recurrent and len(layers) > 1:
        raise LoadError(
            f"model folder {source.folder} holds {len(layers)} MTP layers: run it as {DrafterKind.MULTI_LAYER_EAGLE}, not as eagle"
        )
    target = source.target_embeddings()
    if family.behind_target and layers.start != target.num_layers:
        raise LoadError(
            f"model folder {source.folder} has its first MTP layer at {layers.start}, expected it behind the target's "
            f"{target.num_layers} layers, at {target.num_layers}"
        )
    config = source.config(target, width=architecture(source.facts, source.max_context).hidden_size)
    if hasattr(
        config, "first_k_dense_replace"
    ):  # its layers stand behind the target's, the first few of which alone are dense
        config.first_k_dense_replace = max(0, config.first_k_dense_replace - target.num_layers)
    with _META:
        head = MtpHead(
            config,
            target,
            num_steps=len(layers),
            formula=family.formula,
            recurrent=recurrent,
            **source.common(),
        )
    return head, mtp_layout(family, layers)


_BUILDERS: Final[dict[Family, Callable[[_Source], tuple[Head, Layout]]]] = {
    Family.EAGLE: _eagle,
    Family.EAGLE3: _eagle3,
    Family.MTP: _mtp,
}
