"""Other weights for the verifiers of a cluster, when an operator says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from specsplit.engine import MemberUpdated, UpdateWeights
from specsplit.errors import NotFound, SpecsplitError, Unavailable
from specsplit.observe import fields
from specsplit.rpc import caller
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.members.verifier_client import VerifierClient

_log = logging.getLogger(__name__)
READ_S: Final = 3_600.0
"""Time that a verifier has to read weights and to check them, beside that for which it waits for sessions."""


class WeightsUpdater:
    """Passes updates on to verifiers."""

    def __init__(self, registry: Registry, verifiers: VerifierClient) -> None:
        self._registry = registry
        self._verifiers = verifiers

    async def update(self, wanted: UpdateWeights, member_id: str) -> Sequence[MemberUpdated]:
        """Have one verifier take other weights, or without a `member_id` all of them at once -> what came of it at each.

        Raises NotFound for one that is not there, Unavailable if none is.
        """
        asked = self._asked(member_id)
        _log.info("weights are updated", extra=fields(folder=wanted.folder, told=len(asked), by=caller().name))
        answers = await asyncio.gather(*(self._updated(verifier, wanted) for verifier in asked))
        for each in answers:
            facts = fields(member_id=each.member_id, version=each.version, said=each.message)
            _log.log(logging.INFO if each.version else logging.WARNING, "a verifier was to take weights", extra=facts)
        return answers

    def _asked(self, member_id: str) -> Sequence[MemberState]:
        verifiers = self._registry.verifiers
        if member_id:
            verifiers = tuple(each for each in verifiers if each.member_id == member_id)
            if not verifiers:
                raise NotFound(f"there is no verifier {member_id!r} in the cluster")
        if not verifiers:
            self._registry.model()  # says so if none was ever there
            raise Unavailable("every verifier of the cluster is away; try again when one is back")
        return verifiers

    async def _updated(self, verifier: MemberState, wanted: UpdateWeights) -> MemberUpdated:
        try:
            updated = await self._verifiers.update_weights(verifier, wanted, READ_S + wanted.timeout_s)
        except SpecsplitError as error:
            return MemberUpdated(0, str(error), verifier.member_id)
        return MemberUpdated(updated.version, updated.message, verifier.member_id)
