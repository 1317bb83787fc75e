"""Other weights for the target of a verifier that goes on serving: an operator names a folder of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from specsplit.engine import Updated, UpdateWeights
from specsplit.errors import DeadlineExceeded
from specsplit.model.lm.causal_lm import CausalLM
from specsplit.model.lm.revision import Revision, check_updatable
from specsplit.model_thread import apart
from specsplit.observe import fields
from specsplit.rpc import Revisions
from specsplit.settings import VerifierSettings
from specsplit.values import Adapter
from specsplit_verifier.edge.operations import asked
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.events import HoldSessions, TakeWeights

_log = logging.getLogger(__name__)
_AGAIN_S: Final = 0.1
"""Time after which it is looked again whether sessions still run."""
_NAMED: Final = 4
"""Adapters that are told by name."""
Read = Callable[[CausalLM, Path, str], Revision]
"""Reads and checks the weights in a folder, which has a name, beside those of a target that is served."""


class Updates:
    """Updates of one verifier, one at a time."""

    def __init__(self, settings: VerifierSettings, read: Read) -> None:
        self._settings = settings
        self._read = read
        excluded = {
            "dp_size": settings.dp_size > 1,
            "tp_size": settings.tp_size > 1,
            "inflate_layers": bool(settings.inflate_layers),
            "random_weights": settings.random_weights,
        }
        self._revisions = Revisions("verifier", settings.weights_dir, excluded)

    async def update(self, verifier: Verifier, wanted: UpdateWeights) -> Updated:
        """Read and check the weights while steps go on, and have the target go on with them.

        Raises Unsupported where that cannot be done, NotFound if there is no such folder, Exhausted while another update is under way,
        Incompatible and LoadError as reading does, DeadlineExceeded if sessions do not end in time: the weights before stay then.
        """
        with self._revisions.taking(wanted.folder) as folder:
            check_updatable(verifier.engine.target)
            revision = await apart("weights", partial(self._read, verifier.engine.target, folder, wanted.folder))
            _log.info("other weights are read and fit", extra=fields(folder=wanted.folder))
            return await self._take(verifier, revision, wanted)

    async def _take(self, verifier: Verifier, revision: Revision, wanted: UpdateWeights) -> Updated:
        """Wait for the sessions that run, unless they restart, and take the weights."""
        post, loop = verifier.engine.post, asyncio.get_running_loop()
        deadline, before = loop.time() + wanted.timeout_s, verifier.info.adapters
        take = partial(TakeWeights, revision, wanted.restart, self._settings.older_heads == "rest")
        post(HoldSessions(held=not wanted.restart))
        try:
            while (begun := await asked(verifier, take)) and not wanted.restart:
                if loop.time() >= deadline:
                    raise DeadlineExceeded(
                        f"{begun} sessions still run after {wanted.timeout_s:g} s, and the weights before stay; wait longer for them, "
                        "or have them computed again (restart)"
                    )
                await asyncio.sleep(_AGAIN_S)
        finally:
            post(HoldSessions(held=False))
            verifier.on_weights()
        version = verifier.engine.weights_version
        again = f"; {begun} sessions are computed again" if begun else ""
        again += _changes(before, verifier.info.adapters)
        return Updated(version, f"the target goes on with {wanted.folder}, version {version} of its weights{again}")


def _changes(before: Sequence[Adapter], now: Sequence[Adapter]) -> str:
    """Which adapters are others than before, in words; empty: none is."""
    was, of = {each.name: each for each in before}, {each.name: each for each in now}
    changed = {
        "new": [name for name in of if name not in was],
        "gone": [name for name in was if name not in of],
        "changed": [name for name, each in of.items() if was.get(name, each) != each],
    }
    told = ", ".join(f"{len(names)} {how} ({_named(names)})" for how, names in changed.items() if names)
    return f"; adapters: {told}" if told else ""


def _named(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return " ".join((*names[:_NAMED], *more))
