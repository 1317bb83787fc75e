"""The part of its target that a head shares: the embeddings, the LM head, and a few facts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import PretrainedConfig

from specsplit.errors import LoadError
from specsplit.model.attention.support import context_of
from specsplit.model.heads.checkpoint import Checkpoint
from specsplit.model.heads.config import architecture
from specsplit.model.heads.scaled import unscaled
from specsplit.text.json_file import read_json
from specsplit.text.vocabulary import vocabulary_of
from specsplit.values import Vocabulary

_EMBEDDINGS: Final = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "model.text_model.embed_tokens.weight",
    "model.word_embeddings.weight",
    "backbone.embeddings.weight",
    "gpt_neox.embed_in.weight",
)
_LM_HEADS: Final = ("lm_head.weight", "language_model.lm_head.weight", "embed_out.weight")
_EMBEDDING_SCALES: Final = ("embedding_multiplier",)
_LOGIT_SCALES: Final = ("logits_scaling", "logit_scale", "final_logit_softcapping")


class TargetEmbeddings(nn.Module):
    """The input and output embeddings of the target, frozen: a head neither trains nor saves them.

    embeddings [V, hidden_size]; lm_head [V, hidden_size], or None for a head with an LM head of its own.
    """

    def __init__(
        self,
        embeddings: Tensor,
        lm_head: Tensor | None,
        *,
        vocabulary: Vocabulary,
        hidden_size: int,
        num_layers: int,
        max_context: int,
    ) -> None:
        super().__init__()
        self.embeddings = nn.Parameter(embeddings, requires_grad=False)
        self.lm_head = None if lm_head is None else _linear(self.embeddings if lm_head is embeddings else lm_head)
        self.vocabulary: Final = vocabulary
        self.hidden_size: Final = hidden_size
        self.num_layers: Final = num_layers
        self.max_context: Final = max_context

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        lm_head: bool = True,
        own: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        max_context: int | None = None,
    ) -> TargetEmbeddings:
        """Read them from a target's folder, and no other tensors. lm_head: whether to read that too; it may be the embeddings themselves.
        own: a head's own embeddings [V, any width], which are taken in the place of the target's.
        max_context: tokens of a text that are served; None: all that the target takes.

        Raises LoadError if one is missing or misshapen, or the target does more with them than look up and multiply.
        """
        vocabulary = vocabulary_of(folder)
        config = architecture(read_json(folder / "config.json"), max_context)
        _require_unscaled(config, embeddings=own is None, lm_head=lm_head)
        checkpoint = Checkpoint(folder)
        # An LM head beside embeddings that the config calls tied is one of its own, if it differs: transformers ties nothing then.
        apart = lm_head and (not config.tie_word_embeddings or not checkpoint.names.isdisjoint(_LM_HEADS))
        embedded = own is None or (lm_head and not apart)
        names = [_find(_EMBEDDINGS, checkpoint)] if embedded else []
        if apart:
            names.append(_find(_LM_HEADS, checkpoint))
        shape = (vocabulary.size, config.hidden_size)
        for name, found in checkpoint.shapes(names).items():
            if found != shape:
                raise LoadError(f"model folder {folder}: {name} is {list(found)}, expected {list(shape)}")
        tensors = {name: unscaled(name, stored, checkpoint) for name, stored in checkpoint.read(names).items()}
        read = [tensors[name].to(torch.device(device), dtype) for name in names]
        return cls(
            read[0] if own is None else own,
            read[-1] if lm_head else None,
            vocabulary=vocabulary,
            hidden_size=config.hidden_size,
            num_layers=config.num_hidden_layers,
            max_context=context_of(config, max_context),
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens [...] -> [..., hidden_size]"""
        return embedding(tokens, self.embeddings)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., hidden_size], behind the norm -> [..., V]"""
        if self.lm_head is None:
            raise ValueError("this target was loaded without its LM head")
        return self.lm_head(hidden)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the embeddings."""
        return self.embeddings.dtype


def _linear(weight: Tensor) -> nn.Linear:
    """Make a frozen layer with this weight."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)
    return layer


def _find(candidates: Collection[str], checkpoint: Checkpoint) -> str:
    for name in candidates:
        if name in checkpoint.names:
            return name
    raise LoadError(f"model folder {checkpoint.folder} lacks {' (or '.join(candidates)}{')' * (len(candidates) - 1)}")


def _require_unscaled(config: PretrainedConfig, *, embeddings: bool, lm_head: bool) -> None:
    """Raise LoadError for a target that scales what is shared of it: its embeddings, its LM head."""
    facts: dict[str, Any] = config.to_dict()
    shared = (*(_EMBEDDING_SCALES if embeddings else ()), *(_LOGIT_SCALES if lm_head else ()))
    scaled = [name for name in shared if facts.get(name) not in (None, 1)]
    if scaled or (embeddings and config.model_type.startswith("gemma")):
        why = ", ".join(scaled) or "it scales its embeddings"
        raise LoadError(f"a head cannot share the embeddings or the LM head of a {config.model_type} target: {why}")
