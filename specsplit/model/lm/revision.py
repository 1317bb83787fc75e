"""Another revision of a model's weights: read and checked beside the model that is served, then copied into it between two steps.

Everything that may fail comes before the first number is copied: the folder is read as the served one was, the model made of it has to
pass the same checks at load, and it has to be the same but for its numbers. What was copied is looked at once more: the served model has to
give the logits that the other gave.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from transformers import AutoConfig

from specsplit.errors import Incompatible, SpecsplitError, Unsupported
from specsplit.model.attention.support import check_folder, refusing
from specsplit.model.layers.text_config import text_config
from specsplit.model.layers.weights import copy_tensors, first_difference, held_tensors
from specsplit.model.lm.causal_lm import CausalLM
from specsplit.model.lm.probe import apart, tolerance, tree_logits
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
        self._tensors = held_tensors(read.model)
        _require("what is loaded", first_difference(held_tensors(served.model), self._tensors))
        self._trees: Final = tree_logits(read).cpu()

    def copy_into(self, served: CausalLM) -> None:
        """Copy the weights into the model, no page of whose KV may be taken, and give them up here.

        Raises SpecsplitError if it then gives other logits than they gave: nobody may go on with it.
        """
        copy_tensors(self._tensors, held_tensors(served.model))
        self._tensors = {}
        error = apart(tree_logits(served).cpu(), self._trees)
        if not error <= tolerance(served.model):
            raise SpecsplitError(
                f"the weights of {self.name} were copied, and the model gives other logits than when they were read (off by {error:.1%} of "
                "the largest): it is neither the one nor the other"
            )


def check_updatable(served: CausalLM) -> None:
    """Raise Unsupported for a model whose weights cannot be copied into it."""
    if served.adapters:
        what = "has adapters, which were trained for the weights that it has"
    elif len(served.blocks):
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
