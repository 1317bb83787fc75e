"""Recurrent modules (linear attention, state space models, short convolutions) over ragged rows and trees of tokens.

transformers writes them for a batch of texts of one length, which go on from the states in a cache. Here they run in passes that are such
batches, each with a cache in which there is nothing but the states that its rows go on from. So the modules stay as they are, with
whatever kernels they have found.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, LinearAttentionCacheLayerMixin, LinearAttentionLayer

from specsplit.errors import LoadError
from specsplit.model.attention.interface import OTHERS, TrialForward, run_model
from specsplit.model.attention.support import refusing
from specsplit.model.pages.passes import Pass
from specsplit.model.pages.snapshots import States
from specsplit.model.pages.states import RecurrentStates

_log = logging.getLogger(__name__)

_BEFORE: Final = 16
"""Tokens of the text that modules are to go on from at load."""
_ALIKE: Final = 0.1
"""What states may differ by, as a share of them, that are rounded otherwise."""
_CACHES: Final = ("cache_params", "past_key_values")
"""What modules call the cache that they are handed."""


class _Key(NamedTuple):
    """One of the states that a module keeps."""

    recurrent: bool
    """Else it is the last of what a convolution has read."""
    number: int
    """Of those of its layer."""


class RecurrentModule:
    """Stands in for the forward of one module of a model."""

    def __init__(self, module: nn.Module, keys: Sequence[_Key], cached: LinearAttentionLayer) -> None:
        """`cached`: its layer of a cache that one text went into."""
        self.layer: Final = _layer_of(module)
        self._forward = module.forward
        self._cache: Final = cache_name(module)
        self._signature: Final = inspect.signature(module.forward)
        kinds = self._signature.parameters.items()
        self._rest: Final = next((name for name, each in kinds if each.kind is each.VAR_KEYWORD), "")
        self._keys: Final = keys
        self._kernels: Final = dict(cached.conv_kernel_size)
        self._states: RecurrentStates | None = None
        self._number = 0

    def keep_in(self, states: RecurrentStates, number: int | None = None) -> None:
        """Keep what it keeps there from now on, as module `number`; None: as the one that it was."""
        self._states, self._number = states, self._number if number is None else number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module in the passes of the forward that is under way; without one, as if its text were the first.

        [1, T, ...] in every tensor of tokens that it is called with -> [1, T, ...], or several of these.
        """
        kwargs.pop("forward_batch", None)
        states = self._states
        if states is None or states.passes is None:
            return self._forward(*args, **kwargs)
        given = self._signature.bind_partial(*args, **kwargs).arguments
        further = given.pop(self._rest, {})
        count = len(states.passes.restore)
        outputs: list[list[Tensor]] = []
        for step in states.passes.passes:
            layer = self._filled(states.before(self._number))
            part: dict[str, Any] = {name: _part(value, step, count) for name, value in (given | further).items()}
            part[self._cache] = Cache(layers=[layer for _ in range(self.layer + 1)])
            output = self._forward(**part)
            outputs.append([each.flatten(0, 1) for each in (output if isinstance(output, tuple) else (output,))])
            states.after(self._number, self.states_in(layer))
        restore = states.passes.restore
        whole = [torch.cat(each).index_select(0, restore)[None] for each in zip(*outputs, strict=True)]
        return tuple(whole) if len(whole) > 1 else whole[0]

    def states_in(self, layer: Any) -> States:
        """Its states, [n, ...] each, as they are in a layer of a cache."""
        states = [_states(layer, key)[key.number] for key in self._keys]
        return [state for state in states if state is not None]

    def _filled(self, states: States) -> LinearAttentionLayer:
        """A layer of a cache that has its states, and no other."""
        layer = LinearAttentionLayer(number_of_states=1 + max(key.number for key in self._keys))
        layer.dtype, layer.device = states[0].dtype, states[0].device
        layer.conv_kernel_size.update(self._kernels)
        for key, state in zip(self._keys, states, strict=True):
            _states(layer, key)[key.number] = state
            (layer.is_recurrent_states_initialized if key.recurrent else layer.is_conv_states_initialized)[
                key.number
            ] = True
            layer.has_previous_state[key.number] = True
        return layer


def recurrent_modules(model: PreTrainedModel) -> tuple[list[RecurrentModule], RecurrentStates | None]:
    """Find the recurrent modules of a model by running a token, and stand in for them -> these, and the states that they keep from now on.

    None: it has no such modules. Raises LoadError for modules that cannot be run so.
    """
    with refusing("it fails on a single token", OTHERS):
        cache = _WatchedCache(config=model.config)
    if not any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers):
        return [], None
    with refusing("it fails with a cache for the states of its layers", OTHERS), cache.watching(model):
        _read(model, cache, [1])
    found = {
        module: RecurrentModule(module, sorted(keys), _layer_in(cache, module)) for module, keys in cache.keys.items()
    }
    modules = list(found.values())
    if not modules:
        return [], None
    with refusing("it fails with the states of its layers", OTHERS):
        continues = _continues(model, modules)
    if not continues:
        _log.info(
            "the recurrent layers of %s go on from states with one token only: a prompt is read token by token behind its first chunk, "
            "which takes long; a larger step_token_budget makes that chunk longer",
            type(model).__name__,
        )
    states = RecurrentStates([module.states_in(cache.layers[module.layer]) for module in modules], continues=continues)
    for number, (module, own) in enumerate(found.items()):
        own.keep_in(states, number)
        module.forward = own
    return modules, states


def keep_states_in(model: nn.Module, states: RecurrentStates) -> None:
    """Have the recurrent modules of a model keep their states where those of another model of the same config did."""
    for module in model.modules():
        if isinstance(module.forward, RecurrentModule):
            module.forward.keep_in(states)


@torch.inference_mode()
def _read(model: PreTrainedModel, cache: Cache, sizes: Sequence[int]) -> None:
    """Have a model read a text into a cache, in forwards of so many tokens, without attention."""
    text = torch.arange(sum(sizes), device=model.device)[None]
    name = cache_name(model) or _CACHES[-1]
    for positions in text.split(list(sizes), dim=1):
        call: dict[str, Any] = {
            name: cache,
            "input_ids": positions % model.config.vocab_size,
            "position_ids": positions,
        }
        run_model(model, TrialForward(), use_cache=True, **call)


def _continues(model: PreTrainedModel, modules: Sequence[RecurrentModule]) -> bool:
    """Whether the modules go on from states with two tokens as they do with one after the other; some forget what came before."""
    at_once, one_by_one = (_WatchedCache(config=model.config) for _ in range(2))
    for cache, sizes in ((at_once, [_BEFORE, 2]), (one_by_one, [_BEFORE, 1, 1])):
        with cache.watching(model):
            _read(model, cache, sizes)
    pairs = (
        pair
        for module in modules
        for pair in zip(*(module.states_in(cache.layers[module.layer]) for cache in (at_once, one_by_one)), strict=True)
    )
    return all(bool((one - other).float().norm() <= _ALIKE * other.float().norm()) for one, other in pairs)


class _WatchedCache(DynamicCache):
    """Notes which module keeps which states."""

    keys: dict[nn.Module, set[_Key]]
    _running: nn.Module | None

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """While inside, a forward of the model is watched."""
        self.keys, self._running = {}, None
        with ExitStack() as hooks:
            for module in model.modules():
                if hasattr(module, "layer_idx") and cache_name(module):
                    hooks.callback(module.register_forward_pre_hook(self._begins).remove)
            yield

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Tensor:
        self._note(layer_idx, _Key(recurrent=False, number=state_idx))
        return super().update_conv_state(conv_states, layer_idx, state_idx, **kwargs)

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        self._note(layer_idx, _Key(recurrent=True, number=state_idx))
        return super().update_recurrent_state(recurrent_states, layer_idx, state_idx, **kwargs)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def _begins(self, module: nn.Module, _: Any) -> None:
        self._running = module

    def _note(self, layer: int, key: _Key) -> None:
        module = self._running
        if module is None or _layer_of(module) != layer:
            raise LoadError(
                f"layer {layer} keeps a state, and no module of it is called with the cache that it is kept in: not supported"
            )
        self.keys.setdefault(module, set()).add(key)


def _layer_of(module: nn.Module) -> int:
    number: Any = module.layer_idx
    return int(number)


def _layer_in(cache: Cache, module: nn.Module) -> Any:
    return cache.layers[_layer_of(module)]


def _states(layer: LinearAttentionLayer, key: _Key) -> dict[int, Tensor | None]:
    return layer.recurrent_states if key.recurrent else layer.conv_states


def cache_name(module: nn.Module) -> str:
    """What a module calls the cache that it is handed; "" if it is handed none."""
    known = inspect.signature(module.forward).parameters
    return next((name for name in _CACHES if name in known), "")


def _part(value: Any, step: Pass, count: int) -> Any:
    """What of an argument belongs to a pass: of a tensor [1, T, ...] its rows [n, q, ...], and else all of it."""
    if not isinstance(value, Tensor) or value.shape[:2] != (1, count):
        return value
    return value[0].index_select(0, step.tokens).unflatten(0, (len(step.sources), -1))
