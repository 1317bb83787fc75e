"""Adapters of low rank (LoRA, arXiv 2106.09685) beside the weights of a model: one forward computes each row with its own.

It may import `ranks`, `graphs`, `layers`, `attention`, `pages` and `tensors`.
Others use `adapt`, which reads a folder of them into a model, and `Adapters`, those of one model.
"""

from specsplit.model.adapters.adapt import Adapters, adapt

__all__ = ["Adapters", "adapt"]
