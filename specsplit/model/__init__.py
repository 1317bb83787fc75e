"""Numerics: transformers causal language models over paged KV, packed ragged batches of prefill chunks and token trees.

Nothing here knows gRPC, sessions or telemetry.
"""

from __future__ import annotations

from specsplit.model.batch import Row, ancestor_mask, causal_mask
from specsplit.model.causal_lm import CausalLM
from specsplit.model.kv import Geometry, KVCache
from specsplit.model.paced import CostCurve, Paced
from specsplit.model.page_tables import RowPages
from specsplit.model.pages import OutOfPages, PagePool, PageTable

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
