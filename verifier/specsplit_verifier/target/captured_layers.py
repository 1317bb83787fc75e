"""The layers whose hidden states captured forwards of the target leave for heads."""

from __future__ import annotations

from specsplit.errors import Incompatible, LoadError
from specsplit.features import LAST
from specsplit.model.heads.config import usual_layers
from specsplit.model.lm.causal_lm import CausalLM


def captured_layers(setting: str, target: CausalLM) -> frozenset[int]:
    """Which layers `cuda_graph_layers` means. Raises LoadError for one that the target does not have.

    With `auto` those that heads read whose files do not say otherwise: EAGLE and multi-token prediction the last behind the norm, EAGLE-3
    three of those below. They are captured before any head has come, since a capture takes as long as several steps.
    """
    if setting == "none":
        return frozenset()
    if setting == "auto":
        usual = (*usual_layers(target.model.config.num_hidden_layers), LAST)
        return frozenset(filter(target.capture.has, usual))
    layers = frozenset(map(int, setting.split(",")))
    try:
        target.capture.check(layers)
    except Incompatible as error:
        raise LoadError(f"cuda_graph_layers is {setting}: {error}") from error
    return layers
