"""Layers that are compiled because nothing of them could be replaced: only if they then give the same logits."""

from __future__ import annotations

import logging

from specsplit.model.layers.capture import decoder_layers
from specsplit.model.layers.gpu import is_fused
from specsplit.model.layers.regional import Backend, compile_layers, leave_layers
from specsplit.model.lm.causal_lm import CausalLM
from specsplit.model.lm.probe import apart, tolerance, tree_logits

_log = logging.getLogger(__name__)


def compile_unfused(lm: CausalLM, backend: Backend = "inductor") -> bool:
    """Have the decoder layers of a model compiled of which nothing is fused -> whether they are now.

    What cannot be compiled, or gives other logits, stays as it is, and the log says why. A model with adapters, with recurrent layers or
    without a list of layers does too.
    """
    layers = decoder_layers(lm.model)
    if layers is None or lm.states is not None or lm.adapters or is_fused(lm.model):
        return False
    if any("forward" in vars(each) for each in layers):
        return False
    before, name = tree_logits(lm), type(lm.model).__name__
    compile_layers(layers, backend)
    try:
        error = apart(tree_logits(lm), before)
        why = "" if error <= tolerance(lm.model) else f"its logits are off by {error:.1%} of the largest"
    except Exception as error:  # noqa: BLE001 (whatever a compiler raises: the layers stay as they were)
        why = f"{type(error).__name__}: {error}"
    if not why:
        _log.info("the layers of %s are compiled (compile = auto), since none could be replaced by fused ones", name)
        return True
    leave_layers(layers)
    _log.warning("the layers of %s are not compiled, and run as transformers has them, which is slower: %s", name, why)
    return False
