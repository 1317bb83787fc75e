"""Modules that a CPU runs in the place of transformers' own: the same numbers, or they are not there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
)

from specsplit.errors import LoadError
from specsplit.model import CausalLM
from specsplit.model.attention.interface import NAME
from specsplit.model.layers import trial
from specsplit.model.layers.cpu import CPU, packed
from specsplit.model.layers.cpu.attention import RotaryAttention
from specsplit.model.layers.cpu.decoder import NativeLayer
from specsplit.model.layers.cpu.linear import PackedLinear
from specsplit.model.layers.cpu.mlp import GatedMlp, NativeMlp
from specsplit.model.layers.cpu.norm import RmsNorm
from specsplit.model.layers.replacing import replace_layers
from specsplit.model.native import library
from specsplit.settings import DrafterSettings, VerifierSettings
from specsplit.values import DrafterKind, ModelInfo, Vocabulary
from tests.model.altered import (
    LAYERS,
    PATHS,
    PROMPTS,
    attention_in,
    clip_queries,
    logits_and_states,
    override,
    scale_far_positions,
)
from tests.model.conftest import CONFIGS
from tests.support.rounding import assert_as_exact

STANDS_FOR = {
    RotaryAttention: {"attention": 1},
    GatedMlp: {"mlp": 1},
    NativeMlp: {"mlp": 1},
    RmsNorm: {"norm": 1},
    PackedLinear: {"linear": 1},
    NativeLayer: {"attention": 1, "mlp": 1, "norm": 2, "layer": 1},
}
Saved = Callable[[PretrainedConfig], Path]


@pytest.fixture(params=[True, False], ids=["native", "torch"], autouse=True)
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether there are kernels in C."""
    if not request.param:
        monkeypatch.setattr(library, "obstacle", lambda: "there are none here")
    elif why := library.obstacle():
        pytest.skip(why)
    return request.param


def replaced(root: nn.Module) -> Counter[str]:
    """What of the modules below `root` others stand for; the parts of those are not counted."""
    found: Counter[str] = Counter()
    for child in root.children():
        found += Counter(STANDS_FOR[type(child)]) if type(child) in STANDS_FOR else replaced(child)
    return found


def reference(folder: Path) -> tuple[Tensor, dict[int, Tensor]]:
    """What `logits_and_states` gives, in float64, by transformers' own attention on one text after the other."""
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **eager).eval()
    last: list[Tensor] = []  # transformers tells the last layer's output behind the norm alone
    model.model.layers[2].register_forward_hook(lambda _, __, out: last.append(out))

    def behind(text: list[int]) -> tuple[Tensor, dict[int, Tensor]]:
        with torch.inference_mode():
            out = model(input_ids=torch.tensor([text]), use_cache=False, output_hidden_states=True)
        states = {0: out.hidden_states[0], 2: out.hidden_states[2], 3: last.pop(), -1: out.hidden_states[-1]}
        return out.logits[0, -1], {layer: each[0, -1] for layer, each in states.items()}

    prompts = [behind(prompt) for prompt in PROMPTS]
    nodes = [behind([*prompt, *path]) for prompt in (*PROMPTS, PROMPTS[0]) for path in PATHS]
    logits = torch.stack([each for each, _ in (*prompts, *nodes)])
    return logits, {layer: torch.stack([states[layer] for _, states in nodes]) for layer in LAYERS}


def assert_as_exact_as_transformers(fast: CausalLM, plain: CausalLM, folder: Path) -> None:
    (logits, states), (others, other_states), (exact, exact_states) = (
        logits_and_states(fast),
        logits_and_states(plain),
        reference(folder),
    )
    assert_as_exact(logits, others, exact)
    for layer in LAYERS:
        assert_as_exact(states[layer], other_states[layer], exact_states[layer])


@pytest.fixture
def llama_of() -> Callable[..., Any]:
    """Makes a model of one layer."""

    def make(**changes: Any) -> LlamaForCausalLM:
        torch.manual_seed(3)
        config = LlamaConfig(
            vocab_size=50,
            hidden_size=32,
            intermediate_size=48,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            **{"num_hidden_layers": 1, **changes},
        )
        return AutoModelForCausalLM.from_config(config, attn_implementation=NAME).eval().requires_grad_(False)

    return make


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_layer_of_a_known_architecture_is_replaced_and_gives_the_same_numbers(
    folders: dict[str, Path], kind: str, native: bool
) -> None:
    folder = folders[kind]
    plain, fast = (CausalLM.load(folder, num_pages=32, page_size=4, cpu_layers=on) for on in (False, True))
    assert not replaced(plain.model)
    expected = {"attention": 3, "mlp": 3, "norm": 7, "linear": 1, **({"layer": 3} if native else {})}
    assert replaced(fast.model) == expected, "one of the norms is the last, and the linear layer is the LM head"
    assert_as_exact_as_transformers(fast, plain, folder)


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden_size": 20, "intermediate_size": 7, "num_attention_heads": 5, "num_key_value_heads": 5},
        {
            "hidden_size": 72,
            "intermediate_size": 100,
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
            "head_dim": 8,
        },
        {
            "hidden_size": 66,
            "intermediate_size": 129,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 34,
        },
    ],
)
def test_sizes_that_fill_no_panel_and_no_vector_are_computed_as_well(
    saved: Saved, tiny_config: Callable[..., dict[str, Any]], sizes: dict[str, int], native: bool
) -> None:
    torch.manual_seed(6)
    folder = saved(LlamaConfig(**tiny_config(**sizes)))
    plain, fast = (CausalLM.load(folder, num_pages=32, page_size=4, cpu_layers=on) for on in (False, True))
    assert replaced(fast.model)["attention"] == 3 and replaced(fast.model)["layer"] == (3 if native else 0)
    assert_as_exact_as_transformers(fast, plain, folder)


def test_biases_are_kept(saved: Saved, tiny_config: Callable[..., dict[str, Any]]) -> None:
    torch.manual_seed(5)
    folder = saved(LlamaConfig(**tiny_config(attention_bias=True, mlp_bias=True)))
    model = AutoModelForCausalLM.from_pretrained(folder)
    for name, each in model.named_parameters():
        if name.endswith("bias"):
            each.data.normal_()
    model.save_pretrained(folder)
    plain, fast = (CausalLM.load(folder, num_pages=32, page_size=4, cpu_layers=on) for on in (False, True))
    assert replaced(fast.model)["attention"] == replaced(fast.model)["mlp"] == 3
    assert_as_exact_as_transformers(fast, plain, folder)


def test_what_is_not_known_stays_and_what_is_beside_it_is_replaced(
    saved: Saved, tiny_config: Callable[..., dict[str, Any]]
) -> None:
    folder = saved(
        Qwen3MoeConfig(**tiny_config(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8))
    )
    plain, fast = (CausalLM.load(folder, num_pages=32, page_size=4, cpu_layers=on) for on in (False, True))
    assert "mlp" not in replaced(fast.model) and replaced(fast.model)["attention"] == 3
    assert_as_exact_as_transformers(fast, plain, folder)


def test_in_bfloat16_norms_stay_and_logits_are_as_near_as_that_type_allows(folders: dict[str, Path]) -> None:
    plain, fast = (
        CausalLM.load(folders["llama"], num_pages=32, page_size=4, dtype="bfloat16", cpu_layers=on)
        for on in (False, True)
    )
    assert "norm" not in replaced(fast.model)
    logits, expected = logits_and_states(fast)[0], logits_and_states(plain)[0]
    assert (logits - expected).abs().max() <= 0.1 * expected.abs().max()


def clip_what_is_large(model: PreTrainedModel) -> None:
    def clipped(own: Any, hidden_states: Tensor, **options: Any) -> Any:
        return own(hidden_states.clamp(-20, 20), **options)

    override(attention_in(model), clipped)


def leave_positions_out(model: PreTrainedModel) -> None:
    def unturned(own: Any, hidden_states: Tensor, position_embeddings: Any, **options: Any) -> Any:
        cos, sin = position_embeddings
        return own(hidden_states, (torch.ones_like(cos), torch.zeros_like(sin)), **options)

    override(attention_in(model), unturned)


@pytest.mark.parametrize("change", [clip_queries, clip_what_is_large, scale_far_positions, leave_positions_out])
def test_attention_that_does_something_else_than_its_parts_say_stays(
    llama_of: Callable[..., LlamaForCausalLM], change: Callable[[PreTrainedModel], None]
) -> None:
    model = llama_of()
    untouched = deepcopy(model)
    change(model)
    for each, expected in ((model, 0), (untouched, 1)):
        replace_layers(each, CPU)
        assert replaced(each)["attention"] == expected


def in_the_second_layer(model: Any, change: str) -> Any:
    """A model of two layers whose attention in the second does otherwise, and is of the same class as the first or not."""
    first, second = (layer.self_attn for layer in model.model.layers)
    own = type(first).forward

    def forward(self: Any, hidden_states: Tensor, **options: Any) -> Any:
        doubled = getattr(self, "doubles", False) or (change == "number" and self.layer_idx == 1)
        return own(self, 2 * hidden_states if doubled else hidden_states, **options)

    other = type("Other", (type(first),), {"forward": forward})
    if change == "closure":
        second.forward = lambda hidden_states, **options: own(second, 2 * hidden_states, **options)
    else:
        second.__class__ = other
        second.doubles = change != "number"
    if change in ("attribute", "number"):
        first.__class__ = other
        first.doubles = False
    return model


@pytest.mark.parametrize("change", ["class", "attribute", "closure"])
def test_the_first_of_a_shape_is_tried_for_all_and_one_that_differs_is_tried_by_itself(
    llama_of: Callable[..., LlamaForCausalLM], change: str
) -> None:
    model = in_the_second_layer(llama_of(num_hidden_layers=2), change)
    replace_layers(model, CPU)
    first, second = (replaced(nn.ModuleList([layer])) for layer in model.model.layers)
    assert first["attention"] == 1 and second["attention"] == 0


def test_layers_that_differ_by_nothing_but_their_number_are_found_out_when_the_whole_model_is_run(
    llama_of: Callable[..., LlamaForCausalLM],
) -> None:
    model = in_the_second_layer(llama_of(num_hidden_layers=2), "number")
    info = ModelInfo("toy", Vocabulary(50, ""), 256, ())
    with pytest.raises(LoadError, match="other logits with modules for a CPU"):
        CausalLM(model, info, num_pages=32, page_size=4, cpu_layers=True)


def test_of_layers_that_are_alike_one_is_tried(
    llama_of: Callable[..., LlamaForCausalLM], monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    compared: list[torch.Size] = []
    own = vars(trial)["_close"]
    monkeypatch.setattr(trial, "_close", lambda one, other: compared.append(one.shape) or own(one, other))
    model = llama_of(num_hidden_layers=5)
    assert replace_layers(model, CPU) == 5 * 4 + 1
    assert len(compared) == (4 if native else 3) * 4, "a norm, an MLP, an attention and what they make, at four scales"


def scale_what_is_added(model: PreTrainedModel) -> None:
    override(model.model.layers[0], lambda own, hidden, **options: hidden + 0.5 * (own(hidden, **options) - hidden))


def norm_once(model: PreTrainedModel) -> None:
    """The MLP reads what the attention reads, as in some architectures."""

    def beside(own: Any, hidden: Tensor, **options: Any) -> Tensor:
        (layer,) = own.args
        normed = layer.input_layernorm(hidden)
        return hidden + layer.self_attn(hidden_states=normed, **options)[0] + layer.mlp(normed)

    override(model.model.layers[0], beside)


@pytest.mark.parametrize("change", [scale_what_is_added, norm_once])
def test_a_layer_that_puts_its_parts_together_otherwise_stays_and_its_parts_are_replaced(
    llama_of: Callable[..., LlamaForCausalLM], change: Callable[[PreTrainedModel], None], native: bool
) -> None:
    model = llama_of()
    untouched = deepcopy(model)
    change(model)
    for each, whole in ((model, 0), (untouched, int(native))):
        replace_layers(each, CPU)
        found = replaced(each)
        assert (found["attention"], found["mlp"], found["norm"], found["layer"]) == (1, 1, 3, whole)


def gate_with_one_number(model: Any) -> str:
    model.model.layers[0].mlp.gate_proj = nn.Linear(32, 1, bias=False)
    return "mlp"


def up_twice_as_wide(model: Any) -> str:
    """And its gate beside it, both of which the last projection reads."""
    mlp = model.model.layers[0].mlp
    mlp.gate_proj = nn.Linear(32, 24, bias=False)
    mlp.up_proj = nn.Linear(32, 24, bias=False)
    override(mlp, lambda own, x: mlp.down_proj(torch.cat([mlp.gate_proj(x), mlp.up_proj(x)], -1)))
    return "mlp"


def values_of_more_heads_than_keys(model: Any) -> str:
    attention_in(model).v_proj = nn.Linear(32, 32, bias=False)
    return "layer"


@pytest.mark.parametrize("change", [gate_with_one_number, up_twice_as_wide, values_of_more_heads_than_keys])
def test_parts_that_do_not_fit_one_another_are_not_put_together(
    llama_of: Callable[..., LlamaForCausalLM], change: Callable[[Any], str]
) -> None:
    """Kernels in C do not look at sizes: they would write where nothing is."""
    model = llama_of()
    part = change(model)
    replace_layers(model, CPU)
    assert not replaced(model)[part]


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_a_layer_with_numbers_of_its_own_stays(llama_of: Callable[..., LlamaForCausalLM], kind: str) -> None:
    """The first layer's may change nothing, and the others' may."""
    model: Any = llama_of(num_hidden_layers=2)
    for number, layer in enumerate(model.model.layers):
        scale = torch.tensor([1.0 - 0.5 * number])
        if kind == "buffer":
            layer.register_buffer("scale", scale)
        else:
            layer.scale = nn.Parameter(scale, requires_grad=False)
        override(layer, lambda own, hidden, **options: own.args[0].scale * own(hidden, **options))
    replace_layers(model, CPU)
    assert replaced(model)["layer"] == 0 and replaced(model)["attention"] == 2


def test_a_layer_that_says_nothing_says_nothing_of_others(llama_of: Callable[..., LlamaForCausalLM]) -> None:
    model: Any = llama_of(num_hidden_layers=3)
    first, second, _ = model.model.layers
    first.mlp.down_proj.weight.data.zero_()
    override(first.mlp, lambda own, x: 0.5 * own(x))
    second.mlp.__class__ = type(first.mlp)
    replace_layers(model, CPU)
    assert replaced(model)["mlp"] == 2, "the one of zeros, and the last one"


def test_embeddings_that_are_the_lm_head_are_held_once(
    saved: Saved, tiny_config: Callable[..., dict[str, Any]], native: bool
) -> None:
    torch.manual_seed(7)
    folder = saved(LlamaConfig(**tiny_config(tie_word_embeddings=True)))
    plain, fast = (CausalLM.load(folder, num_pages=32, page_size=4, cpu_layers=on) for on in (False, True))
    embeddings: Any = fast.model.get_input_embeddings()
    assert embeddings.weight.is_meta == native
    tokens = torch.tensor([[0, 5, 49], [5, 17, 1]])
    assert torch.equal(embeddings(tokens), plain.model.get_input_embeddings()(tokens))
    assert_as_exact_as_transformers(fast, plain, folder)


def test_a_norm_with_another_epsilon_than_it_says_stays(llama_of: Callable[..., LlamaForCausalLM]) -> None:
    model = llama_of(rms_norm_eps=1e-5)
    other = nn.RMSNorm(32, eps=1e-6)
    override(model.model.norm, lambda _, rows: other(rows))
    replace_layers(model, CPU)
    assert replaced(model)["norm"] == 2 and not isinstance(model.model.norm, RmsNorm)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_that_scales_a_little_otherwise_than_it_says_stays_in_any_type(
    llama_of: Callable[..., LlamaForCausalLM], dtype: torch.dtype
) -> None:
    """In bfloat16 rounding alone is as large: what is looked at is the module in float32."""
    model = llama_of()
    nn.Module.to(model, dtype)

    def sharper(own: Any, *args: Any, **options: Any) -> Any:
        (module,) = own.args
        said, module.scaling = module.scaling, 1.1 * module.scaling
        try:
            return own(*args, **options)
        finally:
            module.scaling = said

    override(attention_in(model), sharper)
    replace_layers(model, CPU)
    assert "attention" not in replaced(model)


def test_a_model_that_gives_other_logits_afterwards_is_refused(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    """Should a module ever be taken for what it is not, and pass."""
    if native:
        monkeypatch.setattr(NativeLayer, "forward", lambda self, hidden_states, *_, **__: 1.5 * hidden_states)
    else:
        monkeypatch.setattr(GatedMlp, "forward", lambda self, hidden: 1.5 * hidden)
    monkeypatch.setattr(trial, "_close", lambda own, other: True)
    with pytest.raises(LoadError, match=r"other logits with modules for a CPU \(off by .*: set cpu_layers = off"):
        CausalLM.load(folders["llama"], num_pages=32, page_size=4)


def test_an_mlp_of_another_activation_stays(llama_of: Callable[..., LlamaForCausalLM]) -> None:
    model = llama_of(hidden_act="gelu")
    replace_layers(model, CPU)
    assert "mlp" not in replaced(model)


def test_a_norm_that_adds_one_to_its_weight_stays(llama_of: Callable[..., LlamaForCausalLM]) -> None:
    model = llama_of()
    override(model.model.norm, lambda own, rows: own(rows) + rows)
    assert replace_layers(model, CPU) == 4
    assert replaced(model)["norm"] == 2 and not isinstance(model.model.norm, RmsNorm)


def test_a_module_with_broken_weights_stays(llama_of: Callable[..., LlamaForCausalLM]) -> None:
    model = llama_of()
    layer: Any = model.model.layers[0]
    layer.mlp.up_proj.weight.data[0, 0] = torch.nan
    replace_layers(model, CPU)
    assert "mlp" not in replaced(model)


def test_layers_that_say_nothing_are_replaced(folders: dict[str, Path]) -> None:
    """As inflate appends them: a difference of 0 is none, though it is no share of 0 either."""
    deep = CausalLM.load(folders["llama"], num_pages=8, page_size=4, inflate_layers=5)
    assert replaced(deep.model)["mlp"] == replaced(deep.model)["attention"] == 5


def in_float64(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
    exact = deepcopy(linear).double()
    return lambda rows: exact(rows.double())


@pytest.mark.parametrize("shape", [(0, 24), (1, 0, 24), (1, 24), (2, 3, 24), (1, 100, 24)])
def test_a_packed_layer_takes_any_number_of_rows(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    linear = nn.Linear(24, 40)
    small, exact = packed(linear), in_float64(linear)
    assert isinstance(small, PackedLinear)
    rows = torch.randn(shape)
    with torch.inference_mode():
        assert_as_exact(small(rows), linear(rows), exact(rows))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 129])
def test_weights_that_come_from_memory_are_multiplied_by_any_number_of_rows(count: int) -> None:
    torch.manual_seed(1)
    linear = nn.Linear(512, 600)
    small, exact, rows = packed(linear), in_float64(linear), torch.randn(1, count, 512)
    assert isinstance(small, PackedLinear)
    with torch.inference_mode():
        assert_as_exact(small(rows), linear(rows), exact(rows))


def test_a_type_that_cannot_be_packed_stays() -> None:
    linear = nn.Linear(8, 8, dtype=torch.float64)
    assert packed(linear) is linear


def test_compiled_layers_are_those_of_transformers() -> None:
    for settings in (VerifierSettings, DrafterSettings):
        needed = {"model": Path("m"), **({"kind": DrafterKind.STANDALONE} if settings is DrafterSettings else {})}
        assert settings(**needed).replaces_cpu_layers
        assert not settings(**needed, cpu_layers="off").replaces_cpu_layers
        assert not settings(**needed, compile="regional").replaces_cpu_layers
