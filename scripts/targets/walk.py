"""One kind of causal language model, tiny and with random weights: built, loaded as the services load it, and compared with itself.

Everything that a verifier does with a target is done once, and the logits are compared with those of the model's own forward along
each path: a prompt in chunks, a tree of 16 nodes, a session that begins with pages of another one, a chain of 16 nodes, and a step behind
nodes that were accepted.
"""

from __future__ import annotations

import re
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from scripts.targets.tiny import PARAMETERS, tiny_config
from specsplit.errors import LoadError
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.pages.geometry import NO_ATTENTION

TOLERANCE: Final = 1e-5
"""How far a logit may be off, of the largest of its row."""
TOLERANCE_RECURRENT: Final = 1e-4
"""The same of models with recurrent layers, whose kernels compute a chunk in another way than a token."""
_CONTEXT: Final = 256
"""Of a model that has to be told how long a context it is served in."""
_PROMPT: Final = 45
_CHUNKS: Final = (9, 1, 20, 14)
"""Tokens of the prompt that are computed together; the last token is the root of a tree."""
_SNAPSHOTS: Final = 1 << 26
"""Bytes for the states behind pages, which is more than there are."""
_SHARED: Final = 40
"""Tokens of the prompt that a second session has in common with the first."""
_PAGE: Final = 4
NODES: Final = 16
_TREE: Final = (-1, 0, 0, 1, 1, 2, 3, 3, 6, 8, 5, 10, 9, 12, 0, 13)
"""Parents of a tree that is 9 nodes deep, with forks at all depths."""
_CHAIN: Final = tuple(range(-1, NODES - 1))
_SCALE: Final = 0.12
"""Of random weights: large enough for every token of the context to matter, and small enough for rounding not to grow."""
_MATTERS: Final = 1e-3
"""How far the logits are off at least if a token of the context is another one."""


class Outcome(StrEnum):
    """What has come of a kind of model."""

    SERVED = "served"
    REFUSED = "refused"
    UNBUILT = "unbuilt"
    """transformers makes no small model of it, or none that runs."""
    WRONG = "wrong"
    """It is served, and gives other logits; or it fails in another way than with a LoadError of ours. Either is a bug."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What has come of one kind of model."""

    name: str
    outcome: Outcome
    detail: str
    """Of a served one its layers, of others the reason."""
    error: float = 0.0
    """Of a served one: how far a logit is off at worst, of the largest of its row."""


def walk(name: str) -> Finding:
    """Try one kind of model, by the name that transformers has for it. What goes wrong is in the finding."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as place:
        warnings.simplefilter("ignore")
        folder = Path(place) / "model"
        try:
            own = _build(name, folder)
        except Exception as error:  # noqa: BLE001 - whatever transformers raises
            return Finding(name, Outcome.UNBUILT, _sentence(error, folder))
        try:
            lm, needs = _loaded(folder)
            if lm.states is not None:
                lm.states.snapshots.limit_bytes = _SNAPSHOTS
            return _judged(name, lm, largest_error(lm, own), needs)
        except LoadError as error:
            outcome = Outcome.WRONG if _only_repeats(error) else Outcome.REFUSED
            return Finding(name, outcome, _sentence(error, folder, typed=False))
        except Exception as error:  # noqa: BLE001 - a bug, whatever it is
            traceback.print_exc(limit=-3)
            return Finding(name, Outcome.WRONG, _sentence(error, folder))


def layers_of(lm: CausalLM) -> str:
    """What the layers of a model see and keep, in a few words: "all tokens, windows; sinks"."""
    layers = [layer for layer in lm.kv.geometry.layers if layer != NO_ATTENTION]
    spans = [layer.span for layer in layers]
    sees = {
        "all tokens": any(span.window is None and span.chunk is None for span in spans),
        "windows": any(span.window is not None for span in spans),
        "chunks": any(span.chunk is not None for span in spans),
        "recurrent": lm.states is not None,
    }
    keeps = {
        "soft caps": any(layer.softcap is not None for layer in layers),
        "sinks": any(layer.sinks for layer in layers),
        "latents": any(layer.values_in_keys for layer in layers),
        "values of another width": any(
            layer.key_width != layer.value_width and not layer.values_in_keys for layer in layers
        ),
        "layers of several shapes": len({(layer.kv_heads, layer.key_width, layer.value_width) for layer in layers}) > 1,
    }
    return "; ".join(
        filter(None, (", ".join(word for word, there in words.items() if there) for words in (sees, keeps)))
    )


def _loaded(folder: Path) -> tuple[CausalLM, str]:
    """The model, and what it needs: if it is refused for want of `max_context`, it is loaded with one."""
    load = partial(CausalLM.load, folder, num_pages=64, page_size=_PAGE, window_tokens=_room)
    try:
        return load(), ""
    except LoadError as error:
        if "set max_context" not in str(error):
            raise
    return load(max_context=_CONTEXT), "needs `max_context`"


def _room(window: int, kv_tokens: int) -> int:
    """Tokens for which layers with a window have room where others see all: what two sessions see of them in a forward."""
    return 2 * (window + max(*_CHUNKS, NODES) + 2 * _PAGE)


def _only_repeats(error: LoadError) -> bool:
    """Whether a refusal is no sentence of ours, but what code that is not ours has raised."""
    cause = error.__cause__
    refused_there = isinstance(cause, (ValueError, NotImplementedError, ImportError))  # a sentence of transformers'
    return cause is not None and not refused_there and type(cause).__name__ in str(error)


def _judged(name: str, lm: CausalLM, error: float, needs: str) -> Finding:
    allowed = TOLERANCE if lm.states is None else TOLERANCE_RECURRENT
    if error <= allowed:
        return Finding(name, Outcome.SERVED, "; ".join(filter(None, (layers_of(lm), needs))), error)
    why = f"its logits are off by {error:.1e} of the largest, and {allowed:.0e} is allowed"
    return Finding(name, Outcome.WRONG, why)


def _build(name: str, folder: Path) -> PreTrainedModel:
    """Save a tiny model of a kind, and give it as transformers loads it, with its own plain attention.

    Raises whatever transformers raises, and ValueError for one that is not small, or for whose logits the context does not matter.
    """
    config = tiny_config(name)
    with torch.device("meta"):
        size = sum(weights.numel() for weights in AutoModelForCausalLM.from_config(config).parameters())
    if size > PARAMETERS:
        raise ValueError(f"it has {size:,} parameters with the sizes in scripts/targets/settings.py")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _shake(model)
    model.save_pretrained(folder)
    own = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = _tokens(_PROMPT, seed=0)
    others = [*tokens[:-3], tokens[-3] + 1, *tokens[-2:]]
    if apart(_own_logits(own, others)[-1:], _own_logits(own, tokens)[-1:]) < _MATTERS:
        raise ValueError("its logits are the same whatever stands before: nothing could be compared")
    return own


@torch.no_grad()
def _shake(model: PreTrainedModel) -> None:
    """Have no weight be one that changes nothing: matrices of small or equal numbers are drawn anew, others are moved a bit."""
    for weights in model.parameters():
        if not weights.is_floating_point():
            continue
        if weights.dim() > 1 and weights.std() < _SCALE:
            weights.normal_(0, _SCALE)
        else:
            weights.add_(torch.randn_like(weights), alpha=_SCALE / 2)


class _Session:
    """What a verifier keeps of a session: its tokens, of which the last is the root of the next tree, and the pages of the others."""

    def __init__(self, lm: CausalLM, tokens: list[int]) -> None:
        self.tokens = tokens
        self.stored = 0
        self.table = PageTable(lm.pool)

    def chunk(self, count: int) -> Row:
        """The next tokens of the prompt, with logits at the last."""
        self._reserve(count)
        tokens = self.tokens[self.stored : self.stored + count]
        self.stored += count
        return Row.chunk(tokens, self.table.upto(self.stored), logits_at=[count - 1])

    def tree(self, nodes: Sequence[int], parents: Sequence[int]) -> Row:
        """A tree whose root is the last token, the first of `nodes`."""
        self._reserve(len(nodes))
        return Row.tree(nodes, parents, self.table.upto(self.stored + len(nodes)))

    def _reserve(self, count: int) -> None:
        self.table.reserve(self.stored + count)
        self.table.see(self.stored, self.stored + count)


def largest_error(lm: CausalLM, own: PreTrainedModel) -> float:
    """How far a logit of a served model is off those of the model itself, of the largest of its row. NaN is infinitely far."""
    return max(apart(ours, expected) for ours, expected in _compared(lm, own))


def _compared(lm: CausalLM, own: PreTrainedModel) -> Iterator[tuple[Tensor, Tensor]]:
    """Everything that is asked of the model -> our logits and its own, [n, V] each."""
    first = _Session(lm, _tokens(_PROMPT, seed=0))
    expected = _own_logits(own, first.tokens)
    for count in _CHUNKS:
        yield _forward(lm, first.chunk(count)), expected[first.stored - 1][None]

    second = _Session(lm, [*first.tokens[:_SHARED], *_tokens(_PROMPT - _SHARED, seed=1)])
    _share(lm, first, second)
    rest = len(second.tokens) - 1 - second.stored
    yield _forward(lm, second.chunk(rest)), _own_logits(own, second.tokens)[second.stored - 1][None]

    nodes, others = ([session.tokens[-1], *_tokens(NODES - 1, seed)] for session, seed in ((first, 2), (second, 3)))
    tree = first.tree(nodes, _TREE)
    logits = lm.forward([tree, second.tree(others, _CHAIN)]).float()
    lm.keep_states([(tree, NODES - 1)])
    yield logits[:NODES], _along(own, first.tokens[:-1], nodes, _TREE)
    yield logits[NODES:], _along(own, second.tokens[:-1], others, _CHAIN)

    path = _path(_TREE, NODES - 1)
    slots = first.table.slots(0, len(first.table))
    lm.move(slots[first.stored + np.array(path)], slots[first.stored : first.stored + len(path)])
    first.stored += len(path)
    first.tokens = [*first.tokens, *(nodes[node] for node in path[1:]), 7]
    yield lm.forward([first.tree([7], [-1])]).float(), _own_logits(own, first.tokens)[-1:]


def _forward(lm: CausalLM, row: Row) -> Tensor:
    """Logits of a chunk of a prompt, whose last token is committed."""
    logits = lm.forward([row]).float()
    lm.keep_states([(row, row.num_tokens - 1)])
    return logits


def _share(lm: CausalLM, first: _Session, second: _Session) -> None:
    """Have the second session begin with pages of the first, as a hit of the prefix cache does: as many as states are kept behind."""
    pages = first.table.pages(0, _SHARED // _PAGE)
    if lm.states is not None:
        while len(pages) and int(pages[-1]) not in lm.states.snapshots:
            pages = pages[:-1]
    lm.pool.share(pages)
    second.table.adopt(pages)
    second.stored = len(pages) * _PAGE
    first.table.see(
        second.stored, second.stored
    )  # what the second session sees is still there, and there is room for the rest of it
    if lm.states is not None and len(pages):
        lm.states.resume(second.table.number, int(pages[-1]), second.stored)


def _along(own: PreTrainedModel, before: list[int], nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
    """The model's own logits at every node of a tree, [nodes, V]: a forward for each path from the root to a leaf."""
    found: dict[int, Tensor] = {}
    for leaf in set(range(len(parents))) - set(parents):
        path = _path(parents, leaf)
        logits = _own_logits(own, [*before, *(nodes[node] for node in path)])
        found.update(zip(path, logits[-len(path) :], strict=True))
    return torch.stack([found[node] for node in range(len(parents))])


def _path(parents: Sequence[int], node: int) -> list[int]:
    return [*(_path(parents, parents[node]) if parents[node] >= 0 else ()), node]


@torch.inference_mode()
def _own_logits(own: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """The model's own logits of a text, [tokens, V]."""
    made: Any = own(input_ids=torch.tensor([tokens]), use_cache=False)
    return made.logits[0].float()


def apart(ours: Tensor, own: Tensor) -> float:
    """The largest difference of logits [n, V] as a share of the largest of its row. What is never said is at -inf in both."""
    differences = (ours - own).masked_fill(ours == own, 0).abs().amax(dim=-1)
    largest = own.masked_fill(own.isinf(), 0).abs().amax(dim=-1)
    return float((differences / largest).nan_to_num(nan=torch.inf).max())


def _tokens(count: int, seed: int) -> list[int]:
    """Random ones, none of which says something special."""
    return np.random.default_rng(seed).integers(5, 90, count).tolist()


def _sentence(error: Exception, folder: Path, *, typed: bool = True) -> str:
    """What an exception says, on one line and without where the folder was."""
    said = " ".join(str(error).split()).replace(f"model folder {folder}", "the model").replace(str(folder), "FOLDER")
    said = re.sub(r" at 0x[0-9a-f]+", "", said)
    return f"{type(error).__name__}: {said}" if typed else said
