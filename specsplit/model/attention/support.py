"""What specsplit cannot serve, said in a sentence at load: a refused model is better than one served wrongly.

Three nets, each finer than the one before: the folder and its config, what the architecture tells its attention (measured by a
forward of one token), and, in `specsplit.model.lm.probe`, its own numbers against ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from specsplit.errors import LoadError, SpecsplitError
from specsplit.model.attention.interface import ForwardBatch
from specsplit.model.pages.kv import Geometry

_LENGTH_DEPENDENT_ROPE: Final = {"dynamic", "longrope"}
_ATTENTION_LAYERS: Final = {"full_attention", "sliding_attention", "attention"}
"""Kinds of layers that are served; `measure` looks more closely at those with a sliding window."""
_HARMLESS: Final = {"position_ids", "is_causal"}
_WHY: Final = {
    "softcap": "it caps its attention logits (softcapping), which the attention backends do not do",
    "s_aux": "its attention has sinks, which the attention backends do not have",
    "position_bias": "it adds a position bias to its attention logits, which the attention backends do not do",
}


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Makes a LoadError, `what` and the reason, of whatever is raised in here by code that is not ours. Errors of ours pass."""
    try:
        yield
    except SpecsplitError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise LoadError(
            f"{what}: {type(error).__name__}: {reason}" if reason else f"{what}: {type(error).__name__}"
        ) from error


def check_folder(folder: Path) -> None:
    """Raise LoadError unless `folder` looks like a model folder."""
    if not folder.is_dir():
        raise LoadError(f"model folder {folder} does not exist or is no folder")
    if not (folder / "config.json").is_file():
        raise LoadError(f"model folder {folder} has no config.json: expected the Hugging Face layout")


def check_config(config: PretrainedConfig) -> None:
    """Raise LoadError for what config.json shows to be unsupported."""
    facts = config.to_dict()
    if config.is_encoder_decoder:
        raise LoadError(f"{config.model_type} is an encoder-decoder; specsplit serves decoder-only language models")
    if not hasattr(config, "max_position_embeddings"):
        raise LoadError(f"{config.model_type} does not say how long a context it takes (max_position_embeddings)")
    for kind in set(_rope_types(facts.get("rope_parameters"))) & _LENGTH_DEPENDENT_ROPE:
        raise LoadError(
            f"rope type {kind!r} turns with the length of the sequence, so stored keys would have to turn too: not supported"
        )
    partial = set(facts.get("layer_types") or ()) - _ATTENTION_LAYERS
    if partial:
        kinds = ", ".join(sorted(partial))
        raise LoadError(
            f"{config.model_type} has layers of kind {kinds}: only layers with keys and values per token are supported"
        )


def check_class(model: PreTrainedModel) -> None:
    """Raises LoadError if the architecture does not route its attention through transformers' AttentionInterface."""
    if not model.is_backend_compatible():
        raise LoadError(
            f"{type(model).__name__} does not use transformers' AttentionInterface, so its attention cannot be paged"
        )


def measure(model: PreTrainedModel) -> Geometry:
    """The model's attention shape, seen in a forward of one token. Raises LoadError for attention that is not supported."""
    token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    return observe(
        lambda recorder: model(input_ids=token, position_ids=token, use_cache=False, forward_batch=recorder),
        model.config.num_hidden_layers,
        model.config.max_position_embeddings,
    )


def observe(forward: Callable[[ForwardBatch], object], num_layers: int, max_context: int) -> Geometry:
    """The attention shape of the `num_layers` layers that `forward` runs one token through, given what to hand to their attention.

    Raises LoadError for attention that is not supported.
    """
    recorder = _Recorder(max_context)
    with torch.inference_mode(), refusing("it fails on a single token"):
        forward(recorder)
    return recorder.geometry(num_layers)


class _Recorder:
    """A ForwardBatch of one token (whose attention is its own value) that notes what it is called with."""

    def __init__(self, max_context: int) -> None:
        self._max_context = max_context
        self._shapes: dict[int, tuple[int, int, int]] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        self._check_extras(layer, extras)
        if key.shape[-1] != value.shape[-1]:
            raise LoadError(
                f"its keys are {key.shape[-1]} wide and its values {value.shape[-1]}; wider values are not supported"
            )
        self._shapes[layer] = (query.shape[1], key.shape[1], key.shape[3])
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2)

    def _check_extras(self, layer: int, extras: dict[str, Any]) -> None:
        for name, value in extras.items():
            if value is None or value is False or name in _HARMLESS:
                continue
            if name != "sliding_window":
                raise LoadError(
                    _WHY.get(name, f"it tells its attention {name}, which specsplit does not know how to honour")
                )
            if value < self._max_context:
                raise LoadError(
                    f"layer {layer} attends within a sliding window of {value} tokens, its context is {self._max_context}: "
                    "windows are not supported yet"
                )

    def geometry(self, num_layers: int) -> Geometry:
        if sorted(self._shapes) != list(range(num_layers)):
            raise LoadError(f"{len(self._shapes)} of its {num_layers} layers are attention; all of them have to be")
        shapes = set(self._shapes.values())
        if len(shapes) > 1:
            raise LoadError(f"its layers differ in attention shape (heads, KV heads, width): {sorted(shapes)}")
        heads, kv_heads, head_dim = shapes.pop()
        return Geometry(num_layers, heads, kv_heads, head_dim)


def _rope_types(parameters: object) -> Iterator[str]:
    """Every rope_type in a config's rope_parameters, which may be nested by layer type."""
    if isinstance(parameters, dict):
        for key, value in parameters.items():
            if key in ("rope_type", "type") and isinstance(value, str):
                yield value
            else:
                yield from _rope_types(value)
