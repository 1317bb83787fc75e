"""What cannot be served is refused at load, with a sentence that says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BloomConfig,
    DeepseekV3Config,
    Gemma2Config,
    GPTJConfig,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    NemotronConfig,
    Phi3Config,
    PhiConfig,
    PhiForCausalLM,
    PretrainedConfig,
    Qwen2Config,
    T5Config,
)
from transformers.models.llama.modeling_llama import LlamaAttention

from specsplit.errors import LoadError
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.pages.geometry import ALL, Layer, Span
from specsplit.values import MAX_TEMPERATURE, Sampling
from tests.support.rounding import assert_as_exact
from tests.support.sampling import pick

Tiny = Callable[..., dict[str, Any]]
Saved = Callable[[PretrainedConfig], Path]


def load(folder: Path, **options: Any) -> CausalLM:
    return CausalLM.load(folder, **{"num_pages": 16, "page_size": 4, **options})


def refused(folder: Path, why: str, **options: Any) -> None:
    with pytest.raises(LoadError, match=why):
        load(folder, **options)


def described(folder: Path) -> tuple[Layer, ...]:
    return load(folder, num_pages=200).kv.geometry.layers


def test_layers_are_described_as_the_model_shows_them(saved: Saved, tiny_config: Tiny) -> None:
    plain = Layer(num_heads=4, kv_heads=2, key_width=8, value_width=8)
    window = replace(plain, span=Span(window=20))
    assert described(saved(MistralConfig(**tiny_config(), sliding_window=20))) == (window,) * 3
    qwen2 = Qwen2Config(**tiny_config(), use_sliding_window=True, sliding_window=20, max_window_layers=2)
    assert described(saved(qwen2)) == (plain, plain, window)
    gemma2 = Gemma2Config(**tiny_config(), head_dim=8, sliding_window=20, attn_logit_softcapping=30.0)
    capped = replace(window, softcap=30.0)
    assert described(saved(gemma2)) == (capped, replace(capped, span=ALL), capped)
    gpt_oss = GptOssConfig(**tiny_config(), head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=20)
    sinks = replace(window, sinks=True)
    assert described(saved(gpt_oss)) == (sinks, replace(sinks, span=ALL), sinks)


def test_a_window_as_wide_as_the_context_is_no_window(saved: Saved, tiny_config: Tiny) -> None:
    assert {layer.span for layer in described(saved(MistralConfig(**tiny_config(), sliding_window=512)))} == {ALL}


def longrope(saved: Saved, tiny_config: Tiny) -> Path:
    """A Phi-3 that turns its keys otherwise in texts of more than 128 tokens."""
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    return saved(Phi3Config(**tiny_config(pad_token_id=0), rope_parameters=rope, original_max_position_embeddings=128))


def test_rope_that_turns_otherwise_in_long_texts_is_served_up_to_there(saved: Saved, tiny_config: Tiny) -> None:
    folder = longrope(saved, tiny_config)
    refused(folder, "others in a text of more than 128 tokens.*set max_context = 128")
    refused(folder, "set max_context = 128", max_context=129)
    lm = load(folder, max_context=128, num_pages=40)
    assert lm.info.max_context == 128
    ids = [(37 * index + 5) % 97 for index in range(128)]
    table = PageTable(lm.pool)
    table.reserve(128)
    ours = torch.cat(
        [lm.forward([Row.chunk(ids[end - 32 : end], table.upto(end), range(32))]) for end in (32, 64, 96, 128)]
    )
    own = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        theirs = own(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        exact = own.double()(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    assert_as_exact(ours, theirs, exact)


def test_rope_that_turns_otherwise_beyond_the_context_is_served(saved: Saved, tiny_config: Tiny) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    load(saved(LlamaConfig(**tiny_config(), rope_parameters=rope)))


def test_a_context_longer_than_the_models_is_refused(folders: dict[str, Path]) -> None:
    refused(folders["llama"], "max_context is 513, and llama takes 512 tokens at most", max_context=513)


def test_other_rope_scalings_are_served(saved: Saved, tiny_config: Tiny) -> None:
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    load(saved(LlamaConfig(**tiny_config(), rope_parameters=rope)))


def test_an_architecture_that_hands_on_no_keywords_is_served(saved: Saved, tiny_config: Tiny) -> None:
    """Its attention is not told what its model was called with; the check at load compares the logits."""
    load(saved(NemotronConfig(**tiny_config(), head_dim=8)))


def test_a_config_that_its_own_architecture_cannot_run_is_refused(saved: Saved, tiny_config: Tiny) -> None:
    """Rope tables of head_dim for keys whose rope part has another width: the weights load, the forward raises."""
    ranks = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
    config = AutoConfig.for_model(
        "deepseek_v3", **tiny_config(), **ranks, **experts, moe_intermediate_size=16, head_dim=8
    )
    refused(saved(config), "it fails on a single token: RuntimeError: The size of tensor")


OWN_FAILURES = {
    "deepseek_v2": "fails with its own attention",
    "gemma3_text": "fails on a single token",
    "longcat_flash": "fails on a single token",
    "minicpm3": "fails with its own attention",
    "ministral": "fails on a single token",
    "olmo3": "fails on a single token",
    "xmod": "fails on a single token",
}
"""Configs that transformers builds and saves, and cannot run: what they raise is theirs, and of many kinds."""


@pytest.mark.parametrize("kind", OWN_FAILURES)
def test_what_transformers_cannot_run_is_refused_with_what_it_raised(
    saved: Saved, tiny_config: Tiny, kind: str
) -> None:
    ranks = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "ffn_hidden_size": 48}
    config = AutoConfig.for_model(
        kind, **tiny_config(pad_token_id=0, sliding_window=None), **ranks, **experts, head_dim=8, num_layers=2
    )
    refused(saved(config), f"{OWN_FAILURES[kind]}.*: \\w+Error: ")


def test_a_config_that_nobody_can_read_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["llama"], tmp_path / "strange")
    for name, value in (("num_hidden_layers", "three"), ("hidden_size", -1), ("rope_parameters", [1])):
        before = json.loads((folder / "config.json").read_text())[name]
        edit(folder, **{name: value})
        refused(folder, "cannot be loaded")
        edit(folder, **{name: before})
    load(folder)


@pytest.mark.parametrize(("token", "number"), [(slice(None), -torch.inf), (7, torch.nan), (7, torch.inf)])
def test_a_model_whose_logits_are_no_numbers_is_refused(
    saved: Saved, tiny_config: Tiny, token: int | slice, number: float
) -> None:
    refused(
        biased(saved, tiny_config, token, number), "computes NaN or infinity with its own attention in torch.float32"
    )


def test_a_model_that_never_says_some_tokens_is_served(saved: Saved, tiny_config: Tiny) -> None:
    lm = load(biased(saved, tiny_config, slice(0, 90), -torch.inf))
    table = PageTable(lm.pool)
    table.reserve(3)
    logits = lm.forward([Row.chunk([1, 2, 3], table.upto(3), [0, 1, 2])])
    samplings = [Sampling(), Sampling(1.0, top_p=0.9), Sampling(MAX_TEMPERATURE, top_k=20)]
    assert all(token is not None and token >= 90 for token in pick(logits, samplings, [1, 2, 3]))


def biased(saved: Saved, tiny_config: Tiny, token: int | slice, number: float) -> Path:
    """A Phi, whose LM head has a bias, with that number as the bias of some tokens."""
    folder = saved(PhiConfig(**tiny_config()))
    model = PhiForCausalLM.from_pretrained(folder)
    model.lm_head.bias.data[token] = number
    model.save_pretrained(folder)
    return folder


def test_state_space_layers_are_refused(saved: Saved) -> None:
    config = MambaConfig(vocab_size=97, hidden_size=16, num_hidden_layers=2, state_size=4)
    refused(saved(config), "mamba does not say how long a context it takes")


def test_an_architecture_with_its_own_attention_is_refused(saved: Saved) -> None:
    folder = saved(BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4))
    edit(folder, max_position_embeddings=128)
    refused(folder, "does not use transformers' AttentionInterface")


def test_an_architecture_from_before_the_interface_is_refused(saved: Saved) -> None:
    config = GPTJConfig(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=128, rotary_dim=8)
    refused(saved(config), "gptj does not use transformers' AttentionInterface")


def test_layers_that_keep_something_else_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["qwen2"], tmp_path / "hybrid")
    edit(folder, layer_types=["full_attention", "compressed_sparse_attention", "full_attention"])
    refused(
        folder, "layers of kind compressed_sparse_attention: only layers with keys and values per token, or with states"
    )


def test_truncated_weights_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["llama"], tmp_path / "truncated")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    refused(folder, "cannot be loaded")


def test_weights_that_are_not_there_are_not_made_up(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["llama"], tmp_path / "short")
    edit(folder, num_hidden_layers=4)
    refused(folder, "lacks 9 of the weights its config.json asks for, model.layers.3")


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    T5Config(vocab_size=97, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2).save_pretrained(tmp_path)
    refused(tmp_path, "encoder-decoder")


def test_missing_and_broken_folders_are_refused(tmp_path: Path, folders: dict[str, Path]) -> None:
    refused(tmp_path / "nowhere", "does not exist")
    refused(tmp_path, "has no config.json")
    (tmp_path / "config.json").write_text((folders["llama"] / "config.json").read_text())
    refused(tmp_path, "cannot be loaded")
    (tmp_path / "config.json").write_text("{")
    refused(tmp_path, "cannot be loaded")


def test_unknown_settings_are_refused(folders: dict[str, Path]) -> None:
    refused(folders["llama"], "dtype 'int3' is not known", dtype="int3")
    refused(folders["llama"], "attention backend 'abacus' is not there", backend="abacus")
    refused(folders["llama"], "attention = flashinfer cannot be had: it needs an NVIDIA GPU", backend="flashinfer")
    refused(folders["llama"], "4 KV tokens are too few", num_pages=1)


def test_a_model_that_does_not_agree_with_itself_is_refused(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An architecture whose attention output hangs on more than what it hands over (here: on the length of the batch)."""
    true_forward = LlamaAttention.forward

    def forward(self: LlamaAttention, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        out, weights = true_forward(self, hidden_states, *args, **kwargs)
        return out * hidden_states.shape[1], weights

    monkeypatch.setattr(LlamaAttention, "forward", forward)
    refused(folders["llama"], "other logits in a packed token tree than on the tree's paths")


def test_positions_that_an_architecture_counts_by_itself_are_refused_wherever_they_begin_to_matter(
    saved: Saved, tiny_config: Tiny
) -> None:
    """Llama 4 scales queries from `floor_scale` tokens on, by positions that it does not take from us."""
    scaled = {"attn_temperature_tuning": True, "attn_scale": 0.5, "no_rope_layers": [0, 0, 0]}
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 48}
    tiny = tiny_config(pad_token_id=0, head_dim=8, layer_types=["full_attention"] * 3, **scaled, **experts)
    for floor_scale in (32, 400):
        config = AutoConfig.for_model("llama4_text", **tiny, floor_scale=floor_scale)
        refused(saved(config), "at positions 502 to 511 .off by", num_pages=100)
    load(saved(AutoConfig.for_model("llama4_text", **tiny, floor_scale=1000)))


def test_what_sets_in_with_a_longer_text_is_refused(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    true_forward = LlamaAttention.forward

    def forward(self: LlamaAttention, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        out, weights = true_forward(self, hidden_states, *args, **kwargs)
        return out * (1 if hidden_states.shape[1] < 90 else 2), weights

    monkeypatch.setattr(LlamaAttention, "forward", forward)
    refused(folders["llama"], "in a text of 102 tokens .off by", num_pages=30)
    load(folders["llama"])  # whose pool holds no text as long as that


def test_what_sets_in_with_a_length_that_the_config_names_is_refused_or_told_to_be_untried(
    saved: Saved, tiny_config: Tiny, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    true_forward = LlamaAttention.forward

    def forward(self: LlamaAttention, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        out, weights = true_forward(self, hidden_states, *args, **kwargs)
        return out * (1 if hidden_states.shape[1] <= self.config.tempered_from else 2), weights

    monkeypatch.setattr(LlamaAttention, "forward", forward)
    refused(
        saved(LlamaConfig(**tiny_config(max_position_embeddings=4096, tempered_from=700))),
        "in a text of 705 tokens .off by",
        num_pages=200,
    )
    assert not caplog.messages
    with caplog.at_level("INFO"):
        load(saved(LlamaConfig(**tiny_config(max_position_embeddings=4096, tempered_from=3000))), num_pages=200)
    assert [
        line for line in caplog.messages if "longer than 1024 tokens" in line and "names tempered_from = 3000:" in line
    ]


SCALED_POSITIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("llama", {"factor": 2.0}),
    "yarn": ("llama", {"factor": 16.0, "original_max_position_embeddings": 32}),
    "llama3": (
        "llama",
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "yarn with scaled queries": (
        "ministral3",
        {"factor": 16.0, "original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.5},
    ),
}


@pytest.mark.parametrize("name", SCALED_POSITIONS)
def test_what_follows_the_positions_it_is_given_is_served_right_to_the_end_of_the_context(
    saved: Saved, tiny_config: Tiny, name: str
) -> None:
    kind, rope = SCALED_POSITIONS[name]
    parameters = {"rope_type": name.split(maxsplit=1)[0], "rope_theta": 10000.0, **rope}
    tiny = tiny_config(pad_token_id=0, head_dim=8, sliding_window=None)
    folder = saved(AutoConfig.for_model(kind, **tiny, rope_parameters=parameters))
    ids = [(37 * index + 5) % 97 for index in range(500)]
    lm = load(folder, num_pages=125)
    table = PageTable(lm.pool)
    table.reserve(500)
    ends = range(25, 501, 25)
    ours = torch.cat([lm.forward([Row.chunk(ids[end - 25 : end], table.upto(end), range(25))]) for end in ends])
    own = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        theirs = own(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        exact = own.double()(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    assert_as_exact(ours, theirs, exact)


def test_loading_leaves_every_page_free(folders: dict[str, Path]) -> None:
    lm = load(folders["llama"])
    assert lm.pool.free_pages == lm.pool.total_pages == 16


def test_values_narrower_than_keys_are_served(saved: Saved, tiny_config: Tiny) -> None:
    """The heads of latent attention, as DeepSeek-V3 has it, with experts behind it; again the probe is the assertion."""
    ranks = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
    experts = {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 16,
    }
    tiny = tiny_config(num_key_value_heads=4, first_k_dense_replace=1, **ranks, **experts)
    config = DeepseekV3Config(**tiny)
    lm = load(saved(config), latent_cache=False)
    assert {(layer.kv_heads, layer.key_width, layer.value_width) for layer in lm.kv.geometry.layers} == {(4, 12, 6)}


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "olmo2", "granite", "qwen3_moe", "mixtral", "phi3"])
def test_other_architectures_pass_the_probe(saved: Saved, tiny_config: Tiny, kind: str) -> None:
    """The probe itself is the assertion: it compares packed trees with the model's own attention."""
    lm = load(saved(AutoConfig.for_model(kind, **tiny_config(pad_token_id=0))))
    assert len(lm.kv.geometry.layers) == lm.model.config.num_hidden_layers
