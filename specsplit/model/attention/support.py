"""What specsplit cannot serve, said in a sentence at load: a refused model is better than one served wrongly.

Three nets, each finer than the one before: the folder and its config, what the architecture tells its attention (measured by a
forward of one token), and, in `specsplit.model.lm.probe`, its own numbers against ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from specsplit.errors import LoadError, SpecsplitError
from specsplit.model.attention.interface import NAME, OTHERS, TOLD, ForwardBatch, ToldMask, run_model
from specsplit.model.attention.softmax import SINKS
from specsplit.model.pages.geometry import NO_ATTENTION, Geometry, Layer, Span

_ATTENTION_LAYERS: Final = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
_STATE_LAYERS: Final = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}
_BLANK_LAYERS: Final = {"moe", "mlp", "sparse", "dense"}
"""Kinds of layers that keep nothing of a token."""
_HARMLESS: Final = {"position_ids", "is_causal"}
_DESCRIBED: Final = {"mask", "sliding_window", "softcap", SINKS}
"""What a `Layer` says."""
_WHY: Final = {
    "position_bias": f"it adds a position bias to its attention logits, which the attention backends do not do{OTHERS}",
}


@contextmanager
def refusing(what: str, advice: str = "") -> Iterator[None]:
    """Makes a LoadError, `what`, the reason and `advice`, of whatever is raised in here by code that is not ours. Errors of ours pass."""
    try:
        yield
    except SpecsplitError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        kind = type(error).__name__
        raise LoadError(
            f"{what}: {kind}: {reason.rstrip('.')}{advice}" if reason else f"{what}: {kind}{advice}"
        ) from error


def check_folder(folder: Path) -> None:
    """Raise LoadError unless `folder` looks like a model folder."""
    if not folder.is_dir():
        raise LoadError(f"model folder {folder} does not exist or is no folder")
    if not (folder / "config.json").is_file():
        raise LoadError(f"model folder {folder} has no config.json: expected the Hugging Face layout")


def context_of(config: PretrainedConfig, max_context: int | None) -> int:
    """Tokens of context that are served: `max_context`, or all that the model takes. Raises LoadError for more than those."""
    longest = getattr(config, "max_position_embeddings", max_context)
    if longest is None:
        raise LoadError(
            f"{config.model_type} does not say how long a context it takes (max_position_embeddings): set max_context to "
            "what it was trained for"
        )
    if max_context is not None and max_context > longest:
        raise LoadError(f"max_context is {max_context}, and {config.model_type} takes {longest} tokens at most")
    return max_context or longest


def check_config(config: PretrainedConfig, max_context: int | None = None) -> None:
    """Raise LoadError for what can be told from config.json not to be served in a context of so many tokens; None: all of it."""
    facts = config.to_dict()
    if config.is_encoder_decoder:
        raise LoadError(
            f"{config.model_type} is an encoder-decoder; specsplit serves decoder-only language models{OTHERS}"
        )
    if facts.get("use_bidirectional_attention") is True:
        raise LoadError(
            f"{config.model_type} has tokens see those behind them (use_bidirectional_attention); specsplit serves models whose tokens see "
            f"those before them{OTHERS}"
        )
    partial = set(facts.get("layer_types") or ()) - _ATTENTION_LAYERS - _STATE_LAYERS - _BLANK_LAYERS
    if partial:
        kinds = ", ".join(sorted(partial))
        raise LoadError(
            f"{config.model_type} has layers of kind {kinds}: only layers with keys and values per token, or with states, are supported"
            + OTHERS
        )
    if not hasattr(config, "num_hidden_layers"):
        raise LoadError(
            f"{config.model_type} does not say how many layers it has (num_hidden_layers): it is no stack of decoder layers{OTHERS}"
        )
    served = context_of(config, max_context)
    steady = min(_steady_lengths(facts.get("rope_parameters"), served), default=served)
    if served > steady:
        raise LoadError(
            f"its rotary positions are others in a text of more than {steady} tokens, and keys that are stored would have to turn too: set "
            f"max_context = {steady}, which is how long a text it is served for"
        )


def measure(model: PreTrainedModel, max_context: int, states: Collection[int] = ()) -> Geometry:
    """What the model's layers keep and see of so many tokens at most, as they show it in a forward of one.

    `states`: numbers of layers that keep states.

    Raises LoadError for what is not supported.
    """
    token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    model.set_attn_implementation(TOLD)
    try:
        return observe(
            lambda recorder: run_model(model, recorder, input_ids=token, position_ids=token, use_cache=False),
            model.config.num_hidden_layers,
            max_context,
            {*states, *_blank(model.config)},
        )
    except LoadError as error:
        if error.__cause__ is None or model.is_backend_compatible():
            raise
        raise _not_by_the_interface() from None
    finally:
        model.set_attn_implementation(NAME)


def observe(
    forward: Callable[[ForwardBatch], object], num_layers: int, max_context: int, without: Collection[int] = ()
) -> Geometry:
    """What the `num_layers` layers keep and see that `forward` runs one token through, given what to hand to their attention.

    `without`: numbers of layers that may have no attention. Raises LoadError for attention that is not supported.
    """
    recorder = _Recorder(max_context)
    with torch.inference_mode(), refusing("it fails on a single token", OTHERS):
        forward(recorder)
    return recorder.geometry(num_layers, without)


def _not_by_the_interface() -> LoadError:
    return LoadError(f"it does not use transformers' AttentionInterface, so its attention cannot be paged{OTHERS}")


class _Recorder:
    """A ForwardBatch of one token (whose attention is its own value) that notes what it is called with."""

    def __init__(self, max_context: int) -> None:
        self._max_context = max_context
        self._layers: dict[int, Layer] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        told = {name: given for name, given in extras.items() if given is not None and given is not False}
        for name in sorted(told.keys() - _HARMLESS - _DESCRIBED):
            raise LoadError(
                _WHY.get(name, f"it tells its attention {name}, which specsplit does not know how to honour{OTHERS}")
            )
        self._layers[layer] = Layer(
            query.shape[1],
            key.shape[1],
            key.shape[3],
            value.shape[3],
            self._span(layer, told.get("mask"), told.get("sliding_window")),
            told.get("softcap"),
            SINKS in told,
            values_in_keys=(value.data_ptr(), value.stride()) == (key.data_ptr(), key.stride()),
        )
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2)

    def _span(self, layer: int, mask: ToldMask | None, window: int | None) -> Span:
        """The span of a layer by its mask; by the window that its attention is told of where it has none."""
        if mask is None:
            return Span(window=window).within(self._max_context)
        sizes = (Span(), Span(window=mask.size), Span(chunk=mask.size))
        for span in dict.fromkeys(span.within(self._max_context) for span in sizes):
            if _is(span, mask, self._max_context):
                return span
        raise LoadError(
            f"layer {layer} sees other tokens than those before its own, a window of them, or the chunk that it is in{OTHERS}"
        )

    def geometry(self, num_layers: int, without: Collection[int]) -> Geometry:
        if not set(range(num_layers)) - set(without) <= self._layers.keys() <= set(range(num_layers)):
            if not self._layers:
                raise _not_by_the_interface()
            raise LoadError(
                f"{len(self._layers)} of its {num_layers} layers attend through transformers' AttentionInterface; all of them have to, "
                f"but for layers whose states are kept in transformers' cache{OTHERS}"
            )
        return Geometry(tuple(self._layers.get(index, NO_ATTENTION) for index in range(num_layers)))


def _blank(config: PretrainedConfig) -> list[int]:
    """Numbers of the layers that keep nothing, by the config."""
    return [number for number, kind in enumerate(getattr(config, "layer_types", None) or ()) if kind in _BLANK_LAYERS]


def _is(span: Span, mask: ToldMask, context: int) -> bool:
    """Whether a mask hides in a context what a span does: asked at the edges of windows and chunks."""
    size = min(mask.size or 1, context)
    near = {edge + step for edge in (0, size, 2 * size, context - 1 - size, context - 1) for step in (-1, 0, 1)}
    indices = torch.tensor(sorted(index for index in near if 0 <= index < context))
    queries, keys = indices[:, None], indices[None]
    expected = (keys <= queries) & (queries - keys < span.reach(indices)[:, None])
    return bool((torch.as_tensor(mask.sees(0, 0, queries, keys)).expand_as(expected) == expected).all())


def _steady_lengths(parameters: object, longest: int) -> Iterator[int]:
    """For every set of rope_parameters in a config, which may be nested by layer type, the text from which on it turns otherwise.

    "dynamic" does so beyond the context, where nothing is served; "longrope" beyond the context that the model was first trained for.
    """
    if isinstance(parameters, dict):
        if "longrope" in (parameters.get("rope_type"), parameters.get("type")):
            yield int(parameters.get("original_max_position_embeddings") or longest)
        for value in parameters.values():
            yield from _steady_lengths(value, longest)
