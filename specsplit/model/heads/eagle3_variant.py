"""What makes one EAGLE-3 head compute otherwise than another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Eagle3Variant:
    """The choices that people made who trained EAGLE-3 heads; by default those of its authors."""

    norm_before_residual: bool = False
    """The residual of the first block is the normed state, and not the plain one."""
    norm_before_fc: bool = False
    """A feature is normed as a whole before fc."""
    fc_norm: bool = False
    """Each hidden state of a feature is normed by itself before fc."""
    norm_output: bool = False
    """The state that a token leaves is behind the last norm, and not before it."""
    logit_scale: float = 1.0
    """What logits are multiplied by."""
    mask_token: int | None = None
    """P-EAGLE: the token whose embedding stands for one that has no feature yet. None: its parent's own state stands for the feature."""
