"""Other weights for the verifiers or drafters of a cluster, when an operator says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from specsplit.engine import MemberUpdated, UpdateWeights
from specsplit.errors import NotFound, SpecsplitError, Unavailable
from specsplit.observe import fields
from specsplit.rpc import caller
from specsplit.values import DrafterInfo, DrafterKind
from specsplit_coordinator.members.compatibility import different_adapters
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.members.verifier_client import VerifierClient

_log = logging.getLogger(__name__)
READ_S: Final = 3_600.0
"""Time that a member has to read weights and to check them, beside that for which it waits for sessions."""


class WeightsUpdater:
    """Passes updates on to members."""

    def __init__(self, registry: Registry, members: VerifierClient) -> None:
        self._registry = registry
        self._members = members

    async def update(
        self, wanted: UpdateWeights, member_id: str, drafters: DrafterKind | None = None
    ) -> Sequence[MemberUpdated]:
        """Have one member take other weights, or without a `member_id` all verifiers at once, or all `drafters` of a kind -> what came of
        it at each.

        Raises NotFound for a member or a kind that is not there, Unavailable if no verifier is.
        """
        asked = self._drafters(drafters) if drafters else self._asked(member_id)
        _log.info("weights are updated", extra=fields(folder=wanted.folder, told=len(asked), by=caller().name))
        answers = await asyncio.gather(*(self._updated(member, wanted) for member in asked))
        if different := different_adapters(self._registry.verifiers):
            _log.warning(
                "%s: the name stands for the one that a verifier was updated to last, until all are updated", different
            )
        for each in answers:
            facts = fields(member_id=each.member_id, version=each.version, said=each.message)
            _log.log(logging.INFO if each.version else logging.WARNING, "a member was to take weights", extra=facts)
        return answers

    def _asked(self, member_id: str) -> Sequence[MemberState]:
        verifiers = self._registry.verifiers
        if member_id:
            members = (*verifiers, *self._registry.drafters)
            if found := [each for each in members if each.member_id == member_id]:
                return found
            raise NotFound(f"there is no verifier or drafter {member_id!r} in the cluster")
        if not verifiers:
            self._registry.model()  # says so if none was ever there
            raise Unavailable("every verifier of the cluster is away; try again when one is back")
        return verifiers

    def _drafters(self, kind: DrafterKind) -> Sequence[MemberState]:
        of_kind = [
            each
            for each in self._registry.drafters
            if isinstance(each.who.role, DrafterInfo) and each.who.role.kind is kind
        ]
        if not of_kind:
            raise NotFound(f"there is no drafter of kind {kind.value} in the cluster")
        return of_kind

    async def _heard(self, verifier: MemberState, version: int) -> None:
        """Wait, for a moment at most, until a verifier has told what it has now, so that whoever hears of it may ask for its adapters."""
        told = asyncio.Event()
        unsubscribe = self._registry.subscribe(told.set)
        try:
            async with asyncio.timeout(self._registry.lost_after_s):
                while 0 < verifier.report.weights_version < version and not verifier.absent:
                    await told.wait()
                    told.clear()
        except TimeoutError:
            _log.warning("a verifier has not told its new weights yet", extra=fields(member_id=verifier.member_id))
        finally:
            unsubscribe()

    async def _updated(self, member: MemberState, wanted: UpdateWeights) -> MemberUpdated:
        drafts = isinstance(member.who.role, DrafterInfo)
        call = self._members.update_drafter if drafts else self._members.update_weights
        try:
            updated = await call(member, wanted, READ_S + wanted.timeout_s)
        except SpecsplitError as error:
            return MemberUpdated(0, str(error), member.member_id)
        if not drafts:
            await self._heard(member, updated.version)
        return MemberUpdated(updated.version, updated.message, member.member_id)
