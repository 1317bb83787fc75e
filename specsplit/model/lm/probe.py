"""The last net at load: small packed trees against the model's own attention on each of their paths.

An architecture that keeps state elsewhere than in keys and values, counts positions by itself or reads its mask some other way
passes every other check; here it gives itself away. One of the trees stands at the end of the context and one behind a longer text, for
what a model does only from some position or length on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specsplit.errors import LoadError
from specsplit.model.attention.interface import NAME, OTHERS
from specsplit.model.attention.support import refusing
from specsplit.model.layers.recurrent import cache_name
from specsplit.model.lm.probe_texts import LONGEST, Passage, cache_behind, long_text, short_texts, untried
from specsplit.model.pages.pool import OutOfPages, PageTable
from specsplit.model.pages.windows import OutOfWindowPages

if TYPE_CHECKING:
    from specsplit.model.lm.causal_lm import CausalLM
    from specsplit.model.lm.runner import ModelRunner

_log = logging.getLogger(__name__)

_TOLERANCE: Final = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 0.15}
"""Largest difference, as a share of the largest logit. A wrong mask or position is off by a multiple of it."""
_QUANTISED: Final = 3e-2
"""That of a quantised model at least: its activations may be rounded too, where a last bit chooses between two of 256 numbers."""


def probe(lm: CausalLM) -> Tensor:
    """Raises LoadError if `lm` and its model disagree by more than rounding -> `tree_logits`. Leaves every page free.

    Ranks that share parts of the model call it at the same time.
    """
    short, long = _short(lm), [_long(lm)]
    trees = _packed_logits(lm, short)
    for texts, packed in ((short, trees), (long, _packed_logits(lm, long))):
        for text, ours in zip(texts, packed, strict=True):
            _compare(lm, text, ours)
    if beyond := untried(lm.model.config, lm.info.max_context):
        numbers = ", ".join(f"{name} = {length}" for name, length in beyond.items())
        _log.info(
            "the checks at load read no text longer than %d tokens, and its config names %s: what it computes otherwise from such a length "
            "on, they have not seen",
            LONGEST,
            numbers,
        )
    return torch.cat(trees).cpu()


def probe_replaced(lm: CausalLM, before: Tensor, where: str = "CPU", adapted: Tensor | None = None) -> None:
    """Raises LoadError unless a model some of whose modules were replaced gives the logits that it gave `before`, in `tree_logits`, and
    those that it gave in `adapted_logits`.

    where: they are for a CPU, or for a GPU.
    """
    pairs = [(tree_logits(lm).cpu(), before)]
    if adapted is not None and (found := adapted_logits(lm)) is not None:
        pairs.append((found, adapted))
    for error in (apart(found, own) for found, own in pairs):
        if not error <= tolerance(lm.model):
            name = type(lm.model).__name__
            raise LoadError(
                f"{name} gives other logits with modules for a {where} (off by {error:.1%} of the largest): "
                f"set {where.lower()}_layers = off"
            )


def probe_adapters(lm: CausalLM) -> Tensor | None:
    """Raises LoadError unless a batch of rows with adapters and without gives the logits of each row alone -> `adapted_logits`.

    One adapter is tried of all that add to the same layers, each of which has to be run. To be called before modules are replaced.
    """
    found: list[Tensor] = []
    for number in lm.adapters.kinds():
        texts = _adapted_texts(lm, number)
        with _all_run(lm, number):
            packed = _packed_logits(lm, texts)
        for text, ours in zip(texts, packed, strict=True):
            _compare(lm, text, ours)
        found += packed
    return torch.cat(found).cpu() if found else None


def adapted_logits(lm: CausalLM) -> Tensor | None:
    """Logits of small trees of which some have adapters, float32 [nodes, V]; None: there are no adapters. Leaves every page free."""
    found = [each for number in lm.adapters.kinds() for each in _packed_logits(lm, _adapted_texts(lm, number))]
    return torch.cat(found).cpu() if found else None


def _adapted_texts(lm: CausalLM, adapter: int) -> list[Passage]:
    """One of an adapter, and behind it one of the base: no more than without adapters, for which there is room."""
    first, *others = _short(lm)
    return [replace(first, adapter=adapter), *others]


@contextmanager
def _all_run(lm: CausalLM, adapter: int) -> Iterator[None]:
    """Raises LoadError if any layer that an adapter adds to is not run in here, as where a model reads its weights alone."""
    run: set[nn.Module] = set()
    layers = lm.adapters.layers_of(adapter)
    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(lambda module, _: run.add(module)).remove)
        yield
    left_out = [layer.name for layer in layers if layer not in run]
    if left_out:
        name = lm.adapters.known[adapter - 1].name
        raise LoadError(
            f"adapter {name}: it adapts {left_out[0]}, which {type(lm.model).__name__} does not run: it reads its weights otherwise, and "
            "they cannot be adapted"
        )


def tree_logits(lm: CausalLM) -> Tensor:
    """Logits of two small packed trees, where a text begins and where the context ends, float32 [nodes, V]. Leaves every page free.

    Raises LoadError if there are too few pages, or the model fails.
    """
    return torch.cat(_packed_logits(lm, _short(lm)))


def apart(logits: Tensor, others: Tensor) -> float:
    """The largest difference as a share of the largest of the others; tokens that a model never says are at -inf in both."""
    difference = (logits - others).masked_fill_(logits == others, 0)
    return (difference.abs().max() / others[others.isfinite()].abs().max()).item()


def tolerance(model: PreTrainedModel) -> float:
    """How far logits may be apart, as `apart` has it, where they should be the same."""
    quantised = getattr(model, "hf_quantizer", None) is not None
    return max(_TOLERANCE[model.dtype], _QUANTISED if quantised else 0.0)


def _short(lm: CausalLM) -> list[Passage]:
    return short_texts(lm.info.vocabulary.size, lm.info.max_context)


def _long(lm: CausalLM) -> Passage:
    """The long text, cut to what the smallest pool of all ranks holds: they run its tokens together."""
    text = long_text(lm.model.config, lm.info.vocabulary.size, lm.info.max_context, lm.pool.most_seen)
    return text.within(min(length for (length,) in lm.blocks.assemble([text.length])))


def _compare(lm: CausalLM, text: Passage, packed: Tensor) -> None:
    model, name = lm.model, type(lm.model).__name__
    with refusing(f"{name} fails with its own attention, so ours cannot be compared with it"):
        own = _own_logits(lm, text)
    if not own.amax(dim=-1).isfinite().all():
        raise LoadError(
            f"{name} computes NaN or infinity with its own attention in {model.dtype}: are its weights broken?"
        )
    error = apart(packed, own)
    if not error <= tolerance(model):
        raise LoadError(
            f"{name} gives other logits in a packed token tree than on the tree's paths one by one, {text.where} "
            f"(off by {error:.1%} of the largest){OTHERS}"
        )


def _packed_logits(lm: CausalLM, texts: Sequence[Passage]) -> list[Tensor]:
    """Logits [nodes, V] of each text's tree, float32, through paged KV: prefixes first, then all trees in one batch.

    If KV is kept as a type of 8 bits, they run over a few pages of KV that is not: that type's own rounding may be as large as what is
    looked for.
    """
    wanted = sum(lm.pool.pages_for(text.length) for text in texts)
    runner = lm if lm.kv.in_place else lm.unrounded(min(lm.pool.total_pages, wanted))
    tables = [PageTable(runner.pool) for _ in texts]
    try:
        with refusing(f"{type(lm.model).__name__} fails on a packed token tree"):
            return _over(lm, runner, texts, tables)
    except (OutOfPages, OutOfWindowPages) as error:
        raise LoadError(f"{lm.pool.most_seen} KV tokens are too few to serve anything") from error
    finally:
        for table in reversed(
            tables
        ):  # so that the pool hands pages out in their order, and KV can be read where it is
            table.release()


def _over(lm: CausalLM, runner: ModelRunner, texts: Sequence[Passage], tables: Sequence[PageTable]) -> list[Tensor]:
    pairs = list(zip(texts, tables, strict=True))
    for text, table in pairs:
        table.reserve(text.length)
        table.see(0, text.length)
    prefixes = [text.prefill(table) for text, table in pairs]
    lm.forward_over(runner, prefixes)
    lm.keep_states([(row, row.num_tokens - 1) for row in prefixes])
    logits = lm.forward_over(runner, [text.tree(table) for text, table in pairs]).float()
    lm.keep_states(())
    return list(logits.split([len(text.parents) for text in texts]))


def _own_logits(lm: CausalLM, text: Passage) -> Tensor:
    """Compute the same logits with the model's plain attention, one path at a time."""
    model = lm.model
    logits: dict[int, Tensor] = {}
    model.set_attn_implementation("eager")
    try:
        for path in text.paths():
            tokens = text.along(path)
            with lm.adapters.alone(text.adapter, len(tokens)):
                logits.update(zip(path, _last_logits(model, tokens, len(path), text.start), strict=True))
    finally:
        model.set_attn_implementation(NAME)
    return torch.stack([logits[node] for node in range(len(text.parents))])


@torch.inference_mode()
def _last_logits(model: PreTrainedModel, tokens: list[int], count: int, start: int) -> Tensor:
    """Logits [count, V] at the last of tokens, the first of which stands at `start`; the model finds positions by itself.

    Raises LoadError if it computes others.
    """
    past = {cache_name(model) or "past_key_values": cache_behind(start, model.config)} if start else {}
    ids = torch.tensor([tokens], device=model.device)
    logits = model(input_ids=ids, use_cache=bool(past), logits_to_keep=count, **past).logits[0]
    if len(logits) != count:
        raise LoadError(f"it knows no logits_to_keep, and computes those of every token{OTHERS}")
    return logits.float()
