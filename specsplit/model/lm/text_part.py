"""The text model of a multimodal one, where transformers has no causal language model for it: taken out of the whole."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.configuration_auto import model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from specsplit.errors import LoadError
from specsplit.model.attention.interface import NAME

_TEXT: Final = "language_model"
"""The module that is the text model, in whatever stands below the LM head."""
_TRIED: Final = 4
"""Tokens that the two modules are run on, beside the whole."""
_TOLERANCE: Final = 0.05
"""Of the largest logit: rounding, in whatever type the weights have."""


class TextPart(PreTrainedModel):
    """The text model and the LM head of a multimodal model, as a causal language model. Made by `text_part`."""

    base_model_prefix = "model"

    def __init__(self, whole: PreTrainedModel) -> None:
        super().__init__(whole.config.get_text_config(decoder=True))
        self.model = whole.base_model.get_submodule(_TEXT)
        self.lm_head: Any = whole.get_output_embeddings()
        self.generation_config = whole.generation_config
        self.hf_quantizer = getattr(whole, "hf_quantizer", None)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [1, n, V] of those tokens of [1, T] that are asked for: as many of the last, or at these places; 0: of all."""
        output = self.model(input_ids=input_ids, position_ids=position_ids, **options)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(output.last_hidden_state[:, kept])
        return CausalLMOutputWithPast(logits=logits, past_key_values=output.past_key_values)


def text_part(whole: PreTrainedModel) -> PreTrainedModel:
    """The text model of a multimodal one that was read by a class of `whole_of`, named as that is.

    Raises LoadError unless it gives the logits that the whole gives for text, which may do more than run the one and then the other.
    """
    name = type(whole).__name__
    if not isinstance(whole.get_output_embeddings(), nn.Module) or not hasattr(whole.base_model, _TEXT):
        raise LoadError(f"{name} has no text model ({_TEXT}) below an LM head that could be served by itself")
    kind = type(name, (TextPart,), {"_supports_attention_backend": whole.is_backend_compatible()})
    part = kind(whole)
    _compare(whole, part)
    return part


def whole_of(config: PretrainedConfig) -> tuple[Any, PretrainedConfig] | None:
    """The class that reads the text model out of a folder with this config, and the config that it is built of; None: it is a causal LM.

    The config may be that of the text model alone: then it is put in that of the multimodal models that transformers has it of.
    """
    text = config.get_text_config(decoder=True)
    if type(text) in MODEL_FOR_CAUSAL_LM_MAPPING or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    outer = config if text is not config else _around(text)
    if outer is None or type(outer) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return None
    return _only_text(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(outer)]), outer


def _around(text: PretrainedConfig) -> PretrainedConfig | None:
    """A multimodal config with this text model; None: there is none that transformers has its class for."""
    name = model_type_to_module_name(text.model_type)
    kind: Any = CONFIG_MAPPING[name] if name in CONFIG_MAPPING else None  # noqa: SIM401 (its get knows only what was asked for before)
    if kind is None or kind.sub_configs.get("text_config") is not type(text):
        return None
    return kind(text_config=text.to_dict())


def _only_text(whole: Any) -> Any:
    """A multimodal class whose models have their text model and their LM head alone, so that no other weights are read, nor missed."""

    def build(self: Any, config: PretrainedConfig) -> None:
        whole.__init__(self, config)
        for name, _ in list(self.base_model.named_children()):
            if name != _TEXT:
                setattr(self.base_model, name, None)

    return type(whole.__name__, (whole,), {"__init__": build, "__module__": whole.__module__})


@torch.inference_mode()
def _compare(whole: PreTrainedModel, part: PreTrainedModel) -> None:
    """Raise LoadError unless both give the same logits for a few tokens, with attention of transformers' own."""
    ids = torch.arange(1, 1 + _TRIED, device=whole.device)[None]
    logits: list[Tensor] = []
    for model in (whole, part):
        model.set_attn_implementation("eager")
        logits.append(model.eval()(input_ids=ids, use_cache=False).logits.float())
    part.set_attn_implementation(NAME)
    error = (logits[1] - logits[0]).abs().max() / logits[0].abs().max()
    if not error <= _TOLERANCE:
        raise LoadError(
            f"the text model of {type(whole).__name__} by itself gives other logits than the whole (off by {error:.1%} of the largest)"
        )
