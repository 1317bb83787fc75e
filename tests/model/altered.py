"""Models whose modules do something else than their parts say, and what a model gives for two prompts and the trees behind them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specsplit.model import CausalLM, PageTable, Row

PROMPTS = [list(range(2, 11)), list(range(2, 23))]
TREE, PARENTS, PATHS = [5, 6, 7, 8], [-1, 0, 0, 1], [[5], [5, 6], [5, 7], [5, 6, 8]]
LAYERS = {0, 2, 3, -1}


def logits_and_states(lm: CausalLM) -> tuple[Tensor, dict[int, Tensor]]:
    """Of two prompts and three trees behind them: logits [2 + 12, V], and the nodes' hidden states [12, H] by layer."""
    tables = [PageTable(lm.pool) for _ in PROMPTS]
    for table in tables:
        table.reserve(30)
    lengths = [len(prompt) for prompt in PROMPTS]
    first = lm.forward(
        [Row.chunk(p, table.upto(n), [n - 1]) for p, n, table in zip(PROMPTS, lengths, tables, strict=True)]
    )
    trees = [Row.tree(TREE, PARENTS, table.upto(n + 4)) for n, table in zip(lengths, tables, strict=True)]
    second, states = lm.forward_capturing([*trees, trees[0]], LAYERS)
    return torch.cat([first, second]), states


def override(module: Any, forward: Callable[..., Any]) -> None:
    """Have a module do something else: `forward` is told what it did, and what it is called with."""
    own = type(module).forward

    def instead(self: Any, *args: Any, **options: Any) -> Any:
        return forward(partial(own, self), *args, **options)

    module.__class__ = type("Other", (type(module),), {"forward": instead})


def attention_in(model: PreTrainedModel) -> Any:
    layers: Any = model.model.layers
    return layers[0].self_attn


def clip_queries(model: PreTrainedModel) -> None:
    override(attention_in(model).q_proj, lambda own, rows: own(rows).clamp(-8, 8))


def scale_far_positions(model: PreTrainedModel) -> None:
    """As some architectures do to queries far back in a long context."""

    def scaled(own: Any, hidden_states: Tensor, position_embeddings: Any, **options: Any) -> Any:
        slowest = position_embeddings[0][..., -1:]  # near the front it has hardly turned
        far = slowest < torch.cos(torch.tensor(0.02))
        return own(torch.where(far, 2 * hidden_states, hidden_states), position_embeddings, **options)

    override(attention_in(model), scaled)
