"""Runs in vLLM's environment, as a file: one step of the MTP layer in FOLDER, by the model class and the attention that vLLM has for a CPU.

    vllm_step.py FOLDER FIRST OUT

FOLDER holds a target's checkpoint and `given`, tokens [n] and states [n, hidden_size]; FIRST is the position of the first token. OUT gets
these, the logits [n, V] and the states that the next step reads [n, hidden_size], in float32.
"""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from vllm.config import VllmConfig, get_layers_from_vllm_config, replace, set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader import get_model
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import MLAAttentionSpec

BLOCKS = 4
LONGEST = 64


def main() -> None:
    folder, first, out = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    given = load_file(folder / "given")
    config = config_of(folder)
    with set_current_vllm_config(config), torch.inference_mode():
        init_distributed_environment(1, 0, f"file://{folder.resolve()}/rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        torch.accelerator.empty_cache = lambda: None  # as vLLM's own runner for CPUs does
        draft = config.speculative_config.draft_model_config
        model = get_model(vllm_config=replace(config, model_config=draft), model_config=draft)
        logits, states = step(model, config, given["tokens"], given["states"], first)
    save_file({**given, "logits": logits.contiguous(), "next": states.contiguous()}, out)


def config_of(folder: Path) -> VllmConfig:
    """That of an engine which draws one token with the target's MTP layer."""
    return EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=LONGEST,
        max_num_batched_tokens=LONGEST,
        max_num_seqs=1,
        speculative_config={"method": "mtp", "num_speculative_tokens": 1},
        # Torch code in the place of kernels: on a CPU that which rotates gets queries [n, heads, numbers] of latent attention wrong.
        compilation_config={"custom_ops": ["none"]},
    ).create_engine_config()


def step(model: Any, config: VllmConfig, tokens: Tensor, states: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """One text, all of it new -> logits [n, V] and the states for a next step [n, hidden_size]."""
    positions = torch.arange(first, first + len(tokens))
    text = text_of(len(tokens), positions)
    attention, slots = {}, {}
    for name, layer in get_layers_from_vllm_config(config, AttentionLayerBase).items():
        spec, backend = layer.get_kv_cache_spec(config), layer.get_attn_backend()
        layer.kv_cache = torch.zeros(pool_shape(spec))
        builder = backend.get_builder_cls()(spec, [name], config, torch.device("cpu"))
        attention[name], slots[name] = builder.build(0, text), text.slot_mapping
    with set_forward_context(attention, config, num_tokens=len(tokens), slot_mapping=slots):
        found = model(input_ids=tokens, positions=positions, hidden_states=states)
        hidden, following = found if isinstance(found, tuple) else (found, found)
        return model.compute_logits(hidden), following


def pool_shape(spec: Any) -> tuple[int, ...]:
    """The shape of the keys and values of a layer as the backends for CPUs have them."""
    if isinstance(spec, MLAAttentionSpec):
        return BLOCKS, spec.block_size, spec.head_size
    return BLOCKS, spec.num_kv_heads, spec.block_size, 2 * spec.head_size


def text_of(count: int, positions: Tensor) -> CommonAttentionMetadata:
    """A batch of one text of so many tokens, none of which has been seen before."""
    starts, lengths = torch.tensor([0, count], dtype=torch.int32), torch.tensor([count], dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=1,
        num_actual_tokens=count,
        max_query_len=count,
        max_seq_len=count,
        block_table_tensor=torch.arange(BLOCKS, dtype=torch.int32)[None],
        slot_mapping=torch.arange(count),
        positions=positions,
        is_prefilling=torch.tensor([True]),
    )


if __name__ == "__main__":
    main()
