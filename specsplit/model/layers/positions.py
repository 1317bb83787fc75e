"""Positions that are learnt, in models that count them by themselves: packed rows are no text that could be counted.

A model that takes the positions of its tokens is told them. Some take none, or count theirs from another number on where they are told
none; both are found by which rows of its embeddings a model reads. Those embeddings then read the rows of the positions that there are.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from specsplit.errors import LoadError
from specsplit.model.attention.interface import TrialForward, run_model

_TOKENS: Final = 3
_LATER: Final = 1
"""Where the first of them is the second time."""


def tell_positions(model: PreTrainedModel, max_context: int) -> None:
    """Have embeddings of positions read those that the model is called with, if they do not.

    Raises LoadError if they have fewer rows than there are tokens in a context.
    """
    others = [each for each in model.modules() if isinstance(each, nn.Embedding)]
    others = [each for each in others if each is not model.get_input_embeddings()]
    if not others:
        return
    counted, told = _rows_read(model, None), _rows_read(model, _LATER)
    for module in others:
        rows = counted.get(id(module.weight))
        if rows is None or rows != list(range(rows[0], rows[0] + _TOKENS)):
            continue
        if told.get(id(module.weight)) == [row + _LATER for row in rows]:
            continue
        if rows[0] + max_context > len(module.weight):
            raise LoadError(
                f"it has {len(module.weight)} positions, and the first token of a text has number {rows[0]} of them: set max_context = "
                f"{len(module.weight) - rows[0]}"
            )
        stand_in = _ByPosition(module, rows[0])
        model.register_forward_pre_hook(stand_in.note, with_kwargs=True)
        module.forward = stand_in


class _ByPosition:
    """Stands in for the forward of an embedding of positions."""

    def __init__(self, module: nn.Embedding, first: int) -> None:
        """`first`: the row of the first position."""
        self._module = module
        self._forward = module.forward
        self._first = first
        self._positions: Tensor | None = None

    def note(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the positions, [1, T], that a forward of the model is called with; it may be called with none."""
        self._positions = kwargs.get("position_ids")

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Embed the positions of this forward, [1, T, width]; without any, those that the model counts."""
        if self._positions is None:
            return self._forward(*args, **kwargs)
        return embedding(self._positions + self._first, self._module.weight)


class _Reads(TorchFunctionMode):
    """Notes which rows of which weights are read."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, list[int]] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run what torch is asked for."""
        if func is embedding:
            self.rows[id(args[1])] = args[0].flatten().tolist()
        return func(*args, **(kwargs or {}))


def _rows_read(model: PreTrainedModel, position: int | None) -> dict[int, list[int]]:
    """By the id of a weight, the rows of it that a few tokens, all the same, read; the first is at a position, or the model counts."""
    padding = getattr(model.config, "pad_token_id", None)
    tokens = torch.full((1, _TOKENS), 3 if padding != 3 else 4, device=model.device)
    told = {} if position is None else {"position_ids": torch.arange(_TOKENS, device=model.device)[None] + position}
    reads = _Reads()
    with suppress(Exception), torch.inference_mode(), reads:  # what is wrong with it is said by a look at its layers
        run_model(model, TrialForward(), input_ids=tokens, use_cache=False, **told)
    return reads.rows
