"""The text model of a multimodal one, where transformers has no causal language model for it: taken out of the whole."""

from __future__ import annotations

import logging
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.configuration_auto import model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from specsplit.errors import LoadError
from specsplit.model.attention.interface import NAME
from specsplit.model_thread import SITE

_log = logging.getLogger(__name__)

_TEXT: Final = ("language_model", "text_model")
"""The module that is the text model, in whatever stands below the LM head: one of these."""
_EXPERTS: Final = "_can_set_experts_implementation_cached_value"
_TRIED: Final = 4
"""Tokens that the two modules are run on, beside the whole."""
_TOLERANCE: Final = 0.05
"""Of the largest logit: rounding, in whatever type the weights have."""


class TextPart(PreTrainedModel):
    """The text model and the LM head of a multimodal model, as a causal language model. Made by `text_part`."""

    base_model_prefix = "model"

    def __init__(self, whole: PreTrainedModel) -> None:
        super().__init__(whole.config.get_text_config(decoder=True))
        self.model = _text_in(whole)
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


def _text_in(whole: PreTrainedModel) -> Any:
    return next(module for name, module in whole.base_model.named_children() if name in _TEXT)


def text_part(whole: PreTrainedModel) -> PreTrainedModel:
    """The text model of a multimodal one that was read by a class of `whole_of`, named as that is.

    Raises LoadError unless it gives the logits that the whole gives for text, which may do more than run the one and then the other.
    """
    name = type(whole).__name__
    if not isinstance(whole.get_output_embeddings(), nn.Module) or not any(
        hasattr(whole.base_model, each) for each in _TEXT
    ):
        raise LoadError(
            f"{name} has no text model ({', '.join(_TEXT)}) below an LM head that could be served by itself"
        )
    # transformers looks into the source of a class's module for whether its experts can be run otherwise: those of the text model can.
    experts = type(_text_in(whole))._can_set_experts_implementation()
    same = {"_supports_attention_backend": whole.is_backend_compatible(), _EXPERTS: experts}
    kind = type(name, (TextPart,), same)
    part = kind(whole)
    _compare(whole, part)
    return part


def whole_of(config: PretrainedConfig) -> tuple[Any, PretrainedConfig] | None:
    """The class that reads a text model inside of a whole, and the config that it is built of; None: transformers has none.

    The config may be that of the text model alone: then it is put in that of the multimodal models that transformers has it of.
    """
    text = config.get_text_config(decoder=True)
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
            if name not in _TEXT:
                setattr(self.base_model, name, None)

    return type(whole.__name__, (whole,), {"__init__": build, "__module__": whole.__module__})


def check_inside(model: PreTrainedModel, config: PretrainedConfig) -> None:
    """Raise LoadError unless a text model gives for text what the multimodal model with this config gives with it inside.

    Some do more: PaliGemma lets a prompt see all of itself. Nothing is checked of a config that is no multimodal one of transformers.
    """
    found = None if config.get_text_config(decoder=True) is config else whole_of(config)
    if found is None:
        return
    kind, outer = found
    try:
        with SITE.building(), torch.device("meta"):
            whole: Any = kind._from_config(outer, attn_implementation="eager", dtype=model.dtype)
    except ImportError as error:  # of a part that is not served, as images are not
        _log.warning(
            "the text model was not compared with the whole of %s: %s", outer.model_type, " ".join(str(error).split())
        )
        return
    name = next((name for name, _ in whole.base_model.named_children() if name in _TEXT), None)
    if name is None:
        return
    if isinstance(getattr(whole.base_model, name), type(model)):
        setattr(whole.base_model, name, model)
    else:
        setattr(whole.base_model, name, model.base_model)
        whole.set_output_embeddings(model.get_output_embeddings())
    _compare(model, whole)


@torch.inference_mode()
def _compare(read: PreTrainedModel, other: PreTrainedModel) -> None:
    """Raise LoadError unless two models with the same modules give the same logits for a few tokens, with attention of transformers' own.

    The one that was read goes first: what is quantised may be made ready by its first forward. Each is told of its attention, though one
    is inside of the other: transformers 5.17 passes on to a model inside another only what it was told first.
    """
    ids = torch.arange(1, 1 + _TRIED, device=read.device)[None]
    both = (read, other)
    for model in both:
        model.set_attn_implementation("eager")
    logits = [model.eval()(input_ids=ids, use_cache=False).logits.float() for model in both]
    for model in both:
        model.set_attn_implementation(NAME)
    error = (logits[1] - logits[0]).abs().max() / logits[0].abs().max()
    if not error <= _TOLERANCE:
        raise LoadError(
            f"the text model of {type(other).__name__} by itself gives other logits than the whole (off by {error:.1%} of the largest)"
        )
