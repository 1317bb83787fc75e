"""Loading of a checkpoint's tensors into a head of bare shapes. A checkpoint that does not fit is refused with every wrong tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from specsplit.errors import LoadError
from specsplit.model.heads.checkpoint import Checkpoint
from specsplit.model.heads.head_module import HeadModule
from specsplit.model.heads.layouts import Layout
from specsplit.model.heads.scaled import scales_of, unscaled

_TABLES: Final = ("d2t", "t2d")
_EXACT: Final = "e_score_correction_bias"
"""What chooses experts by small differences stays in float32, as transformers has it."""
_MOST_NAMED: Final = 40


def load_weights(head: HeadModule, checkpoint: Checkpoint, layout: Layout, dtype: torch.dtype) -> None:
    """Give `head`, built on the meta device, the checkpoint's tensors. Raises LoadError with every tensor that is wrong."""
    own = head.own_tensors()
    _require_tensors(own, checkpoint, layout)
    weights = {
        name: _read(name, tensor, checkpoint, layout, dtype) for name, tensor in own.items() if name not in _TABLES
    }
    head.load_state_dict(weights, strict=False, assign=True)
    if "d2t" in own:
        head.set_draft_tokens(_target_ids(checkpoint, head.target.vocabulary.size))


def _require_tensors(own: Mapping[str, Tensor], checkpoint: Checkpoint, layout: Layout) -> None:
    expected = {
        published: list(part.shape)
        for name, tensor in own.items()
        for published, part in layout.pieces(name, tensor)
        if name != "t2d"
    }
    names = checkpoint.names
    left_over = layout.left_over(names, [*expected, *(each for name in expected for each in scales_of(name))])
    found = {name: list(shape) for name, shape in checkpoint.shapes([*(expected.keys() & names), *left_over]).items()}
    wrong = [
        *(f"{name} is missing, expected {shape}" for name, shape in sorted(expected.items()) if name not in names),
        *(
            f"{name} is {found[name]}, expected {shape}"
            for name, shape in sorted(expected.items())
            if found.get(name, shape) != shape
        ),
        *(f"{name} {found[name]} is left over, expected no such tensor" for name in left_over),
    ]
    if wrong:
        more = [f"and {len(wrong) - _MOST_NAMED:,} more"] if len(wrong) > _MOST_NAMED else []
        raise LoadError(
            f"model folder {checkpoint.folder} does not hold the head that its config.json describes "
            f"({layout.family.value}): {'; '.join([*wrong[:_MOST_NAMED], *more])}"
        )


def _read(name: str, shape: Tensor, checkpoint: Checkpoint, layout: Layout, dtype: torch.dtype) -> Tensor:
    exact = name.endswith(_EXACT)
    tensor = torch.empty(shape.shape, dtype=torch.float32 if exact else dtype, device="cpu")
    pieces = dict(layout.pieces(name, tensor))
    for published, stored in checkpoint.read(pieces).items():
        pieces[published].copy_(unscaled(published, stored, checkpoint))
    return tensor


def _target_ids(checkpoint: Checkpoint, vocab_size: int) -> Tensor:
    """Read the target's ids of the head's tokens [draft V]. d2t holds target id less draft id; t2d, if there, has to say the same."""
    d2t = checkpoint.read(["d2t"])["d2t"].long()
    ids = d2t + torch.arange(len(d2t))
    if ids.min() < 0 or ids.max() >= vocab_size or len(ids.unique()) < len(ids):
        raise LoadError(
            f"model folder {checkpoint.folder}: d2t does not map each of {len(ids)} draft tokens to another of {vocab_size} of the target"
        )
    if "t2d" in checkpoint.names:
        t2d = checkpoint.read(["t2d"])["t2d"]
        marked = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, ids, True)
        if t2d.shape != marked.shape or not torch.equal(t2d.bool(), marked):
            raise LoadError(
                f"model folder {checkpoint.folder}: t2d and d2t name other tokens ({int(t2d.bool().sum())} marked, {len(ids)} mapped)"
            )
    return ids
