"""Decoder layers as a CPU runs them fastest, in the place of transformers' own modules, wherever they give the same numbers."""

from specsplit.model.layers.cpu.decoder import NativeLayer
from specsplit.model.layers.cpu.embedding import PackedEmbedding
from specsplit.model.layers.cpu.kit import CPU, packed

__all__ = ["CPU", "NativeLayer", "PackedEmbedding", "packed"]
