"""The last net at load: two small packed trees against the model's own attention on each of their paths.

An architecture that keeps state elsewhere than in keys and values, counts positions by itself or reads its mask some other way
passes every other check; here it gives itself away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specsplit.errors import LoadError
from specsplit.model.attention import NAME
from specsplit.model.batch import Row
from specsplit.model.pages import OutOfPages, PageTable
from specsplit.model.support import refusing

if TYPE_CHECKING:
    from specsplit.model.causal_lm import CausalLM
    from specsplit.model.runner import ModelRunner

_TREES: Final = ((-1, 0, 0, 1, 1, 3), (-1, 0, 1, 0, 2))
_PREFIXES: Final = (3, 5)
_TOLERANCE: Final = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 0.15}
"""Largest difference, as a share of the largest logit. A wrong mask or position is off by a multiple of it."""
_MOST_PAGES: Final = 32


def probe(lm: CausalLM) -> None:
    """Raises LoadError if `lm` and its model disagree by more than rounding. Leaves every page free."""
    name, packed = type(lm.model).__name__, tree_logits(lm)
    with refusing(f"{name} fails with its own attention, so ours cannot be compared with it"):
        own = _own_logits(lm.model, lm.info.vocabulary.size)
    if not own.amax(dim=-1).isfinite().all():
        raise LoadError(
            f"{name} computes NaN or infinity with its own attention in {lm.model.dtype}: are its weights broken?"
        )
    error = apart(packed, own)
    if not error <= _TOLERANCE[lm.model.dtype]:
        raise LoadError(
            f"{name} gives other logits in a packed token tree than on the tree's paths one by one (off by {error:.1%} of the largest)"
        )


def probe_replaced(lm: CausalLM, before: Tensor) -> None:
    """Raises LoadError unless a model some of whose modules were replaced gives the logits that it gave `before` in `tree_logits`."""
    error = apart(tree_logits(lm), before)
    if not error <= _TOLERANCE[lm.model.dtype]:
        name = type(lm.model).__name__
        raise LoadError(
            f"{name} gives other logits with modules for a CPU (off by {error:.1%} of the largest): set cpu_layers = off"
        )


def apart(logits: Tensor, others: Tensor) -> float:
    """The largest difference as a share of the largest of the others; tokens that a model never says are at -inf in both."""
    difference = (logits - others).masked_fill_(logits == others, 0)
    return (difference.abs().max() / others[others.isfinite()].abs().max()).item()


def tree_logits(lm: CausalLM) -> Tensor:
    """Logits of two small packed trees, float32 [nodes, V]. Leaves every page free.

    Raises LoadError if there are too few pages, or the model fails.

    If KV is kept as a type of 8 bits, the trees run over a few pages of KV that is not: that type's own rounding may be as large as what is
    looked for.
    """
    runner = lm if lm.kv.raw is lm.kv.data else lm.unrounded(min(lm.pool.total_pages, _MOST_PAGES))
    tables = [PageTable(runner.pool) for _ in _TREES]
    try:
        with refusing(f"{type(lm.model).__name__} fails on a packed token tree"):
            return _packed_logits(lm, runner, tables)
    except OutOfPages as error:
        raise LoadError(f"{lm.pool.num_slots} KV tokens are too few to serve anything") from error
    finally:
        for table in reversed(
            tables
        ):  # so that the pool hands pages out in their order, and KV can be read where it is
            table.release()


def _packed_logits(lm: CausalLM, runner: ModelRunner, tables: Sequence[PageTable]) -> Tensor:
    """Logits of every tree node, through paged KV: prefixes first, then both trees in one batch."""
    prefills: list[Row] = []
    trees: list[Row] = []
    for which, (table, prefix, parents) in enumerate(zip(tables, _PREFIXES, _TREES, strict=True)):
        length = prefix + len(parents)
        table.reserve(length)
        tokens = _tokens(which, length, lm.info.vocabulary.size)
        prefills.append(Row.chunk(tokens[:prefix], table.upto(prefix)))
        trees.append(Row.tree(tokens[prefix:], parents, table.upto(length)))
    lm.forward_over(runner, prefills)
    return lm.forward_over(runner, trees).float()


def _own_logits(model: PreTrainedModel, vocab_size: int) -> Tensor:
    """Compute the same logits with the model's plain attention, one path at a time."""
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            return torch.stack(
                [
                    _last_logits(model, [*tokens[:prefix], *(tokens[prefix + node] for node in _path(parents, leaf))])
                    for which, (prefix, parents) in enumerate(zip(_PREFIXES, _TREES, strict=True))
                    for tokens in [_tokens(which, prefix + len(parents), vocab_size)]
                    for leaf in range(len(parents))
                ]
            )
    finally:
        model.set_attn_implementation(NAME)


def _last_logits(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    return model(input_ids=torch.tensor([tokens], device=model.device), use_cache=False).logits[0, -1].float()


def _path(parents: Sequence[int], node: int) -> list[int]:
    """List the indices from the root to `node`."""
    return [*(_path(parents, parents[node]) if parents[node] >= 0 else ()), node]


def _tokens(which: int, count: int, vocab_size: int) -> list[int]:
    return [(37 * index + 11 * which + 5) % vocab_size for index in range(count)]
