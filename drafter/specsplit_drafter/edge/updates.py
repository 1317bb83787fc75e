"""Other weights for the model of a drafter that goes on drafting: an operator names a folder of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from specsplit.engine import Updated, UpdateWeights
from specsplit.errors import Unsupported
from specsplit.model_thread import apart
from specsplit.observe import fields
from specsplit.rpc import Revisions
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
        excluded = {"dp_size": settings.dp_size > 1, "feature_projection": settings.feature_projection}
        self._revisions = Revisions("drafter", settings.weights_dir, excluded)

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
        kind = self._settings.kind
        if not kind.needs_model:
            raise Unsupported("UpdateWeights", f"is not supported here: kind {kind.value} has no weights")
        with self._revisions.taking(wanted.folder) as folder:
            copy = await apart("weights", partial(self._read, engine, folder))
            version = await asyncio.wrap_future(engine.take_weights(copy))
        _log.info("the drafter has other weights", extra=fields(version=version, folder=wanted.folder))
        return Updated(version, f"the drafter goes on with {wanted.folder}, version {version} of its weights")

    def _read(self, engine: Engine, folder: Path) -> Callable[[], None]:
        """Read the weights beside those that draft -> what copies them. Raises LoadError and Incompatible."""
        from specsplit.model.lm.revision import require_same_config  # noqa: PLC0415 (it takes torch)

        require_same_config(self._facts, _config(folder))
        tokens = min(self._settings.kv_tokens or _TRIED_TOKENS, _TRIED_TOKENS)
        alone = {"model": folder, "kv_tokens": tokens, "cuda_graphs": "off"}
        served = engine.weights
        other = self._load(self._settings.model_copy(update={**alone, "compile": "off"})).weights
        if served is None or other is None:
            raise Unsupported("UpdateWeights", "is not supported for a drafter without weights")
        served.require_fit(other)
        return partial(served.copy_from, other)


def _config(folder: Path) -> dict[str, Any]:
    return read_json(folder / "config.json")
