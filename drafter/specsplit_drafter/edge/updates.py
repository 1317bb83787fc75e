"""Other weights for the model of a drafter that goes on drafting: an operator names a folder of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from specsplit.engine import Updated, UpdateWeights
from specsplit.errors import Exhausted, NotFound, Unsupported
from specsplit.model_thread import apart
from specsplit.observe import fields
from specsplit.rpc import caller
from specsplit.settings import DrafterSettings
from specsplit.text.json_file import read_json
from specsplit_drafter.drafts.proposer import Proposer
from specsplit_drafter.engine.engine import Engine

_log = logging.getLogger(__name__)
_TRIED_TOKENS: Final = 4096
"""Room in the KV of a model of which only the weights are wanted: for the texts of the checks at load."""
Load = Callable[[DrafterSettings], Proposer]
"""Loads a proposer."""


class Updates:
    """Updates of one drafter, one at a time."""

    def __init__(self, settings: DrafterSettings, load: Load) -> None:
        self._settings = settings
        self._load = load
        self._facts: dict[str, Any] = {}
        """config.json of the model that was loaded."""
        self._under_way = ""

    def loaded(self) -> None:
        """The model of these settings has been loaded: its folder may be another's later."""
        if self._settings.model is not None:
            self._facts = _config(self._settings.model)

    async def update(self, engine: Engine, wanted: UpdateWeights) -> Updated:
        """Read and check the weights while the drafter drafts on, and copy them into its model between two expansions.

        Sessions go on with the KV that they have: drafts are guesses, and a verifier would do without any for longer than most sessions
        last, if they were handed back. Raises Unsupported where that cannot be done, NotFound if there is no such folder, Exhausted while
        another update is under way, Incompatible for those of another model, and LoadError: the weights before stay then.
        """
        folder = self._folder(wanted.folder)
        if self._under_way:
            raise Exhausted(f"weights are being updated already, to {self._under_way}; try again when that is over")
        self._under_way = wanted.folder
        _log.info("other weights are read", extra=fields(folder=wanted.folder, by=caller().name))
        try:
            copy = await apart("weights", partial(self._read, engine, folder))
            version = await asyncio.wrap_future(engine.take_weights(copy))
        finally:
            self._under_way = ""
        _log.info("the drafter has other weights", extra=fields(version=version, folder=wanted.folder))
        return Updated(version, f"the drafter goes on with {wanted.folder}, version {version} of its weights")

    def _folder(self, name: str) -> Path:
        settings = self._settings
        if not settings.kind.needs_model:
            raise Unsupported("UpdateWeights", f"is not supported here: kind {settings.kind.value} has no weights")
        if settings.weights_dir is None:
            raise Unsupported("UpdateWeights", "is not supported here: weights_dir of the drafter is not set")
        for field, is_set in (("dp_size", settings.dp_size > 1), ("feature_projection", settings.feature_projection)):
            if is_set:
                problem = f"does not go with {field}; start the drafter anew with the other weights"
                raise Unsupported("UpdateWeights", problem)
        folder = settings.weights_dir / name
        if not folder.is_dir():
            raise NotFound(f"there is no folder {name} in weights_dir of this drafter")
        return folder

    def _read(self, engine: Engine, folder: Path) -> Callable[[], None]:
        """Read the weights beside those that draft -> what copies them. Raises LoadError and Incompatible."""
        from specsplit.model.lm.revision import require_same_config  # noqa: PLC0415 (it takes torch)

        require_same_config(self._facts, _config(folder))
        alone = {"model": folder, "kv_tokens": min(self._settings.kv_tokens, _TRIED_TOKENS), "cuda_graphs": "off"}
        served = engine.weights
        other = self._load(self._settings.model_copy(update={**alone, "compile": "off"})).weights
        if served is None or other is None:
            raise Unsupported("UpdateWeights", "is not supported for a drafter without weights")
        served.require_fit(other)
        return partial(served.copy_from, other)


def _config(folder: Path) -> dict[str, Any]:
    return read_json(folder / "config.json")
