"""Tiny block drafters with random weights, and what they must propose, computed block by block without a paged context."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen3Config

from specsplit.features import LAST
from specsplit.model.attention.interface import tokens_first
from specsplit.model.heads import BlockConfig, BlockHead, BlockSight
from specsplit.model.heads.block_config import ConvConfig, MarkovConfig, SelectorConfig
from specsplit.model.heads.layouts import Family, block_layout
from specsplit.values import DrafterKind
from tests.drafter.head_toys import ends, features_of

MASK: Final = 31
SIZE: Final = 6
_PLAIN: Final = BlockConfig(
    layers=(0, 1, LAST), size=SIZE, mask_token=MASK, from_anchor=False, sights=(BlockSight(), BlockSight())
)
_SPARK: Final = replace(
    _PLAIN,
    kind=DrafterKind.DSPARK,
    from_anchor=True,
    markov=MarkovConfig(4),
    confidence=True,
    confidence_with_markov=True,
)
BLOCKS: Final[Mapping[str, BlockConfig]] = {
    "dflash": _PLAIN,
    "dflash-windows": replace(_PLAIN, sights=(BlockSight(3, causal=True), BlockSight())),
    "dflash-few-tokens": replace(_PLAIN, draft_vocab_size=24, from_anchor=True),
    "dflash2": replace(_PLAIN, conv=ConvConfig(2, 8), selector=SelectorConfig(4, 8)),
    "dspark": _SPARK,
    "dspark-rnn": replace(_SPARK, from_anchor=False, markov=MarkovConfig(4, "rnn"), confidence=False),
}


def block_head(name: str, **changes: Any) -> BlockHead:
    """With random weights, always the same; large enough that every token of the context matters. changes: of what its config says."""
    said = replace(BLOCKS[name], **changes)
    config = Qwen3Config(
        vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, max_position_embeddings=128, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(9)
        few = said.draft_vocab_size is not None
        head = BlockHead(said, config, ends(), whole_vocabulary=not few, own_lm_head=few, model="tiny-blocks")
        for parameter in head.parameters():
            if parameter.requires_grad and parameter.ndim > 1:
                parameter.data.normal_(std=parameter.shape[-1] ** -0.5)
    if few:
        head.set_draft_tokens(torch.arange(4, 28))
    return head.eval().requires_grad_(False)


def write_block_head(head: BlockHead, folder: Path) -> None:
    """Write one of the whole vocabulary whose layers see everything, as speculators does."""
    said, facts = head.said, dict[str, Any]()
    if said.markov is not None:
        facts = {"markov_rank": said.markov.rank, "markov_head_type": said.markov.kind}
        facts |= {"enable_confidence_head": said.confidence, "confidence_head_with_markov": said.confidence_with_markov}
    facts |= {
        "speculators_model_type": said.kind.value,
        "transformer_layer_config": {**head.config.to_dict(), "vocab_size": head.target.vocabulary.size},
        "aux_hidden_state_layer_ids": list(said.layers),
        "block_size": said.size,
        "mask_token_id": said.mask_token,
        "sample_from_anchor": said.from_anchor,
    }
    family = Family.DFLASH if said.markov is None else Family.DSPARK
    layout = block_layout(family, ())
    (folder / "config.json").write_text(json.dumps(facts))
    save_file({layout.published(name): each for name, each in head.own_tensors().items()}, folder / "model.safetensors")


class OneBlock:
    """Attention of one block to keys and values that are there as a whole (a ForwardBatch)."""

    def __init__(self, sights: Sequence[BlockSight], context: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._sights = sights
        self._context = context

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        """See ForwardBatch."""
        sight, window = self._sights[layer], self._sights[layer].window or 1 << 20
        keys, values = (
            torch.cat([before[-window:], tokens_first(own)]).transpose(0, 1)[None]
            for before, own in zip(self._context[layer], (key, value), strict=True)
        )
        length = query.shape[2]
        seen = torch.ones(length, keys.shape[2], dtype=torch.bool)
        if sight.causal:
            seen[:, -length:] = torch.ones(length, length, dtype=torch.bool).tril()
        out = scaled_dot_product_attention(query, keys, values, attn_mask=seen, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2)


class BlockReference:
    """What a drafter says behind a node, given the tokens of the levels below it that were chosen."""

    def __init__(self, head: BlockHead) -> None:
        self.head: Final = head
        self._hidden = lru_cache(4096)(self._computed)

    def logits(
        self, committed: Sequence[int], path: Sequence[int], chosen: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [V] behind the last of `chosen`, tokens below a node whose tokens from below the root are `path`, and the confidence."""
        head = self.head
        hidden, last = self._hidden(tuple(committed), tuple(path))
        memory: Tensor | None = None
        logits = confidence = None
        for own, before in zip(hidden.unsqueeze(1), [last, *chosen], strict=False):
            token = torch.tensor([before])
            logits, memory = head.choice.conditioned(head.draft_logits(own), own, token, memory)
            confidence = head.choice.confidence(own, token)
        assert logits is not None
        return head.in_target(logits)[0], confidence

    def _computed(self, committed: tuple[int, ...], path: tuple[int, ...]) -> tuple[Tensor, int]:
        """Hidden states [D, W] of a node's block by level, and the node's token."""
        head, said = self.head, self.head.said
        root = len(committed) - 1
        features = features_of(committed[:-1], said.layers)
        context = head.keys_values(head.fuse(features), torch.arange(root))
        shown = min(len(path), 4, (said.size - 1) // 2)
        known = [committed[-1], *path][-(shown + 1) :]
        tokens = torch.tensor([*known, *[said.mask_token] * (said.size - 1 - shown)])
        positions = root + len(path) - shown + torch.arange(said.size)
        hidden = head(tokens, positions, said.size, OneBlock(said.sights, context))
        return hidden[shown + (0 if said.from_anchor else 1) :], known[-1]


def raw_of(perturbed: Tensor, confidence: Tensor | None, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest tokens [count] of perturbed logits [V], and the raw log-probabilities that they are to have."""
    best = perturbed.log_softmax(-1).topk(count)
    raw = best.values.double()
    if confidence is not None:
        own = confidence[0].double()
        others = raw[1:] + torch.log1p(-own.exp()) - torch.log1p(-raw[0].exp())
        raw = torch.cat([own[None], torch.minimum(others, own)])
    return best.indices.numpy(), raw.numpy()
