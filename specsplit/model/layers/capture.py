"""Hidden states of chosen layers, taken while a model runs: what draft heads read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from specsplit.errors import Incompatible
from specsplit.features import LAST

Hidden = dict[int, Tensor]
"""Hidden states [T, hidden_size] by layer, numbered as in FeatureNeed.layers."""


def _decoder(model: PreTrainedModel) -> nn.Module:
    """What is below the LM head. In some architectures nothing has the name that they give for it (base_model_prefix)."""
    if model.base_model is not model:
        return model.base_model
    return next((child for child in model.children() if isinstance(child, PreTrainedModel)), model)


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList | None:
    """A model's decoder layers, first to last; None if it is not built of a list of them."""
    for module in _decoder(model).children():
        if isinstance(module, nn.ModuleList) and len(module) == model.config.num_hidden_layers:
            return module
    return None


class Capture:
    """The places in one model where hidden states can be taken.

    Hooks are there while a forward runs that was asked for layers, and only on those, so nothing is kept that nobody wants.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._layers = decoder_layers(model)

    def has(self, layer: int) -> bool:
        """Whether the hidden states of a layer can be taken."""
        return layer == LAST or (self._layers is not None and 0 <= layer <= self._model.config.num_hidden_layers)

    @property
    def last_layer(self) -> nn.Module | None:
        """The last decoder layer; None: the model has no list of them."""
        return None if self._layers is None else self._layers[-1]

    def ends(self, layers: Collection[int]) -> bool:
        """Whether any of `layers` is what the last decoder layer gives, or is behind it."""
        return not {LAST, self._model.config.num_hidden_layers}.isdisjoint(layers)

    def check(self, layers: Collection[int]) -> None:
        """Raise Incompatible, saying which there are, for a layer that this model does not have."""
        if self._layers is None and set(layers) - {LAST}:
            raise Incompatible(
                f"{type(self._model).__name__} has no list of decoder layers, so only the last can be read"
            )
        depth = self._model.config.num_hidden_layers
        beyond = sorted(layer for layer in layers if layer != LAST and not 0 <= layer <= depth)
        if beyond:
            raise Incompatible(
                f"hidden states of layer {beyond[0]} wanted; the target has {depth} decoder layers: "
                f"expected 0 (embeddings), 1..{depth} or {LAST} (behind the final norm)"
            )

    @contextmanager
    def of(self, layers: Collection[int]) -> Iterator[Hidden]:
        """While inside, one forward of the model fills in the hidden states of `layers`. Raises Incompatible as `check` does."""
        self.check(layers)
        hidden: Hidden = {}
        with ExitStack() as hooks:
            for layer in set(layers):
                hooks.callback(self._hook(layer, hidden).remove)
            yield hidden

    def _hook(self, layer: int, hidden: Hidden) -> Any:
        if layer == LAST:
            return _decoder(self._model).register_forward_hook(_keep_last(hidden))
        assert self._layers is not None, "check has passed"
        if layer == 0:
            return self._layers[0].register_forward_pre_hook(_keep_input(hidden), with_kwargs=True)
        return self._layers[layer - 1].register_forward_hook(_keep_output(layer, hidden))


def _keep_last(hidden: Hidden) -> Callable[[nn.Module, Any, BaseModelOutput], None]:
    def keep(_: nn.Module, __: Any, output: BaseModelOutput) -> None:
        assert output.last_hidden_state is not None
        hidden[LAST] = output.last_hidden_state[0]

    return keep


def _keep_input(hidden: Hidden) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden[0] = (args[0] if args else kwargs["hidden_states"])[0]

    return keep


def _keep_output(layer: int, hidden: Hidden) -> Callable[[nn.Module, Any, Any], None]:
    def keep(_: nn.Module, __: Any, output: Any) -> None:
        hidden[layer] = (output[0] if isinstance(output, tuple) else output)[0]

    return keep
