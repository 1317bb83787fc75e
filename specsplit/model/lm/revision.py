"""Another revision of a model's weights: read and checked beside the model that is served, then copied into it between two steps.

Everything that may fail comes before the first number is copied: the folder is read as the served one was, the model made of it has to
pass the same checks at load, and it has to be the same but for its numbers. What was copied is looked at once more: the served model has to
give the logits that the other gave.

With adapters, which may be others than before and add to other layers, nothing is copied: the modules that were made of the other revision
take the place of those that serve. What was captured of those is captured anew, behind everything else: before, there are two models in
memory. Nothing of them is compiled.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AutoConfig

from specsplit.errors import Incompatible, SpecsplitError, Unsupported
from specsplit.model.attention.support import check_folder, refusing
from specsplit.model.layers.text_config import text_config
from specsplit.model.layers.weights import copy_tensors, first_difference, held_tensors
from specsplit.model.lm.causal_lm import CausalLM
from specsplit.model.lm.probe import adapted_logits, apart, tolerance, tree_logits
from specsplit.text.vocabulary import vocabulary_of

_log = logging.getLogger(__name__)
_FREE: Final = frozenset(("_name_or_path", "transformers_version", "dtype", "torch_dtype"))
"""What configs of two revisions may differ in: the type of weights is looked at with the weights."""


class Revision:
    """Weights that fit a model which is served."""

    def __init__(self, name: str, read: CausalLM, served: CausalLM) -> None:
        """`read`: the model that was made of them. Raises Incompatible, naming the first difference, if it is another model."""
        self.name: Final = name
        _require("config.json", _difference(_facts(served.model.config), _facts(read.model.config)))
        _require("generation_config.json", _ends(served, read))
        self._read: CausalLM | None = read
        if served.adapters:
            _require("what is loaded", _types(served, read))
        else:
            _require("what is loaded", first_difference(held_tensors(served.model), held_tensors(read.model)))
        self._trees: Final = _logits(read)

    def copy_into(self, served: CausalLM) -> None:
        """Have the model, no page of whose KV may be taken, go on with the weights, and give them up here.

        Raises SpecsplitError if it then gives other logits than they gave: nobody may go on with it.
        """
        self._give_to(served)
        error = apart(_logits(served), self._trees)
        if not error <= tolerance(served.model):
            raise SpecsplitError(
                f"the weights of {self.name} were copied, and the model gives other logits than when they were read (off by {error:.1%} of "
                "the largest): it is neither the one nor the other"
            )
        if served.adapters:
            gc.collect()  # modules of what has been given up may know each other
            served.capture_again(served.with_adapters)

    def _give_to(self, served: CausalLM) -> None:
        read, self._read = self._read, None
        assert read is not None, "they are taken once"
        if served.adapters:
            served.take(read)
        else:
            copy_tensors(held_tensors(read.model), held_tensors(served.model))


def check_updatable(served: CausalLM) -> None:
    """Raise Unsupported for a model whose weights cannot be copied into it."""
    if len(served.blocks):
        what = "is shared out over ranks"
    elif getattr(served.model, "hf_quantizer", None) is not None:
        what = "is quantised"
    else:
        return
    raise Unsupported(
        "UpdateWeights", f"is not supported for a model that {what}; start it anew with the other weights"
    )


def check_config(served: CausalLM, folder: Path) -> None:
    """Raise, before any weights are read, Incompatible for a folder of another architecture, shape or vocabulary, and LoadError."""
    check_folder(folder)
    with refusing(f"model folder {folder} cannot be loaded"):
        whole = AutoConfig.from_pretrained(folder, local_files_only=True)
        vocabulary = vocabulary_of(folder)
    if text_config(whole) is whole:  # that of a text model is made when the whole is read
        _require("config.json", _difference(_facts(served.model.config), _facts(whole)))
    if vocabulary != served.info.vocabulary:
        _require("the vocabulary", f"it is {vocabulary}, expected {served.info.vocabulary}")


def require_same_config(served: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Raise Incompatible, naming the first difference, if config.json of two revisions says more than the type of their weights apart."""
    kept = ({name: value for name, value in each.items() if name not in _FREE} for each in (served, other))
    _require("config.json", _difference(*kept))


def _require(what: str, difference: str) -> None:
    if difference:
        raise Incompatible(f"the weights are of another model, by {what}: {difference}; start the service anew for it")


def _ends(served: CausalLM, read: CausalLM) -> str:
    found, expected = sorted(read.info.eos_token_ids), sorted(served.info.eos_token_ids)
    return "" if found == expected else f"eos_token_id is {found}, expected {expected}"


def _types(served: CausalLM, read: CausalLM) -> str:
    found, expected = read.model.dtype, served.model.dtype
    return "" if found == expected else f"its type is {found}, expected {expected}".replace("torch.", "")


def _logits(lm: CausalLM) -> Tensor:
    """Of small trees, also with adapters if there are any, float32 [nodes, V] on the CPU."""
    adapted = adapted_logits(lm)
    trees = tree_logits(lm).cpu()
    return trees if adapted is None else torch.cat((trees, adapted))


def _facts(config: Any) -> dict[str, Any]:
    return {name: value for name, value in config.to_dict().items() if name not in _FREE}


def _difference(served: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return next(_differences("", served, other), "")


def _differences(path: str, served: Any, other: Any) -> Iterator[str]:
    if isinstance(served, dict) and isinstance(other, dict):
        for name in dict.fromkeys((*served, *other)):
            yield from _differences(f"{path}.{name}".lstrip("."), served.get(name), other.get(name))
    elif served != other:
        yield f"{path} is {other}, expected {served}"
