"""What stands for the modules of a decoder layer on a CPU."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from specsplit.model.layers.cpu.attention import RotaryAttention
from specsplit.model.layers.cpu.decoder import NativeLayer
from specsplit.model.layers.cpu.linear import PackedLinear
from specsplit.model.layers.cpu.mlp import mlp_like
from specsplit.model.layers.cpu.norm import RmsNorm
from specsplit.model.layers.kit import Kit
from specsplit.model.layers.replacing import Replacing
from specsplit.model.layers.trial import called

CPU: Final = Kit((RmsNorm.like, mlp_like), RotaryAttention.like, NativeLayer, PackedLinear.like)


@torch.inference_mode()
def packed(linear: nn.Module) -> nn.Module:
    """What may stand for a linear layer that is called, and of which nothing else is used; the layer itself, where nothing may."""
    return Replacing(CPU).agreeing(linear, CPU.linear, called) or linear
