"""The sizes of tiny models, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Settings = Mapping[str, Any]

SMALL: Final[Settings] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "sliding_window": 20,
    "attention_chunk_size": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # experts
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "intermediate_size_mlp": 48,
    # latents
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    # recurrent layers
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_expand": 2,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "ssm_state_size": 8,
    "state_size": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    # encoders and decoders
    "encoder_layers": 2,
    "decoder_layers": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
"""What a tiny config is made of: each kind is given those of them that it has a setting for."""

_LATENT: Final[Settings] = {"num_key_value_heads": 4, "head_dim": 4}
"""Attention over latents: as many KV heads as heads, and `head_dim` is the width of what is rotated."""
_GEMMA: Final[Settings] = {
    "global_head_dim": 16,
    "vocab_size_per_layer_input": 97,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0,
}
_GEMMA_ASSISTANT: Final[Settings] = {
    **_GEMMA,
    "vocab_size_per_layer_input": 0,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 4,
}
_DOTS3: Final[Settings] = {
    "num_key_value_heads": 4,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 16,
    "swa_kv_lora_rank": 16,
    "swa_head_dim": 8,
    "swa_qk_nope_head_dim": 4,
    "swa_qk_rope_head_dim": 4,
    "swa_v_head_dim": 8,
    "index_n_heads": 4,
    "index_head_dim": 8,
    "index_topk": 8,
}
_SOME_WINDOWS: Final[Settings] = {"layer_types": ["sliding_attention", "full_attention"] * 2}
_INDEXER: Final[Settings] = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
}
_DECODER: Final[Settings] = {"is_decoder": True}
_PICTURES: Final[Settings] = {"patch_size": 8, "image_size": 16}

OWN: Final[Mapping[str, Settings]] = {
    "axk1": _LATENT,
    "axk2": _LATENT,
    "bailing_hybrid": {**_LATENT, "layer_group_size": 2},
    "bamba": {"attn_layer_indices": [1]},
    "bert": _DECODER,
    "bert-generation": _DECODER,
    "big_bird": _DECODER,
    "blt": {
        "encoder_hash_byte_group_vocab": 97,
        "patcher_config": {},
        "encoder_config": {"hidden_size_global": 32},
        "decoder_config": {"hidden_size_global": 32},
        "global_config": {},
    },
    "camembert": _DECODER,
    "codegen": {"rotary_dim": 4},
    "cohere_compass_text": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
        }
    },
    "cpmant": {"dim_ff": 48, "dim_head": 8, "prompt_length": 4},
    "data2vec-text": _DECODER,
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 32, "hidden_size": 32},
        "d_model": 32,
    },
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT,
    "dots1": {"n_shared_experts": 1},
    "dots3_note": {
        "text_config": _DOTS3,
        "vision_config": {"pyramid_num_routed": [-1, 2, 4], "adapter_in_dim": 32, "adapter_out_dim": 32},
        "audio_config": {"adapter_input_size": 32, "adapter_out_dim": 32, "downsample_hidden_size": 8},
    },
    "dots3_note_text": _DOTS3,
    "electra": _DECODER,
    "ernie": _DECODER,
    "falcon_h1": {"mamba_d_ssm": 64},
    "fuyu": {"text_config": {"model_type": "persimmon"}},
    "gemma3": {"text_config": _SOME_WINDOWS, "vision_config": {"model_type": "siglip_vision_model", **_PICTURES}},
    "gemma3_text": _SOME_WINDOWS,
    "gemma3n": {"vision_config": {"architecture": "mobilenetv3_small_100"}},
    "gemma3n_text": {**_GEMMA, "num_hidden_layers": 5},
    "gemma4": {"text_config": _GEMMA, "vision_config": {"position_embedding_size": 64}, "audio_config": None},
    "gemma4_assistant": {"text_config": {"model_type": "gemma4_text", **_GEMMA_ASSISTANT}},
    "gemma4_text": _GEMMA,
    "gemma4_unified": {
        "text_config": _GEMMA,
        "vision_config": {"patch_size": 4, "mm_embed_dim": 32, "mm_posemb_size": 16, "output_proj_dims": 32},
    },
    "gemma4_unified_assistant": {"text_config": {"model_type": "gemma4_unified_text", **_GEMMA_ASSISTANT}},
    "gemma4_unified_text": _GEMMA,
    "glm4_moe_lite": _LATENT,
    "glm_moe_dsa": _LATENT,
    "got_ocr2": {
        "text_config": {"model_type": "qwen2"},
        "vision_config": {"mlp_dim": 48, "output_channels": 16, "image_size": 64},
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 20},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {
        **_LATENT,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_head_dim": 8,
        "linear_num_heads": 4,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "longcat_flash": {
        **_LATENT,
        "ffn_hidden_size": 48,
        "expert_ffn_hidden_size": 16,
        "zero_expert_num": 2,
        "moe_topk": 2,
    },
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "megatron-bert": _DECODER,
    "minicpm3": _LATENT,
    "moshi": {"audio_encoder_config": {"model_type": "mimi"}},
    "moss_transcribe_diarize": {"text_config": {"model_type": "qwen3"}},
    "musicgen": {"decoder": {}},
    "musicgen_melody": {"decoder": {}},
    "phi4_multimodal": {
        "audio_config": {"num_blocks": 1, "ext_pw_out_channel": 16, "nemo_conv_channels": 16},
        "vision_config": {**_PICTURES, "crop_size": 16},
    },
    "qwen3_5": {"text_config": {}},
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": _INDEXER,
    "reformer": {"is_decoder": True, "axial_pos_embds": False, "attention_head_size": 8, "feed_forward_size": 48},
    "rembert": _DECODER,
    "roberta": _DECODER,
    "roberta-prelayernorm": _DECODER,
    "roc_bert": {**_DECODER, "shape_vocab_size": 97, "pronunciation_embed_dim": 8, "shape_embed_dim": 8},
    "roformer": _DECODER,
    "xlm-roberta": _DECODER,
    "xlm-roberta-xl": _DECODER,
    "xlnet": {"d_head": 8},
    "xmod": {**_DECODER, "default_language": "en_XX"},
    "youtu": _LATENT,
    "zamba": {"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
    "zamba2": {"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}
"""What kinds need beside those, by the name that transformers has for them; what is None there keeps transformers' own default."""
