"""Decoder layers as a GPU runs them with few kernels, in the place of transformers' own modules, wherever they give the same numbers."""

from specsplit.model.layers.gpu.kit import gpu_kit, is_fused

__all__ = ["gpu_kit", "is_fused"]
