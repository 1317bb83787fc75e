"""Records that a verifier keeps of drafters by address: their results, the wait policies for them, and recent losses."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from specsplit.values import Endpoint
from specsplit_verifier.sessions.drafter_record import DrafterRecord, RecordKey
from specsplit_verifier.sessions.wait_policy import WaitPolicy

_log = logging.getLogger(__name__)
COOL_DOWN_S = 5.0  # a lost drafter is not tried again for so long
LAST_COOL_DOWN_S = 60.0  # and twice as long each time that it is lost again, up to this
FORGIVEN_S = 60.0  # one that is lost this long after it had cooled down begins anew
REMEMBERED = 1024  # records of what drafters brought; of those whose drafters draft for nobody the first is forgotten


class _CoolDown(NamedTuple):
    until: float
    seconds: float


class DrafterMemory:
    """The records of drafters, which outlast their sessions; and until a drafter is lost, its wait policies."""

    def __init__(self) -> None:
        self._records: dict[RecordKey, DrafterRecord] = {}
        self._wait_policy: dict[str, WaitPolicy] = {}
        self._cooling_down: dict[str, _CoolDown] = {}
        """Drafters that were lost and still cool down."""
        self._resting: dict[str, int] = {}
        """Heads that are not used until they start anew or have other weights, and the version of those that they had."""

    @property
    def records(self) -> Mapping[RecordKey, DrafterRecord]:
        """The record of every drafter; a copy, so that another thread may walk it."""
        return self._records.copy()

    def recall(self, address: str, sampled: bool) -> tuple[WaitPolicy, DrafterRecord]:
        """Look up, or begin, the wait policy and the record of a drafter that begins on a session."""
        record = self._record(address, sampled)  # first: making room for it may end the wait policy for its own drafter
        return self._wait_policy.setdefault(address, WaitPolicy()), record

    def _record(self, address: str, sampled: bool) -> DrafterRecord:
        """Look up, or begin, a record, which is the last to be forgotten from now on."""
        record = self._records.pop((address, sampled), None)
        if record is None:
            self._forget()
        record = self._records[address, sampled] = record or DrafterRecord()
        return record

    def _forget(self) -> None:
        """Make room for another record."""
        if len(self._records) < REMEMBERED:
            return
        idle = next((key for key, record in self._records.items() if not record.sessions), None)
        if idle is not None:
            del self._records[idle]
            address, sampled = idle
            if (address, not sampled) not in self._records:
                self._wait_policy.pop(address, None)

    def lost(self, address: str, now: float) -> None:
        """Note that a drafter is gone: it cools down, twice as long as the last time, and its wait policies are dropped.

        That it is gone may be said several times, by whatever crossed with it: while it cools down nothing is new.
        """
        self._resting.pop(address, None)
        if self.cools_down(address, now):
            return
        self._cooling_down = {each: last for each, last in self._cooling_down.items() if last.until + FORGIVEN_S > now}
        last = self._cooling_down.get(address)
        seconds = COOL_DOWN_S if last is None else min(2 * last.seconds, LAST_COOL_DOWN_S)
        self._cooling_down[address] = _CoolDown(now + seconds, seconds)
        self._wait_policy.pop(address, None)

    def rest(self, heads: Iterable[Endpoint]) -> None:
        """Use none of these heads, which were made for weights that the target has no longer, until it is lost, leaves or has others."""
        self._resting = {each.address: each.weights_version for each in heads}
        if self._resting:
            _log.info("heads rest that were made for the weights before: %s", ", ".join(sorted(self._resting)))

    def there(self, drafters: Iterable[Endpoint]) -> None:
        """These drafters alone are in the cluster now."""
        if self._resting:  # what a coordinator says of a version may be older than what another has said
            known = {each.address: each.weights_version for each in drafters}
            self._resting = {at: version for at, version in self._resting.items() if known.get(at, math.inf) <= version}

    def cools_down(self, address: str, now: float) -> bool:
        """Tell whether a drafter still cools down after a loss, or rests."""
        if address in self._resting:
            return True
        last = self._cooling_down.get(address)
        return last is not None and last.until > now
