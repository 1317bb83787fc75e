"""The task that tells a quota store what this coordinator's clients have, and asks it for more.

All changes that have come while a message was on its way go into the next one (group commit), so a store is asked for a thousand requests
a second in some hundred messages, and a request waits for one or two of them. Everything is told again every second, which renews the
lease of this coordinator too: the counts of one that is killed are nobody's after LEASE_S.

The store decides while it answers in time, and knows as many coordinators as there are. Else each coordinator decides, by its share.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from specsplit.errors import Unavailable
from specsplit.observe import fields
from specsplit_coordinator.requests.quota_ledger import Answer, Entry, Message, Queue, QuotaLedger, Verdict

_log = logging.getLogger(__name__)
T = TypeVar("T")
LEASE_S: Final = 3.0
TELL_EVERY_S: Final = 1.0
CONNECT_S: Final = 1.0
"""Longest time for one attempt to connect; nobody waits for it."""
MOST_CLIENTS: Final = 256
"""Clients in one message, at most: the server does nothing else meanwhile."""
_NOT_ASKED: Final = "it has not been reached yet"


class StoreServer(Protocol):
    """Where the counts of all coordinators are kept; its calls raise Unavailable."""

    @property
    def connected(self) -> bool:
        """True until something fails."""
        ...

    async def connect(self) -> None:
        """Connect."""
        ...

    async def tell(self, entries: Sequence[Entry], coordinators: int, *, renew: bool) -> tuple[int, bool, list[Answer]]:
        """Tell and ask in one step, and `renew` one's lease or not.

        Returns how many coordinators are known, whether the counts are those of all, and an answer to each entry.
        """
        ...

    async def leave(self) -> None:
        """Give one's lease up, and with it all counts."""
        ...

    async def disconnect(self) -> None:
        """Close the connection, if it is open."""
        ...


class QuotaStore:
    """One coordinator's side of the store. Everything runs on one event loop."""

    def __init__(self, server: StoreServer, coordinators: Callable[[], int], timeout_s: float, *, queued: bool) -> None:
        """`coordinators`: how many there are now. `timeout_s`: longest time for an answer. `queued`: there is a quota of what waits."""
        self.ledger = QuotaLedger()
        self._server = server
        self._coordinators = coordinators
        self._timeout_s = timeout_s
        self._queued = queued
        self._wake = asyncio.Event()
        self._tell_all_at = 0.0
        """When everything is to be told again, by the clock of the event loop."""
        self._renewed_at = -math.inf
        """When the lease was renewed last; the store has all accounts of this coordinator then."""
        self._trouble = _NOT_ASKED

    @property
    def trouble(self) -> str:
        """Why the store does not decide; empty if it does."""
        return self._trouble

    async def ask(self, client: str, places: int) -> Verdict | None:
        """Ask whether a client may have a request for so many choices; None where the store does not decide.

        What is granted is held until `ledger.ended`.
        """
        if not self._server.connected:
            return None
        ask = self.ledger.ask(client, places)
        self._wake.set()
        try:
            return await ask.answered
        except asyncio.CancelledError:
            self.ledger.withdraw(client, ask)
            self._wake.set()
            raise

    def ended(self, client: str, places: int) -> None:
        """A request is over; others may have its place at once."""
        self.ledger.ended(client, places)
        self._wake.set()

    async def run(self, queue: Queue) -> None:
        """Tell and ask until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._wait(loop)
                try:
                    await self._round(queue, loop)
                except Exception:  # noqa: BLE001 (the edge of a task: without it the store would decide about no request ever again)
                    _log.exception("a round with the quota store failed; the next one comes as usual")
        finally:
            self.ledger.give_up(None)
            await self._leave()

    async def _leave(self) -> None:
        """Nothing is on its way here any more: others need not wait until the lease is over."""
        with suppress(Unavailable, TimeoutError):
            if self._server.connected:
                await self._in_time(self._server.leave())
        await self._server.disconnect()

    async def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Return when there is something to tell, or everything is to be told again."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._tell_all_at):
                while not (self._server.connected and self.ledger.due):
                    self._wake.clear()
                    await self._wake.wait()
        if loop.time() >= self._tell_all_at:
            self._tell_all_at = loop.time() + TELL_EVERY_S
            self.ledger.all_due()

    async def _round(self, queue: Queue, loop: asyncio.AbstractEventLoop) -> None:
        """Tell once, and take in the answer."""
        message: Message | None = None
        try:
            if not self._server.connected:
                async with asyncio.timeout(CONNECT_S):
                    await self._server.connect()
            message = self.ledger.take(MOST_CLIENTS, queue, queued=self._queued)
            await self._exchange(message, loop)
        except (Unavailable, TimeoutError) as error:
            await self._give_up(message, str(error) or f"it could not be reached within {CONNECT_S:g} s")
        except Exception:
            await self._give_up(message, "a round failed, as the log says")
            raise
        except asyncio.CancelledError:
            self.ledger.give_up(message)
            raise
        await asyncio.sleep(0)  # what is let in enters the queue before the next message says what waits

    async def _exchange(self, message: Message, loop: asyncio.AbstractEventLoop) -> None:
        began, coordinators = loop.time(), self._coordinators()
        whole = began - self._renewed_at < LEASE_S or not self.ledger.due
        telling = self._server.tell(message.entries, coordinators, renew=whole)
        known, exact, answers = await self._in_time(telling)
        if whole:
            self._renewed_at = began
            self._note("" if exact else f"it knows {known} of {coordinators} coordinators")
        self.ledger.settle(message, answers, exact=exact)

    async def _in_time(self, call: Coroutine[Any, Any, T]) -> T:
        """The answer to a call. Raises TimeoutError. The time is waited for in halves, since it may be this process that was busy."""
        task = asyncio.create_task(call)
        try:
            for _ in range(2):
                if (await asyncio.wait({task}, timeout=self._timeout_s / 2))[0]:
                    return task.result()
            raise TimeoutError(f"it did not answer within quota_store_timeout_ms = {self._timeout_s * 1000:g}")
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _give_up(self, message: Message | None, trouble: str) -> None:
        """The store cannot be asked now: what waits for it goes by shares, and it hears everything again when it is back."""
        self._renewed_at = -math.inf
        self.ledger.give_up(message)
        self._note(trouble)
        await self._server.disconnect()

    def _note(self, trouble: str) -> None:
        """Note why the store does not decide; told in the log when that begins and ends."""
        before, self._trouble = self._trouble, trouble
        if trouble and before in ("", _NOT_ASKED):
            _log.warning("quotas of clients hold by shares: the quota store does not decide", extra=fields(why=trouble))
        elif before and not trouble:
            _log.info("quotas of clients are counted by the quota store, for all coordinators")
