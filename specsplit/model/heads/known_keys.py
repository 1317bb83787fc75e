"""Every setting in a head's config.json is read, or known to change no number: one that is neither is refused by name."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from inspect import signature
from pathlib import Path
from typing import Any, Final

from transformers import PretrainedConfig

from specsplit.errors import LoadError

EAGLE_READ: Final = frozenset(
    {"bias", "head_dim", "model_type", "qkv_bias", "rope_theta", "rope_scaling", "speculators_model_type"}
)
"""Settings of EAGLE heads that are read, or that the names of the tensors tell too, beside those of their decoder layers."""
_OF_EXPERTS: Final = frozenset(
    {"aux_loss_alpha", "ep_size", "moe_layer_freq", "scoring_func", "seq_aux", "topk_method"}
)
EAGLE3_READ: Final = (
    EAGLE_READ
    | _OF_EXPERTS
    | {
        "draft_vocab_size",
        "eagle_aux_hidden_state_layer_ids",
        "fc_norm",
        "has_lm_head",
        "logit_scale",
        "mask_token_id",
        "norm_before_fc",
        "norm_before_residual",
        "norm_output",
        "num_aux_hidden_states",
        "pard_token",
        "ptd_token_id",
        "target_hidden_size",
    }
)
"""Settings of EAGLE-3 heads that are read beside those of their decoder layers, and those of experts, which they have none of."""
BLOCK_READ: Final = frozenset(
    {
        "aux_hidden_state_layer_ids",
        "block_size",
        "causal",
        "confidence_head_with_markov",
        "conv_group_size",
        "conv_kernel_size",
        "draft_vocab_size",
        "enable_confidence_head",
        "head_dim",
        "is_causal",
        "logit_scale",
        "markov_head_type",
        "markov_rank",
        "mask_token_id",
        "model_type",
        "rope_scaling",
        "rope_theta",
        "sample_from_anchor",
        "selector_rank",
        "selector_top_k",
        "sliding_window_non_causal",
        "speculators_model_type",
        "swa_window_size",
        "target_hidden_size",
        "target_layer_ids",
        "use_swa",
    }
)
"""Settings of block drafters that are read beside those of their decoder layers."""
_log: Final = logging.getLogger(__name__)
_FULL: Final = "full_attention"
_NESTED: Final = ("transformer_layer_config", "eagle_config", "dflash_config")
MTP_READ: Final = frozenset(
    {
        "mtp_hybrid_override_pattern",
        "mtp_layer_types",
        "mtp_layers_block_type",
        "mtp_loss_scaling_factor",  # of training
        "mtp_mlp_layer_types",
        "mtp_num_hidden_layers",
        "mtp_sliding_windows",
        "mtp_use_dedicated_embeddings",
        "num_mtp_layers",
        "num_nextn_predict_layers",
    }
)
"""Settings of MTP layers that are read, here or by the configs of transformers."""
_OF_MTP: Final = re.compile(r"(^|_)(mtp|nextn)(_|$)")
HARMLESS: Final = frozenset(
    {
        # who wrote the file, when, and for which target
        "_name_or_path", "auto_map", "hub_kwargs", "modal_type", "speculators_config", "speculators_version", "target_model_type",
        "num_target_layers", "tokenizer_class", "torch_dtype", "transformers_version",
        # of training
        "attention_dropout", "dropout", "embed_requires_grad", "gradient_checkpointing", "has_no_defaults_at_init",
        "hidden_dropout", "initializer_range", "output_router_logits", "router_aux_loss_coef", "ttt_length", "ttt_steps",
        # how a model is run
        "_attn_implementation", "_attn_implementation_internal", "attn_implementation", "max_window_layers",
        "parallel_draft_heads_num_layers", "pretraining_tp", "torchscript", "use_bfloat16", "use_cache",
        # tokens that begin, end and fill a text
        "begin_suppress_tokens", "bos_token_id", "decoder_start_token_id", "eos_token_id", "forced_bos_token_id",
        "forced_eos_token_id", "pad_token_id", "sep_token_id", "suppress_tokens", "unk_token_id",
        # how the head alone would write or classify texts
        "bad_words_ids", "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty", "finetuning_task", "id2label", "is_decoder",
        "label2id", "length_penalty", "max_length", "min_length",
        "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions", "output_hidden_states",
        "output_scores", "prefix", "problem_type", "pruned_heads", "remove_invalid_values", "repetition_penalty", "return_dict",
        "return_dict_in_generate", "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "top_k", "top_p",
        "typical_p",
        # the names of the tensors tell
        "tie_word_embeddings",
    }
)  # fmt: skip
"""Settings that change no number of a head that runs: whatever they say, they are passed over."""
_ALLOWED: Final[dict[str, tuple[Any, ...]]] = {
    "is_causal": (True,),
    "next_layer_regular": (True,),
    "parallel_draft_step": (1,),
    "parallel_drafting": (True, False),
    "partial_rotary_factor": (1,),
    "use_aux_hidden_state": (True,),
    "use_input_layernorm_in_first_layer": (True,),
    "use_last_layernorm": (True,),
}
"""Settings that are known, with what they may say: they would change numbers if they said anything else."""


_OFF: Final = frozenset(
    {
        "add_cross_attention",
        "attention_bias",
        "is_encoder_decoder",
        "mlp_bias",
        "use_mtp_layernorm",
        "use_qk_norm",
        "use_sliding_window",
    }
)
"""Settings that switch on what no head here has where they are not read: false is what is computed."""


def require_known(folder: Path, facts: dict[str, Any], layers: PretrainedConfig, read: Collection[str]) -> None:
    """facts: the folder's config.json. layers: the config of the decoder layers that was made of it. read: what else is read.

    A setting that is unknown passes only if it says null, or false, which the log tells of. Raises LoadError naming those that do not.
    """
    own, renamed = signature(type(layers)).parameters, type(layers).attribute_map
    known = {*own, *renamed, *renamed.values(), *read, *HARMLESS, *_NESTED}
    if _sees_everything(facts):
        known.add("sliding_window")
    places = {"": facts, **{f"{name}.": facts.get(name) or {} for name in _NESTED}}
    unknown = [
        (where, key, said)
        for where, place in places.items()
        for key, said in sorted(place.items())
        if key not in known and not _passes(key, said)
    ]
    wrong = [f"{where}{key} = {said!r}" for where, key, said in unknown if said is not False or key in _ALLOWED]
    if wrong:
        raise LoadError(
            f"model folder {folder}: config.json says {', '.join(wrong)}, which may change what the head computes and is not supported: "
            "a head is served only where all that it says of its numbers is known"
        )
    if unknown:
        _log.warning(
            "config.json of the head in %s says false of settings that are not known, which count as not set: %s",
            folder,
            ", ".join(f"{where}{key}" for where, key, _ in unknown),
        )


def tell_of_unread(folder: Path, facts: dict[str, Any]) -> None:
    """Log the settings of MTP layers in a target's config.json that say something and are not read.

    They are not refused as a head's are: of a target's settings most are others' business, and what they say of training looks the same.
    """
    text: dict[str, Any] = facts.get("text_config") or {}
    unread = [
        f"{key} = {said!r}"
        for key, said in sorted({**facts, **text}.items())
        if _OF_MTP.search(key) and key not in MTP_READ and said is not None and said is not False
    ]
    if unread:
        _log.warning("config.json in %s says of its MTP layers what is not known here: %s", folder, ", ".join(unread))


def _sees_everything(facts: dict[str, Any]) -> bool:
    """Whether no layer has a window by what config.json says, so that the size of one is of no account.

    speculators goes by `layer_types` alone, and writes the size that transformers has by default.
    """
    layers = facts.get("transformer_layer_config") or facts
    kinds = layers.get("layer_types")
    if kinds is not None:
        return set(kinds) <= {_FULL}
    return layers.get("use_sliding_window") is False or "speculators_model_type" in facts


def _passes(key: str, said: Any) -> bool:
    if key == "layer_types":
        return set(said or ()) <= {_FULL}
    if key in _ALLOWED:
        return said is None or said in _ALLOWED[key]
    return said is None or (said is False and key in _OFF)
