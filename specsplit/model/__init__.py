"""Numerics: transformers causal language models over paged KV, packed ragged batches of prefill chunks and token trees.

Nothing here knows gRPC, sessions or telemetry.
"""

from __future__ import annotations

from specsplit.model.lm.causal_lm import CausalLM
from specsplit.model.lm.paced import CostCurve, Paced
from specsplit.model.pages.batch import Row, ancestor_mask, causal_mask
from specsplit.model.pages.geometry import Geometry
from specsplit.model.pages.kv import KVCache
from specsplit.model.pages.pool import OutOfPages, PagePool, PageTable
from specsplit.model.pages.tables import RowPages

__all__ = [
    "CausalLM",
    "CostCurve",
    "Geometry",
    "KVCache",
    "OutOfPages",
    "Paced",
    "PagePool",
    "PageTable",
    "Row",
    "RowPages",
    "ancestor_mask",
    "causal_mask",
]
