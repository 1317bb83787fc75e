"""EAGLE-3 and P-EAGLE heads in every variant that `speculators` has, small enough to be committed."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3SpeculatorConfig
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.models.peagle import core as peagle
from speculators.models.peagle.config import PEagleSpeculatorConfig
from torch import Tensor
from transformers import PretrainedConfig

from scripts.published_heads.tiny import DRAFT_VOCAB, HIDDEN, VOCAB, built, filled, inputs, llama, qwen3, save

LENGTH: Final = 9
STEPS: Final = 3
_YARN: Final = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_WINDOWS: Final = {
    "use_sliding_window": True,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
}


def write_eagle3(folder: Path, layer: PretrainedConfig, seed: int, **options: Any) -> None:
    """Write a head as the library saves it, and the logits [LENGTH, draft V] of its forward for tokens 0 to STEPS - 1 ahead."""
    torch.manual_seed(seed)
    model = _built(Eagle3DraftModel, Eagle3SpeculatorConfig, layer, options)
    given = inputs(model, LENGTH)
    seen = _logits_seen(model)
    with torch.no_grad():
        model(
            hidden_states=given["features"][None],
            input_ids=given["tokens"][None],
            document_ids=torch.zeros(1, LENGTH, dtype=torch.long),
            ttt_steps=STEPS,
        )
    save(folder, model, {**given, **{f"logits.{step}": each for step, each in enumerate(seen)}})


def write_peagle(folder: Path, layer: PretrainedConfig, seed: int, **options: Any) -> None:
    """Write a head as the library saves it, and the logits [n, draft V] of its forward.

    `anchors` [n] are the last tokens with a true feature, `depths` [n] how many masks the token behind each row's logits is ahead of it.
    """
    torch.manual_seed(seed)
    options = {"mask_token_id": VOCAB - 1, **options}
    model = _built(peagle.PEagleDraftModel, PEagleSpeculatorConfig, layer, options)
    given = inputs(model, LENGTH)
    seen, drawn = _logits_seen(model), list[tuple[Tensor, Tensor]]()
    original = peagle.generate_cod_sample_indices

    def noted(**arguments: Any) -> tuple[Tensor, Tensor]:
        drawn.append(original(**arguments))
        return drawn[-1]

    peagle.generate_cod_sample_indices = noted
    with torch.no_grad():
        model(
            hidden_states=given["features"][None],
            input_ids=given["tokens"][None],
            document_ids=torch.zeros(1, LENGTH, dtype=torch.long),
            verifier_last_hidden_states=torch.zeros(1, LENGTH, HIDDEN),
            num_depths=STEPS,
            loss_config=resolve_loss_config("kl_div", "eager"),
        )
    peagle.generate_cod_sample_indices = original
    save(folder, model, {**given, "logits": seen[0], "anchors": drawn[0][0], "depths": drawn[0][1]})


def _built(model: Any, config: Any, layer: PretrainedConfig, options: dict[str, Any]) -> Any:
    options = {"draft_vocab_size": DRAFT_VOCAB, "eagle_aux_hidden_state_layer_ids": [1, 3, 5], **options}
    return filled(built(model, config, layer, options, STEPS))


def _logits_seen(model: Any) -> list[Tensor]:
    seen: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: seen.append(output[0].clone()))
    return seen


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
