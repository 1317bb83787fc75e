"""What stands for the modules of a decoder layer on a GPU."""

from __future__ import annotations

import torch
from torch import nn

from specsplit.model.layers.kit import Kit
from specsplit.sampling.kernels import obstacle


def gpu_kit(device: torch.device) -> Kit | None:
    """The modules for a device; None: its kernels cannot be had there."""
    return None if obstacle(device) is not None else fused_kit()


def fused_kit() -> Kit:
    """The modules, wherever they run. Imports triton."""
    from specsplit.model.layers.gpu.attention import FusedAttention  # noqa: PLC0415
    from specsplit.model.layers.gpu.decoder import FusedLayer  # noqa: PLC0415
    from specsplit.model.layers.gpu.mlp import FusedMlp  # noqa: PLC0415
    from specsplit.model.layers.gpu.norm import FusedNorm  # noqa: PLC0415

    return Kit((FusedNorm.like, FusedMlp.like), FusedAttention.like, FusedLayer, lambda _: None)


def is_fused(model: nn.Module) -> bool:
    """Whether a module of a decoder layer was replaced. A norm alone, as the last of a model is, does not count."""
    return any(type(each).__name__ in ("FusedAttention", "FusedMlp") for each in model.modules())
