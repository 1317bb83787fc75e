"""Room for the KV of a target: what its settings say, or a share of the GPU's memory."""

from __future__ import annotations

import torch

from specsplit.model.pages.room import MemoryShare
from specsplit.settings import VerifierSettings


def kv_room(settings: VerifierSettings) -> int | MemoryShare:
    """Pages of KV, or the share of memory that they take."""
    if settings.kv_tokens is None and torch.device(settings.device).type == "cuda":
        weights = 1 if settings.weights_dir is None else 2  # other weights are read beside those that are served
        return MemoryShare(settings.kv_share or settings.device_kv_share, settings.max_sessions, weights)
    return (settings.kv_tokens or settings.host_kv_tokens) // settings.page_size
