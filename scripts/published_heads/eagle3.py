"""EAGLE-3 and P-EAGLE heads in every variant that `speculators` has, small enough to be committed."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3SpeculatorConfig
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.models.eagle3.core import create_float_mask as float_mask
from speculators.models.peagle import core as peagle
from speculators.models.peagle.config import PEagleSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from torch import Tensor
from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

VOCAB: Final = 64
DRAFT_VOCAB: Final = 24
HIDDEN: Final = 16
LENGTH: Final = 9
STEPS: Final = 3
_SHAPE: Final = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
_YARN: Final = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_WINDOWS: Final = {
    "use_sliding_window": True,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
}


def llama(**options: Any) -> PretrainedConfig:
    """The config of the decoder layers of a head, of Llama's kind."""
    return LlamaConfig(**{**_SHAPE, **options})


def qwen3(**options: Any) -> PretrainedConfig:
    """The config of decoder layers that norm queries and keys."""
    return Qwen3Config(**{**_SHAPE, **options})


def write_eagle3(folder: Path, layer: PretrainedConfig, seed: int, **options: Any) -> None:
    """Write a head as the library saves it, and the logits [LENGTH, draft V] of its forward for tokens 0 to STEPS - 1 ahead."""
    torch.manual_seed(seed)
    model = _filled(_built(Eagle3DraftModel, Eagle3SpeculatorConfig, layer, options))
    inputs = _inputs(model)
    seen = _logits_seen(model)
    with torch.no_grad():
        model(
            hidden_states=inputs["features"][None],
            input_ids=inputs["tokens"][None],
            document_ids=torch.zeros(1, LENGTH, dtype=torch.long),
            ttt_steps=STEPS,
        )
    _save(folder, model, {**inputs, **{f"logits.{step}": each for step, each in enumerate(seen)}})


def write_peagle(folder: Path, layer: PretrainedConfig, seed: int, **options: Any) -> None:
    """Write a head as the library saves it, and the logits [n, draft V] of its forward.

    `anchors` [n] are the last tokens with a true feature, `depths` [n] how many masks the token behind each row's logits is ahead of it.
    """
    torch.manual_seed(seed)
    options = {"mask_token_id": VOCAB - 1, **options}
    model = _filled(_built(peagle.PEagleDraftModel, PEagleSpeculatorConfig, layer, options))
    inputs = _inputs(model)
    seen, drawn = _logits_seen(model), list[tuple[Tensor, Tensor]]()
    original = peagle.generate_cod_sample_indices

    def noted(**arguments: Any) -> tuple[Tensor, Tensor]:
        drawn.append(original(**arguments))
        return drawn[-1]

    peagle.generate_cod_sample_indices = noted
    with torch.no_grad():
        model(
            hidden_states=inputs["features"][None],
            input_ids=inputs["tokens"][None],
            document_ids=torch.zeros(1, LENGTH, dtype=torch.long),
            verifier_last_hidden_states=torch.zeros(1, LENGTH, HIDDEN),
            num_depths=STEPS,
            loss_config=resolve_loss_config("kl_div", "eager"),
        )
    peagle.generate_cod_sample_indices = original
    _save(folder, model, {**inputs, "logits": seen[0], "anchors": drawn[0][0], "depths": drawn[0][1]})


def _built(model: Any, config: Any, layer: PretrainedConfig, options: dict[str, Any]) -> Any:
    layer._attn_implementation = "eager"  # pyright: ignore[reportPrivateUsage]
    made = model(
        config(
            transformer_layer_config=layer,
            **{"draft_vocab_size": DRAFT_VOCAB, "eagle_aux_hidden_state_layer_ids": [1, 3, 5], **options},
            speculators_config=SpeculatorsConfig(
                algorithm=config.model_fields["speculators_model_type"].default,
                proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
                default_proposal_method="greedy",
                verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
            ),
        )
    )
    made._create_mask_fn = partial(float_mask, dtype=torch.float32)
    return made


def _filled(model: Any) -> Any:
    """Fill a model with weights that bfloat16 has, so large that every token of the context matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            noise = 0.3 * torch.randn_like(parameter)
            parameter.copy_((1 + noise if parameter.ndim == 1 else noise).bfloat16())
        if model.d2t is not None:
            ids = (torch.arange(DRAFT_VOCAB) * 5 + 2).remainder(VOCAB).sort().values
            model.d2t.copy_(ids - torch.arange(DRAFT_VOCAB))
            model.t2d.zero_().index_fill_(0, ids, True)
    return model.float().eval()


def _inputs(model: Any) -> dict[str, Tensor]:
    """Tokens [LENGTH], and the features [LENGTH, states x HIDDEN] of the tokens before them."""
    return {"tokens": torch.randint(0, VOCAB, (LENGTH,)), "features": torch.randn(LENGTH, model.fc.in_features)}


def _logits_seen(model: Any) -> list[Tensor]:
    seen: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: seen.append(output[0].clone()))
    return seen


def _save(folder: Path, model: Any, record: dict[str, Tensor]) -> None:
    model.bfloat16().save_pretrained(folder)
    for path in folder.glob("*.py"):  # the library's own code, which a reader of the checkpoint has
        path.unlink()
    save_file(record, folder / "record.safetensors")


Writer = Callable[[Path], None]


def _eagle3(seed: int, layer: PretrainedConfig, **options: Any) -> Writer:
    return partial(write_eagle3, layer=layer, seed=seed, **options)


def _peagle(seed: int, layer: PretrainedConfig, **options: Any) -> Writer:
    return partial(write_peagle, layer=layer, seed=seed, **options)


EAGLE3: Final[dict[str, Writer]] = {
    "eagle3-llama": _eagle3(1, llama()),
    "eagle3-qwen3": _eagle3(2, qwen3()),
    "eagle3-norm-before-residual": _eagle3(3, llama(), norm_before_residual=True),
    "eagle3-norm-before-fc": _eagle3(4, llama(), norm_before_fc=True),
    "eagle3-fc-norm": _eagle3(5, llama(), fc_norm=True),
    "eagle3-norm-output": _eagle3(6, llama(), norm_output=True),
    "eagle3-two-blocks": _eagle3(7, llama(num_hidden_layers=2)),
    "eagle3-windows": _eagle3(8, qwen3(num_hidden_layers=2, **_WINDOWS), norm_before_residual=True),
    "eagle3-two-states": _eagle3(9, llama(), eagle_aux_hidden_state_layer_ids=[2, 6]),
    "eagle3-five-states": _eagle3(10, qwen3(), eagle_aux_hidden_state_layer_ids=[0, 2, 4, 6, 8], fc_norm=True),
    "eagle3-whole-vocabulary": _eagle3(11, llama(), draft_vocab_size=VOCAB),
    "eagle3-biases": _eagle3(12, llama(attention_bias=True, mlp_bias=True)),
    "eagle3-yarn": _eagle3(13, llama(rope_parameters=_YARN)),
    "eagle3-all-at-once": _eagle3(
        14, qwen3(num_hidden_layers=2), norm_before_residual=True, norm_before_fc=True, norm_output=True
    ),
}
PEAGLE: Final[dict[str, Writer]] = {
    "peagle-llama": _peagle(21, llama()),
    "peagle-qwen3": _peagle(22, qwen3(num_hidden_layers=2), norm_before_residual=True, norm_before_fc=True),
    "peagle-fc-norm": _peagle(23, llama(), fc_norm=True, draft_vocab_size=VOCAB),
}
