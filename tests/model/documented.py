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
_REAL_MLA = flashinfer.BatchMLAPagedAttentionWrapper


def bound(function: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Arguments by name, defaults too. Raises TypeError as the call would."""
    arguments = signature(function).bind(*args, **kwargs)
    arguments.apply_defaults()
    return arguments.arguments


class BatchPrefillWithPagedKVCacheWrapper:
    """What is planned is run on all later calls."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.made = bound(_REAL.__init__, self, *args, **kwargs)
        assert (self.made["kv_layout"], self.made["backend"]) == ("NHD", "fa2")
        self.planned: dict[str, Any] = {}

    def reset_workspace_buffer(self, *args: Any, **kwargs: Any) -> None:
        assert bound(_REAL.reset_workspace_buffer, self, *args, **kwargs)["int_workspace_buffer"].dtype == torch.uint8

    def plan(self, *args: Any, **kwargs: Any) -> None:
        plan = bound(_REAL.plan, self, *args, **kwargs)
        names = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
        fixed = self.made["use_cuda_graph"]
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
        if fixed:
            self._copy(plan)
        self.planned = plan

    def _copy(self, plan: dict[str, Any]) -> None:
        """With `use_cuda_graph`: what a plan says goes to the buffers, and `run` reads nothing else of it."""
        made, rows = self.made, len(plan["qo_indptr"]) - 1
        plan["total"] = self.planned.get("total", int(plan["qo_indptr"][-1]))
        assert rows == len(made["qo_indptr_buf"]) - 1 == len(made["paged_kv_last_page_len_buf"])
        assert plan["qo_indptr"][-1] <= plan["total"], "more tokens than the first plan had"
        assert parts_bytes(plan, rows) <= made["float_workspace_buffer"].nbytes, "Increase the workspace buffer size"
        made["qo_indptr_buf"].copy_(plan["qo_indptr"])
        made["paged_kv_indptr_buf"].copy_(plan["paged_kv_indptr"])
        made["paged_kv_last_page_len_buf"].copy_(plan["paged_kv_last_page_len"])
        assert (plan["packed_custom_mask"] is None) == (made["custom_mask_buf"] is None)
        copied = {"paged_kv_indices": "paged_kv_indices_buf", "packed_custom_mask": "custom_mask_buf"}
        for name, buffer in copied.items():
            if plan[name] is not None and len(plan[name]):
                assert plan[name].data_ptr() == made[buffer].data_ptr(), f"a copy of {name} would wait for the device"
                assert len(plan[name]) <= len(made[buffer])
        if plan["mask_indptr"] is not None:
            made["mask_indptr_buf"].copy_(plan["mask_indptr"])

    def _read(self) -> dict[str, Any]:
        """What a run goes by."""
        if not self.made["use_cuda_graph"]:
            return self.planned
        held = {name.removesuffix("_buf"): each for name, each in self.made.items() if name.endswith("_buf")}
        lengths = get_seq_lens(held["paged_kv_indptr"], held["paged_kv_last_page_len"], self.planned["page_size"])
        return {**self.planned, **held, "packed_custom_mask": held["custom_mask"], "seq_lens": lengths}

    def run(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        call, plan = bound(_REAL.run, self, *args, **kwargs), self._read()
        query, (keys, values), out = call["q"], call["paged_kv_cache"], call["out"]
        assert keys.shape[1:] == values.shape[1:] == (plan["page_size"], plan["num_kv_heads"], plan["head_dim_qk"])
        assert query.shape[0] == plan["qo_indptr"][-1] and query.shape[1] == plan["num_qo_heads"]
        assert keys.stride() == values.stride(), "k/v strides differs"
        assert query.stride(2) == 1 and out.is_contiguous() and out.shape == query.shape
        assert query.dtype == plan["q_data_type"] and keys.dtype == plan["kv_data_type"] and call["return_lse"]
        lse = torch.empty(query.shape[:2], dtype=torch.float32)
        for row in range(len(plan["qo_indptr"]) - 1):
            new = slice(*plan["qo_indptr"][row : row + 2].tolist())
            pages = plan["paged_kv_indices"][slice(*plan["paged_kv_indptr"][row : row + 2].tolist())]
            length = int(plan["seq_lens"][row])
            k, v = (cache[pages].flatten(0, 1)[:length] for cache in (keys, values))
            scale, cap = plan["sm_scale"] * call["q_scale"], plan["logits_soft_cap"] or 0.0
            out[new], lse[new] = attended(query[new], k, v, scale, cap, shown(plan, row, length))
        return out, lse


class BatchMLAPagedAttentionWrapper:
    """What is planned is run on all later calls. It has no CUDA graphs here: its grid follows from what is planned."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        made = bound(_REAL_MLA.__init__, self, *args, **kwargs)
        assert made["backend"] == "fa2" and not made["use_cuda_graph"]
        self.planned: dict[str, Any] = {}

    def plan(self, *args: Any, **kwargs: Any) -> None:
        plan = bound(_REAL_MLA.plan, self, *args, **kwargs)
        for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr"):
            assert (plan[name].dtype, plan[name].device.type) == (torch.int32, "cpu"), name
        assert (plan["head_dim_ckv"], plan["head_dim_kpe"]) == (512, 64), "others are not made"
        pages = -(-plan["kv_len_arr"] // plan["page_size"])
        assert plan["kv_indptr"].diff().tolist() == pages.tolist()
        assert plan["q_data_type"] == plan["kv_data_type"], "kernels for KV of 8 bits are not made (aot.py)"
        self.planned = plan

    def run(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        call, plan = bound(_REAL_MLA.run, self, *args, **kwargs), self.planned
        query, shared, out = call["q_nope"], call["q_pe"], call["out"]
        assert query.shape == out.shape == (plan["qo_indptr"][-1], plan["num_heads"], plan["head_dim_ckv"])
        assert shared.shape == (*query.shape[:2], plan["head_dim_kpe"]) and query.stride(2) == shared.stride(2) == 1
        caches = call["ckv_cache"], call["kpe_cache"]
        assert [cache.shape[1] for cache in caches] == [plan["page_size"]] * 2
        assert query.dtype == caches[0].dtype == plan["q_data_type"] and call["return_lse"]
        lse = torch.empty(query.shape[:2], dtype=torch.float32)
        for row, length in enumerate(plan["kv_len_arr"].tolist()):
            new = slice(*plan["qo_indptr"][row : row + 2].tolist())
            pages = plan["kv_indices"][slice(*plan["kv_indptr"][row : row + 2].tolist())]
            latents, rotated = (cache[pages].flatten(0, 1)[:length, None] for cache in caches)
            seen = torch.ones(new.stop - new.start, length, dtype=torch.bool)
            if plan["causal"]:
                seen = seen.tril(length - len(seen))
            keys, queries = torch.cat((latents, rotated), 2), torch.cat((query[new], shared[new]), 2)
            out[new], lse[new] = attended(queries, keys, latents, plan["sm_scale"], 0.0, seen)
        return out, lse


def parts_bytes(plan: dict[str, Any], rows: int) -> int:
    """What `PrefillPlan` of scheduler.cuh takes of the workspace in graph mode, on a device with few processors."""
    heads, dim = plan["num_qo_heads"], plan["head_dim_qk"]
    group = heads // plan["num_kv_heads"]
    longest = (plan["total"] - rows + 1) * group
    tile = 128 if longest > 64 and dim < 256 else 64 if longest > 16 else 16
    tiles = math.ceil(plan["total"] * group / tile) + rows - 1
    return heads * tiles * tile * (dim + 1) * 4


def shown(plan: dict[str, Any], row: int, length: int) -> Tensor:
    """Bool [Q, L]: `DefaultAttention` of variants.cuh, whose window counts from the end of keys and queries, whatever the mask is."""
    queries = int(plan["qo_indptr"][row + 1] - plan["qo_indptr"][row])
    seen = torch.ones(queries, length, dtype=torch.bool)
    if plan["window_left"] >= 0:
        seen = seen.triu(length - queries - plan["window_left"])
    if plan["mask_indptr"] is None:
        return seen.tril(length - queries) if plan["causal"] else seen
    offsets = torch.arange(queries * length)
    octets = plan["packed_custom_mask"][int(plan["mask_indptr"][row]) + offsets // 8]
    return seen & (octets >> (offsets % 8) & 1).bool().view(queries, length)


def attended(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, cap: float, shown: Tensor
) -> tuple[Tensor, Tensor]:
    """query [Q, H, D], keys, values [L, K, width] -> [Q, H, width], and log2 of the sum of weights [Q, H]; 0 and -inf if nothing is seen"""
    group = query.shape[1] // keys.shape[1]
    keys, values = (each.repeat_interleave(group, 1).float() for each in (keys, values))
    scores = torch.einsum("qhd,lhd->qhl", query.float(), keys) * scale
    logits = (cap * torch.tanh(scores / cap) if cap else scores) * math.log2(math.e)
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
