"""Tiny random models of several architectures, saved as folders and loaded the way a service loads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    __version__,
)
from transformers.utils import logging

from specsplit.model import CausalLM
from specsplit.model.ranks.split import OLD
from tests.support.own_model import own_model
from tests.support.slow import slowly

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
splits_all = pytest.mark.skipif(OLD, reason=f"transformers {__version__} splits no experts, and no tied embeddings")
_TINY: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # large weights make every token of the context matter
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_TINY),
    "qwen2": lambda: Qwen2Config(**_TINY),
    "qwen3": lambda: Qwen3Config(**_TINY, head_dim=16),
    "mistral": lambda: MistralConfig(**_TINY, sliding_window=None),
}
_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "pad_token_id": 0}
OTHER_LAYERS: dict[str, Callable[[], PretrainedConfig]] = {
    "windows": lambda: MistralConfig(**_TINY, sliding_window=6),
    "windows and soft caps": lambda: Gemma2Config(**_TINY, head_dim=8, sliding_window=6, attn_logit_softcapping=1.5),
    "windows and sinks": lambda: GptOssConfig(**_TINY, **_EXPERTS, head_dim=8, sliding_window=6),
    "chunks": lambda: Llama4TextConfig(
        **_TINY, **_EXPERTS, head_dim=8, attention_chunk_size=8, no_rope_layers=[1, 0, 1], intermediate_size_mlp=48
    ),
    "layers that differ": lambda: AutoConfig.for_model(
        "mimo_v2_flash",
        **_TINY | {"num_key_value_heads": 1},
        head_dim=12,
        v_head_dim=8,
        swa_num_key_value_heads=2,
        sliding_window=6,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        n_group=2,
        topk_group=1,
    ),
    "latents": lambda: AutoConfig.for_model(
        "deepseek_v3",
        **_TINY | {"num_key_value_heads": 4},
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=6,
        first_k_dense_replace=1,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        n_group=2,
        topk_group=1,
    ),
}
"""Models whose layers see or keep something else than all tokens' keys and values of one shape."""
_STATES: dict[str, Any] = {
    "initializer_range": 0.1,  # a rounded state is multiplied by them again and again
    "num_hidden_layers": 4,
    "head_dim": 8,
    "pad_token_id": 0,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_SPACES: dict[str, Any] = {
    "initializer_range": 0.1,
    "head_dim": 8,
    "pad_token_id": 0,
    "n_groups": 1,
    "state_size": 8,
    "chunk_size": 16,
}
RECURRENT: dict[str, Callable[[], PretrainedConfig]] = {
    "delta rules": lambda: AutoConfig.for_model(
        "qwen3_next",
        **_TINY | _STATES,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        layer_types=2 * ["linear_attention", "full_attention"],
    ),
    "short convolutions": lambda: AutoConfig.for_model(
        "lfm2", **_TINY | _STATES, layer_types=2 * ["conv", "full_attention"]
    ),
    "state spaces alone": lambda: AutoConfig.for_model("mamba2", **_TINY | _SPACES, num_heads=8, expand=2),
    "states that one token at a time goes on from": lambda: AutoConfig.for_model(
        "mamba", **_TINY | _SPACES, time_step_rank=4, expand=2
    ),
    "state spaces beside attention": lambda: AutoConfig.for_model(
        "falcon_h1",
        **_TINY | {"initializer_range": 0.1, "head_dim": 8},
        mamba_d_ssm=64,
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_n_groups=1,
        mamba_d_state=8,
        mamba_chunk_size=16,
    ),
    "layers of experts alone": lambda: AutoConfig.for_model(
        "nemotron_h",
        **_TINY | {"initializer_range": 0.1, "num_hidden_layers": 4, "head_dim": 8},
        layer_types=["linear_attention", "moe", "full_attention", "moe"],
        mamba_num_heads=8,
        mamba_head_dim=8,
        ssm_state_size=8,
        n_groups=1,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        n_group=2,
        topk_group=1,
        chunk_size=16,
    ),
}
"""Models some of whose layers keep states."""

Saved = Callable[..., Path]


@pytest.fixture(autouse=True, scope="session")
def quiet_transformers() -> None:
    torch.set_num_threads(1)
    logging.set_verbosity_error()


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Saves a model with random weights and gives its folder."""

    def save(config: PretrainedConfig, seed: int = 20) -> Path:
        torch.manual_seed(seed)
        folder = tmp_path_factory.mktemp(config.model_type)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def folders(saved: Saved, quiet_transformers: None) -> dict[str, Path]:
    return {name: saved(make()) for name, make in {**CONFIGS, **OTHER_LAYERS, **RECURRENT}.items()}


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., dict[str, Any]]:
    """Keyword arguments of a tiny config, changed as asked."""
    return lambda **changes: {**_TINY, **changes}


@pytest.fixture(scope="session")
def split_config() -> Callable[..., dict[str, Any]]:
    """The same, with a vocabulary that the installed transformers splits over two processes, or four."""
    return lambda **changes: {**_TINY, "vocab_size": 100 if OLD else 97, **changes}


QUICK = ["delta rules", "states that one token at a time goes on from"]


@pytest.fixture(
    params=[*CONFIGS, *OTHER_LAYERS, *QUICK, *slowly(*(kind for kind in RECURRENT if kind not in QUICK)), "pocket"],
    scope="session",
)
def pair(request: pytest.FixtureRequest, folders: dict[str, Path]) -> tuple[CausalLM, PreTrainedModel]:
    """One model twice: served by us, and as transformers has it. Every architecture with random weights, and the pocket target."""
    return _pair(POCKET if request.param == "pocket" else folders[request.param])


@pytest.fixture(params=[*CONFIGS, *OTHER_LAYERS, "pocket"], scope="session")
def drafting_pair(request: pytest.FixtureRequest, folders: dict[str, Path]) -> tuple[CausalLM, PreTrainedModel]:
    """A pair, of those that may draft."""
    return _pair(POCKET if request.param == "pocket" else folders[request.param])


def _pair(folder: Path) -> tuple[CausalLM, PreTrainedModel]:
    return CausalLM.load(folder, num_pages=64, page_size=4), own_model(folder)


@pytest.fixture
def llama(folders: dict[str, Path]) -> CausalLM:
    return CausalLM.load(folders["llama"], num_pages=64, page_size=4)
