"""FlashInfer as its documentation and kernels describe it, in torch, behind the signatures of the package itself.

Whatever is called is bound to the real signature first, and what the package computes on the host is computed by the package.
"""

from __future__ import annotations

import math
from inspect import signature
from typing import Any

import flashinfer
import torch
from flashinfer.page import get_seq_lens
from flashinfer.prefill import _compute_page_mask_indptr  # pyright: ignore[reportPrivateUsage]
from torch import Tensor

_REAL = flashinfer.BatchPrefillWithPagedKVCacheWrapper


def bound(function: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Arguments by name, defaults too. Raises TypeError as the call would."""
    arguments = signature(function).bind(*args, **kwargs)
    arguments.apply_defaults()
    return arguments.arguments


class BatchPrefillWithPagedKVCacheWrapper:
    """What is planned is run on all later calls."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        made = bound(_REAL.__init__, self, *args, **kwargs)
        assert (made["kv_layout"], made["backend"], made["use_cuda_graph"]) == ("NHD", "fa2", False)
        self.planned: dict[str, Any] = {}

    def plan(self, *args: Any, **kwargs: Any) -> None:
        plan = bound(_REAL.plan, self, *args, **kwargs)
        names = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
        for name in (*names, "seq_lens"):
            assert (plan[name].dtype, plan[name].device.type) == (torch.int32, "cpu"), name
        counted = get_seq_lens(plan["paged_kv_indptr"], plan["paged_kv_last_page_len"], plan["page_size"])
        assert counted.tolist() == plan["seq_lens"].tolist()
        queries = plan["qo_indptr"].diff()
        assert queries.max() == plan["max_token_per_sequence"]
        assert plan["custom_mask"] is None, "bools are packed by a kernel that takes its offsets on the device"
        plan["mask_indptr"] = None
        if plan["packed_custom_mask"] is not None:
            assert plan["packed_custom_mask"].dtype == torch.uint8
            plan["mask_indptr"] = _compute_page_mask_indptr(
                plan["qo_indptr"], plan["paged_kv_indptr"], plan["paged_kv_last_page_len"], plan["page_size"]
            )
        self.planned = plan

    def run(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        call, plan = bound(_REAL.run, self, *args, **kwargs), self.planned
        query, (keys, values), out = call["q"], call["paged_kv_cache"], call["out"]
        assert keys.shape[1:] == values.shape[1:] == (plan["page_size"], plan["num_kv_heads"], plan["head_dim_qk"])
        assert query.shape[0] == plan["qo_indptr"][-1] and query.shape[1] == plan["num_qo_heads"]
        assert query.stride(2) == 1 and out.is_contiguous() and out.shape == query.shape
        assert query.dtype == plan["q_data_type"] and keys.dtype == plan["kv_data_type"] and call["return_lse"]
        lse = torch.empty(query.shape[:2], dtype=torch.float32)
        for row in range(len(plan["qo_indptr"]) - 1):
            new = slice(*plan["qo_indptr"][row : row + 2].tolist())
            pages = plan["paged_kv_indices"][slice(*plan["paged_kv_indptr"][row : row + 2].tolist())]
            length = int(plan["seq_lens"][row])
            k, v = (cache[pages].flatten(0, 1)[:length] for cache in (keys, values))
            out[new], lse[new] = attended(query[new], k, v, plan["sm_scale"] * call["q_scale"], self.shown(row, length))
        return out, lse

    def shown(self, row: int, length: int) -> Tensor:
        """Bool [Q, L]."""
        plan = self.planned
        queries = int(plan["qo_indptr"][row + 1] - plan["qo_indptr"][row])
        if plan["mask_indptr"] is None:
            seen = torch.ones(queries, length, dtype=torch.bool)
            return seen.tril(length - queries) if plan["causal"] else seen
        offsets = torch.arange(queries * length)
        octets = plan["packed_custom_mask"][int(plan["mask_indptr"][row]) + offsets // 8]
        return (octets >> (offsets % 8) & 1).bool().view(queries, length)


def attended(query: Tensor, keys: Tensor, values: Tensor, scale: float, shown: Tensor) -> tuple[Tensor, Tensor]:
    """query [Q, H, D], keys and values [L, K, D] -> [Q, H, D], and log2 of the sum of weights [Q, H]: 0 and -inf if nothing is seen."""
    group = query.shape[1] // keys.shape[1]
    keys, values = (each.repeat_interleave(group, 1).float() for each in (keys, values))
    logits = torch.einsum("qhd,lhd->qhl", query.float(), keys) * scale * math.log2(math.e)
    logits = logits.masked_fill(~shown[:, None], -torch.inf)
    lse = (logits * math.log(2)).logsumexp(-1) / math.log(2)
    weights = torch.exp2(logits - lse[..., None]).nan_to_num(0)
    return torch.einsum("qhl,lhd->qhd", weights, values).to(query.dtype), lse


def merge_state_in_place(*args: Any, **kwargs: Any) -> None:
    call = bound(flashinfer.merge_state_in_place, *args, **kwargs)
    assert call["mask"] is None and call["s"].dtype == call["s_other"].dtype == torch.float32
    most = torch.maximum(call["s"], call["s_other"])
    one, other = (torch.exp2(each - most) for each in (call["s"], call["s_other"]))
    merged = call["v"] * (one / (one + other))[..., None] + call["v_other"] * (other / (one + other))[..., None]
    call["v"].copy_(merged)
    call["s"].copy_(torch.log2(one + other) + most)
