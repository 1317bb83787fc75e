"""Tiny targets with MTP layers in the layouts of their families, and what one step of each computes, straight from the published tensors.

The decoder layer is transformers' own, with eager attention; around it are the formula and the names of the family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import CONFIG_MAPPING
from transformers.models.deepseek_v32 import modeling_deepseek_v32 as deepseek_v32
from transformers.models.ernie4_5 import modeling_ernie4_5 as ernie_dense
from transformers.models.ernie4_5_moe import modeling_ernie4_5_moe as ernie
from transformers.models.exaone4 import modeling_exaone4 as exaone4
from transformers.models.exaone_moe import modeling_exaone_moe as exaone
from transformers.models.glm4_moe import modeling_glm4_moe as glm4
from transformers.models.glm4_moe_lite import modeling_glm4_moe_lite as glm4_lite
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as glm_dsa
from transformers.models.hy_v3 import modeling_hy_v3 as hy_v3
from transformers.models.longcat_flash import modeling_longcat_flash as longcat
from transformers.models.mimo_v2_flash import modeling_mimo_v2_flash as mimo_v2
from transformers.models.nemotron_h import modeling_nemotron_h as nemotron
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as qwen3_5_moe
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next
from transformers.models.step3p7 import modeling_step3p7 as step3p7

from tests.model.heads.published import HIDDEN, LAYERS, TARGET_FACTS, VOCAB, random_tensor

Tensors = dict[str, Tensor]
EPS = 1e-5
EXPERTS = 4
MOE: dict[str, Any] = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
GROUPS: dict[str, Any] = {"n_group": 2, "topk_group": 1}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
WINDOW = 4
"""Tokens of the windows that some of these layers have, the own one included."""


@dataclass(frozen=True)
class MtpTarget:
    """One family's folder, and how its layers are built for the reference."""

    facts: dict[str, Any]
    """Of config.json, beside those that all targets here have."""
    parts: tuple[str, str, str, str]
    """Published names of the norms of embedding and state, of the projection, and of the last norm; {} stands for the layer."""
    block: str
    """What the names of the decoder layer's tensors begin with."""
    layer: Callable[[Any], nn.Module]
    """The decoder layer of transformers, of a config."""
    rotary: Callable[[Any], nn.Module] | None
    own: dict[str, Any] = field(default_factory=dict)
    """Of the config of one such layer, where it is not that of the target's."""
    names: tuple[tuple[str, str], ...] = ()
    """Patterns of names in transformers' layer, and the published ones."""
    embeddings: str = "model.embed_tokens"
    """The target's."""
    first: int = 0
    steps: int = 1
    ends: dict[str, str] = field(default_factory=dict)
    """Published names of the embeddings and the LM head (by step) where they are not the target's."""
    one_more: bool = False
    """Norms multiply by their weight + 1."""
    zeros: bool = False
    """The embedding at position 0 is replaced by zeros."""
    chains_norm: bool = True
    """The next step reads the state behind the last norm."""
    before_norm: bool = False
    """The first step reads the target's last layer in front of the target's last norm."""
    by_kind: bool = False
    """The rotary embedding is another for layers with a window."""
    window: int | None = None
    copies: tuple[str, ...] = ()
    """Tensors in the folder that are copies of the target's."""
    eps: float = EPS

    @property
    def config_json(self) -> dict[str, Any]:
        if "text_config" in self.facts:
            return {**self.facts, "text_config": {**TARGET_FACTS, **self.facts["text_config"]}}
        return {**TARGET_FACTS, **self.facts}

    def config(self, step: int) -> Any:
        facts = dict(self.config_json.get("text_config", self.config_json))
        kind = CONFIG_MAPPING[facts.pop("model_type")]
        own = {key: value[step : step + 1] if key == "layer_types" else value for key, value in self.own.items()}
        config: Any = kind.from_dict({**facts, "num_nextn_predict_layers": 0, "num_hidden_layers": 1, **own})
        config._attn_implementation = "eager"
        return config

    def published(self, step: int, name: str) -> str:
        for pattern, replacement in self.names:
            name = re.sub(pattern, replacement, name)
        return self.block.format(self.first + step) + name

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor of the MTP layers."""
        shapes: dict[str, tuple[int, ...]] = {}
        for step in range(self.steps):
            number = self.first + step
            for name, tensor in self.layer(self.config(step)).state_dict().items():
                shapes |= {self.published(step, each): shape for each, shape in _one_by_one(name, tuple(tensor.shape))}
            *norms, proj, last = (f"{part.format(number)}.weight" for part in self.parts)
            shapes |= {name: (HIDDEN,) for name in (*norms, last) if name != ".weight"} | {proj: (HIDDEN, 2 * HIDDEN)}
            ends = (*self.ends.values(), *self.copies)
            shapes |= {f"{each.format(number)}.weight": (VOCAB, HIDDEN) for each in ends}
        return shapes

    def tensors(self) -> Tensors:
        """Those of the MTP layers, the target's ends, and a few that are none of a head's business."""
        others = {"model.norm.weight": (HIDDEN,), "model.layers.0.mlp.up_proj.weight": (48, HIDDEN)}
        ends = {f"{self.embeddings}.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
        shapes = {**self.shapes(), **others, **ends}
        return {name: random_tensor(name, shape, seed) for seed, (name, shape) in enumerate(sorted(shapes.items()))}

    @torch.inference_mode()
    def run(
        self, tensors: Tensors, step: int, tokens: Tensor, states: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits [V] and the next state of a chain's last row: tokens [n], states [n, HIDDEN], positions [n]."""
        number = self.first + step
        token_norm, hidden_norm, proj, last = (part and f"{part.format(number)}.weight" for part in self.parts)
        ends = {"embeddings": self.embeddings, "lm_head": "lm_head", **self.ends}
        embedded = tensors[f"{ends['embeddings']}.weight"][tokens].clone()
        if self.zeros:
            embedded[positions == 0] = 0
        pair = [self._normed(tensors[token_norm], embedded), self._normed(tensors[hidden_norm], states)]
        hidden = self._block(tensors, step, linear(torch.cat(pair, -1), tensors[proj]), positions)
        normed = self._normed(tensors[last], hidden) if last else hidden
        logits = linear(normed, tensors[f"{ends['lm_head'].format(number)}.weight"])
        return logits[-1], (normed if self.chains_norm else hidden)[-1]

    def _normed(self, weight: Tensor, hidden: Tensor) -> Tensor:
        scaled = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.eps)
        return scaled * (weight + 1 if self.one_more else weight)

    def _block(self, tensors: Tensors, step: int, inputs: Tensor, positions: Tensor) -> Tensor:
        config = self.config(step)
        layer = self.layer(config)
        expected = layer.state_dict()
        layer.load_state_dict({name: self._stored(tensors, step, name, each) for name, each in expected.items()})
        count, window = (
            len(inputs),
            self.window if "sliding_attention" in (getattr(config, "layer_types", None) or ()) else None,
        )
        ahead = torch.arange(count)[:, None] - torch.arange(count)
        hidden = (ahead < 0) | (ahead >= (window or count))
        mask = torch.zeros(count, count).masked_fill(hidden, torch.finfo(torch.float32).min)[None, None]
        given: dict[str, Any] = {"attention_mask": mask, "position_ids": positions[None]}
        if self.rotary is not None:
            rotary = self.rotary(config)
            kinds = config.layer_types[:1] if self.by_kind else ()
            by_axis = hasattr(rotary, "mrope_section")  # 5.17 takes a position for each of three
            places = positions.expand(3, 1, -1) if by_axis else positions[None]
            given["position_embeddings"] = rotary(inputs[None], places, *kinds)
        return layer(inputs[None], **given)[0]

    def _stored(self, tensors: Tensors, step: int, name: str, expected: Tensor) -> Tensor:
        """A tensor of transformers' layer, put together of published ones."""
        found = [tensors[self.published(step, each)] for each, _ in _one_by_one(name, tuple(expected.shape))]
        if len(found) == 1:
            return found[0]
        if name.endswith("gate_up_proj"):
            return torch.stack([torch.cat(found[at : at + 2]) for at in range(0, len(found), 2)])
        return torch.stack(found)


def _one_by_one(name: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """A tensor of transformers' layer by itself, or the published ones of every expert that it holds."""
    stem, _, last = name.rpartition(".")
    if not stem.endswith("experts") or len(shape) != 3:
        return [(name, shape)]
    count, rows, columns = shape
    half = (rows // 2, columns)
    each = {"gate_proj": half, "up_proj": half} if last == "gate_up_proj" else {last: (rows, columns)}
    return [(f"{stem}.{expert}.{kind}.weight", size) for expert in range(count) for kind, size in each.items()]


class Chain(nn.ModuleList):
    """Layers one behind the other."""

    def forward(self, hidden: Tensor, **given: Any) -> Tensor:
        for layer in self:
            hidden = layer(hidden, **given)
        return hidden


class PlainLongcat(nn.Module):
    """LongCat's MTP layer: attention over latents and a dense MLP."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.input_layernorm = longcat.LongcatFlashRMSNorm(HIDDEN, EPS)
        self.self_attn = longcat.LongcatFlashMLA(config, 0)
        self.post_attention_layernorm = longcat.LongcatFlashRMSNorm(HIDDEN, EPS)
        self.mlp = longcat.LongcatFlashMLP(config)

    def forward(self, hidden: Tensor, **given: Any) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), **given)[0]
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class GlmDsaLayer(glm_dsa.GlmMoeDsaDecoderLayer):
    """GLM-5's layer without the indexer's choice beside the states."""

    def forward(self, *given: Any, **named: Any) -> Any:
        return super().forward(*given, **named)[0]


def _behind(prefix: str = "model.layers.{}.", last: str = "shared_head.norm") -> tuple[str, str, str, str]:
    return f"{prefix}enorm", f"{prefix}hnorm", f"{prefix}eh_proj", f"{prefix}{last}"


_QWEN_PARTS = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
_COPIES = ("model.layers.{}.embed_tokens", "model.layers.{}.shared_head.head")
_QWEN_LINEAR: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_QWEN_MOE: dict[str, Any] = {**MOE, "num_experts": EXPERTS, "shared_expert_intermediate_size": 16}
_FULL: dict[str, Any] = {"layer_types": ["full_attention"] * 3}


def _qwen3_next() -> MtpTarget:
    return MtpTarget(
        {"model_type": "qwen3_next", "rms_norm_eps": EPS, **_QWEN_LINEAR, **_QWEN_MOE},
        _QWEN_PARTS,
        "mtp.layers.{}.",
        lambda config: qwen3_next.Qwen3NextDecoderLayer(config, 0),
        qwen3_next.Qwen3NextRotaryEmbedding,
        own=_FULL,
        one_more=True,
    )


def _qwen3_5() -> MtpTarget:
    text = {"model_type": "qwen3_5_text", **_QWEN_LINEAR, "mtp_num_hidden_layers": 1}
    return MtpTarget(
        {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": False},
        _QWEN_PARTS,
        "mtp.layers.{}.",
        lambda config: qwen3_5.Qwen3_5DecoderLayer(config, 0),
        qwen3_5.Qwen3_5TextRotaryEmbedding,
        own=_FULL,
        embeddings="model.language_model.embed_tokens",
        one_more=True,
    )


def _qwen3_5_moe() -> MtpTarget:
    return MtpTarget(
        {"model_type": "qwen3_5_moe_text", **_QWEN_LINEAR, **_QWEN_MOE, "mtp_num_hidden_layers": 1},
        _QWEN_PARTS,
        "mtp.layers.{}.",
        lambda config: qwen3_5_moe.Qwen3_5MoeDecoderLayer(config, 0),
        qwen3_5_moe.Qwen3_5MoeTextRotaryEmbedding,
        own=_FULL,
        one_more=True,
    )


def _turning(config: Any) -> nn.Module:
    """An EXAONE layer with rotary positions: the target's own have none where they see all tokens."""
    layer: Any = exaone.ExaoneMoeDecoderLayer(config, 0)
    if config.layer_types == ["full_attention"]:
        layer.self_attn.sliding_window = None
    return layer


def _exaone(kind: str) -> MtpTarget:
    sparse = ["sparse"] * (LAYERS - 1)
    return MtpTarget(
        {
            "model_type": "exaone_moe",
            **MOE,
            **GROUPS,
            "num_experts": EXPERTS,
            "num_shared_experts": 1,
            "sliding_window": WINDOW,
            "sliding_window_pattern": "LLLG",
            "layer_types": [kind, *["sliding_attention", "full_attention"] * 3, "full_attention"],
            "mlp_layer_types": ["dense", *sparse],
            "num_nextn_predict_layers": 1,
        },
        _QWEN_PARTS,
        "mtp.layers.{}.",
        _turning,
        exaone.ExaoneMoeRotaryEmbedding,
        own={"layer_types": [kind], "mlp_layer_types": ["dense"]},
        window=WINDOW,
    )


def _exaone4_5() -> MtpTarget:
    text = {
        "model_type": "exaone4",
        "sliding_window": WINDOW,
        "sliding_window_pattern": 4,
        "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * (LAYERS // 4),
    }
    return MtpTarget(
        {"model_type": "exaone4_5", "text_config": text, "tie_word_embeddings": False, "num_nextn_predict_layers": 1},
        _QWEN_PARTS,
        "mtp.layers.{}.",
        lambda config: exaone4.Exaone4DecoderLayer(config, 0),
        exaone4.Exaone4RotaryEmbedding,
        own={"layer_types": ["sliding_attention"]},
        embeddings="model.language_model.embed_tokens",
        window=WINDOW,
    )


def _glm4_moe() -> MtpTarget:
    return MtpTarget(
        {
            "model_type": "glm4_moe",
            **MOE,
            **GROUPS,
            "n_routed_experts": EXPERTS,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "attention_bias": True,
            "use_qk_norm": True,
            "num_nextn_predict_layers": 1,
        },
        _behind(),
        "model.layers.{}.",
        lambda config: glm4.Glm4MoeDecoderLayer(config, 0),
        glm4.Glm4MoeRotaryEmbedding,
        own={"first_k_dense_replace": 0},
        first=LAYERS,
        chains_norm=False,
        copies=_COPIES,
    )


def _glm4_moe_lite() -> MtpTarget:
    return MtpTarget(
        {
            "model_type": "glm4_moe_lite",
            **MOE,
            **GROUPS,
            **LATENT,
            "n_routed_experts": EXPERTS,
            "n_shared_experts": 1,
            "num_nextn_predict_layers": 1,
        },
        _behind(),
        "model.layers.{}.",
        lambda config: glm4_lite.Glm4MoeLiteDecoderLayer(config, 0),
        glm4_lite.Glm4MoeLiteRotaryEmbedding,
        own={"mlp_layer_types": ["sparse"]},
        first=LAYERS,
        chains_norm=False,
        copies=_COPIES,
    )


def _indexed(model_type: str, layer: Callable[[Any], nn.Module], rotary: Callable[[Any], nn.Module]) -> MtpTarget:
    """The reference runs the indexer, whose choice are all tokens of a text as short as here."""
    return MtpTarget(
        {
            "model_type": model_type,
            **MOE,
            **GROUPS,
            **LATENT,
            "n_routed_experts": EXPERTS,
            "n_shared_experts": 1,
            "first_k_dense_replace": 3,
            "index_topk": 16,
            "index_head_dim": 8,
            "index_n_heads": 2,
            "num_nextn_predict_layers": 1,
        },
        _behind(),
        "model.layers.{}.",
        layer,
        rotary,
        own={"first_k_dense_replace": 0},
        first=LAYERS,
        chains_norm=False,
        copies=_COPIES,
    )


def _ernie(*, experts: bool) -> MtpTarget:
    parts = ("model.mtp_emb_norm.{}", "model.mtp_hidden_norm.{}", "model.mtp_linear_proj.{}", "")
    if not experts:
        return MtpTarget(
            {"model_type": "ernie4_5", "num_nextn_predict_layers": 1},
            parts,
            "model.mtp_block.{}.",
            lambda config: ernie_dense.Ernie4_5DecoderLayer(config, 0),
            ernie_dense.Ernie4_5RotaryEmbedding,
            zeros=True,
        )
    return MtpTarget(
        {
            "model_type": "ernie4_5_moe",
            **MOE,
            "moe_num_experts": EXPERTS,
            "moe_k": 2,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": LAYERS - 1,
            "num_nextn_predict_layers": 1,
        },
        parts,
        "model.mtp_block.{}.",
        lambda config: ernie.Ernie4_5_MoeDecoderLayer(config, 0),
        ernie.Ernie4_5_MoeRotaryEmbedding,
        zeros=True,
    )


def _mimo_v2() -> MtpTarget:
    return MtpTarget(
        {
            "model_type": "mimo_v2_flash",
            **MOE,
            "n_routed_experts": EXPERTS,
            "head_dim": 12,
            "v_head_dim": 8,
            "num_key_value_heads": 1,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2,
            "swa_head_dim": 12,
            "swa_v_head_dim": 8,
            "swa_rope_theta": 5000.0,
            "partial_rotary_factor": 0.5,
            "add_swa_attention_sink_bias": True,
            "attention_value_scale": 0.6,
            "sliding_window_size": WINDOW - 1,
            "layernorm_epsilon": EPS,
        },
        _behind("model.mtp.layers.{}.", "final_layernorm"),
        "model.mtp.layers.{}.",
        lambda config: mimo_v2.MiMoV2FlashDecoderLayer(config, 0),
        mimo_v2.MiMoV2FlashRotaryEmbedding,
        own={
            "layer_types": ["sliding_attention"] * 3,
            "mlp_layer_types": ["dense"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}
            },
        },
        names=(
            (r"^post_attention_layernorm", "pre_mlp_layernorm"),
            (r"self_attn\.sinks", "self_attn.attention_sink_bias"),
        ),
        steps=3,
        by_kind=True,
        window=WINDOW,
    )


def _step3p5(*, inside: bool) -> MtpTarget:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    facts: dict[str, Any] = {
        "model_type": "step3p5",
        "pad_token_id": 1,
        "num_attention_groups": 2,
        "share_expert_dim": 16,
        "moe_num_experts": EXPERTS,
        "moe_top_k": 2,
        "moe_intermediate_size": 16,
        "sliding_window": WINDOW,
        "layer_types": ["full_attention", "sliding_attention"] * (LAYERS // 2) + kinds,
        "moe_layers_enum": ",".join(map(str, range(3, LAYERS))),
        "attention_other_setting": {"num_attention_heads": 6},
        "rope_theta": [5e6, 1e4] * (LAYERS // 2) + [1e4, 5e6, 1e4],
        "partial_rotary_factors": [0.5, 1.0] * (LAYERS // 2) + [1.0, 0.5, 1.0],
        "num_nextn_predict_layers": 3,
        "rms_norm_eps": EPS,
    }
    del facts["num_attention_groups"]
    return MtpTarget(
        {"model_type": "step3p7", "text_config": facts} if inside else facts,
        _behind(),
        "model.layers.{}.transformer.",
        lambda config: step3p7.Step3p7DecoderLayer(config, 0),
        step3p7.Step3p7RotaryEmbedding,
        own={
            "layer_types": kinds,
            "mlp_layer_types": ["dense"],
            "rope_theta": 1.0,
            "partial_rotary_factors": None,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
                "full_attention": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
            },
        },
        first=LAYERS,
        steps=3,
        ends={"lm_head": "model.layers.{}.shared_head.output"},
        one_more=True,
        chains_norm=False,
        before_norm=True,
        by_kind=True,
        window=WINDOW,
    )


def _hy_v3() -> MtpTarget:
    return MtpTarget(
        {"model_type": "hy_v3", **MOE, "num_experts": EXPERTS, "num_shared_experts": 1, "num_nextn_predict_layers": 1},
        _behind(last="final_layernorm"),
        "model.layers.{}.",
        lambda config: hy_v3.HYV3DecoderLayer(config, 0),
        hy_v3.HYV3RotaryEmbedding,
        own={"mlp_layer_types": ["sparse"]},
        names=(
            (r"mlp\.gate\.", "mlp.router.gate."),
            (r"mlp\.e_score_correction_bias", "mlp.expert_bias"),
            (r"mlp\.shared_experts\.", "mlp.shared_mlp."),
        ),
        first=LAYERS,
        zeros=True,
        copies=("model.layers.{}.shared_head",),
    )


def _bailing_module(name: str, *given: Any) -> nn.Module:
    """Made when it is asked for: transformers 5.17 does not have this family yet."""
    modules = import_module("transformers.models.bailing_hybrid.modeling_bailing_hybrid")
    return getattr(modules, f"BailingHybrid{name}")(*given)


def _bailing() -> MtpTarget:
    return MtpTarget(
        {
            "model_type": "bailing_hybrid",
            **MOE,
            **GROUPS,
            **LATENT,
            "num_experts": EXPERTS,
            "num_shared_experts": 1,
            "first_k_dense_replace": 1,
            "layer_group_size": 2,
            "num_nextn_predict_layers": 1,
        },
        _behind(last="final_layernorm"),
        "model.layers.{}.",
        lambda config: _bailing_module("DecoderLayer", config, 0),
        lambda config: _bailing_module("RotaryEmbedding", config),
        own={"layer_types": ["full_attention"], "mlp_layer_types": ["sparse"]},
        names=(
            (r"self_attn\.o_proj", "attention.dense"),
            (r"^self_attn\.", "attention."),
            (r"gate\.e_score_correction_bias", "gate.expert_bias"),
        ),
        embeddings="model.word_embeddings",
        first=LAYERS,
    )


def _nemotron() -> MtpTarget:
    return MtpTarget(
        {
            "model_type": "nemotron_h",
            **MOE,
            "n_routed_experts": EXPERTS,
            "n_shared_experts": 1,
            "moe_shared_expert_intermediate_size": 16,
            **GROUPS,
            "hybrid_override_pattern": "M*ME" * (LAYERS // 4),
            "mtp_hybrid_override_pattern": "*E",
            "num_nextn_predict_layers": 1,
            "layer_norm_epsilon": EPS,
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "n_groups": 1,
        },
        ("mtp.layers.0.enorm", "mtp.layers.0.hnorm", "mtp.layers.0.eh_proj", "mtp.layers.1.final_layernorm"),
        "mtp.layers.",
        lambda config: Chain(nemotron.NemotronHBlock(config, at) for at in range(2)),
        None,
        own={"hybrid_override_pattern": "*E", "num_hidden_layers": 2},
        embeddings="backbone.embeddings",
    )


def _longcat() -> MtpTarget:
    return MtpTarget(
        {
            "model_type": "longcat_flash",
            **LATENT,
            "num_layers": LAYERS // 2,
            "num_hidden_layers": LAYERS,
            "ffn_hidden_size": 48,
            "expert_ffn_hidden_size": 16,
            "n_routed_experts": EXPERTS,
            "zero_expert_num": 2,
            "moe_topk": 2,
        },
        ("model.mtp.layers.{}.enorm.m", "model.mtp.layers.{}.hnorm.m", "model.mtp.layers.{}.eh_proj", "model.mtp.norm"),
        "model.mtp.layers.{}.",
        PlainLongcat,
        longcat.LongcatFlashRotaryEmbedding,
        names=((r"^mlp\.", "transformer_layer.mlp."),),
        ends={"embeddings": "model.mtp.embed_tokens"},
    )


TARGETS: Mapping[str, MtpTarget] = {
    "qwen3_next": _qwen3_next(),
    "qwen3_5": _qwen3_5(),
    "qwen3_5_moe": _qwen3_5_moe(),
    "glm4_moe": _glm4_moe(),
    "glm4_moe_lite": _glm4_moe_lite(),
    "deepseek_v32": _indexed(
        "deepseek_v32",
        lambda config: deepseek_v32.DeepseekV32DecoderLayer(config, 0),
        deepseek_v32.DeepseekV32RotaryEmbedding,
    ),
    "glm_moe_dsa": _indexed("glm_moe_dsa", lambda config: GlmDsaLayer(config, 0), glm_dsa.GlmMoeDsaRotaryEmbedding),
    "ernie4_5": _ernie(experts=False),
    "ernie4_5_moe": _ernie(experts=True),
    "mimo_v2_flash": _mimo_v2(),
    "step3p5": _step3p5(inside=False),
    "step3p7": _step3p5(inside=True),
    "exaone_moe": _exaone("full_attention"),
    "exaone_moe, a window": _exaone("sliding_attention"),
    "exaone4_5": _exaone4_5(),
    "hy_v3": _hy_v3(),
    "bailing_hybrid": _bailing(),
    "nemotron_h": _nemotron(),
    "longcat_flash": _longcat(),
}
