"""What this coordinator tells a quota store of its clients, and what it asks for them. Pure.

Everything told is absolute: requests on their way, those of them that wait, and all tokens used since the account was opened. What is told
twice, or told and not answered, is put right by what is told next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol

REFUSALS: Final = ("", "client_max_requests", "client_max_queued", "client_tokens_per_minute")
"""By the number that the store answers an ask with, the setting whose quota is met; empty: it is granted."""


class Queue(Protocol):
    """The queue before the verifiers."""

    def waits(self, asked: Iterable[tuple[str, int]]) -> list[int]:
        """How many requests each of these clients would have waiting if these places were asked for, one after the other."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the store says of a request."""

    refused: str
    """The setting whose quota is met; empty: the request is granted."""
    held: int
    """Requests of the client on their way at other coordinators."""
    waiting: int
    """Requests of the client that wait for a verifier at other coordinators."""
    tokens: float
    """What is left of the client's tokens."""


@dataclass(eq=False, slots=True)
class Ask:
    """A request that waits for its verdict."""

    places: int
    answered: asyncio.Future[Verdict | None]
    """None: the store has not decided, so the coordinator does by its share."""


@dataclass(eq=False, slots=True)
class _Account:
    """A client that has requests here, or has had some of which the store does not know yet."""

    generation: int
    """Tells it from earlier accounts of the same client, whose tokens are summed apart."""
    held: int = 0
    used: int = 0
    acknowledged: int = 0
    """What the store has answered of `used`."""
    asks: list[Ask] = field(default_factory=list[Ask])


@dataclass(frozen=True, slots=True)
class Entry:
    """What one message tells of one client."""

    client: str
    held: int
    waiting: int
    generation: int
    used: int
    acknowledged: int
    asks: tuple[tuple[int, int], ...]
    """Of each its places, and what would wait with it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the store answers of one client."""

    held: int
    waiting: int
    tokens: float
    codes: tuple[int, ...]
    """Of each ask, as in `REFUSALS`."""


@dataclass(frozen=True, slots=True)
class Message:
    """Some of the accounts, as they are told together."""

    entries: tuple[Entry, ...]
    accounts: tuple[_Account, ...]
    asks: tuple[tuple[Ask, ...], ...]


class QuotaLedger:
    """The accounts of all clients, and which of them the store is to hear of next. Everything runs on one event loop."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._due: dict[str, None] = {}
        """Clients to tell of, those that have waited longest first."""
        self._generations = count(1)

    @property
    def due(self) -> bool:
        """True if there is something to tell."""
        return bool(self._due)

    def __len__(self) -> int:
        return len(self._accounts)

    def all_due(self) -> None:
        """Tell of everybody again."""
        self._due |= dict.fromkeys(self._accounts)

    def ask(self, client: str, places: int) -> Ask:
        """Ask for a request of so many choices; `Ask.answered` is done when it is known."""
        ask = Ask(places, asyncio.get_running_loop().create_future())
        self._account(client).asks.append(ask)
        return ask

    def withdraw(self, client: str, ask: Ask) -> None:
        """Take back what nobody waits for any more, granted or not."""
        account, answered = self._account(client), ask.answered
        if ask in account.asks:
            account.asks.remove(ask)
        if not answered.cancel() and not answered.cancelled():
            verdict = answered.result()
            account.held -= ask.places if verdict is not None and not verdict.refused else 0

    def began(self, client: str, places: int) -> None:
        """A request that the store was not asked for is on its way."""
        self._account(client).held += places

    def ended(self, client: str, places: int) -> None:
        """A request is over, whoever has granted it."""
        self._account(client).held -= places

    def used(self, client: str, tokens: int) -> None:
        """Count tokens that a client with a request here has used. They are told with what is told next."""
        if (account := self._accounts.get(client)) is not None:
            account.used += tokens

    def take(self, most: int, queue: Queue, *, queued: bool) -> Message:
        """What is to be told next, of `most` clients. `settle` or `give_up` has to follow. `queued`: there is a quota of what waits."""
        clients = [*self._due][:most]
        for client in clients:
            del self._due[client]
        accounts = tuple(self._accounts[client] for client in clients)
        waits = iter(self._waits(clients, accounts, queue) if queued else ())
        entries, asks = list[Entry](), list[tuple[Ask, ...]]()
        for client, account in zip(clients, accounts, strict=True):
            waiting = next(waits, 0)
            asked = tuple((ask.places, next(waits, 0)) for ask in account.asks)
            told = (account.held, waiting, account.generation, account.used, account.acknowledged)
            entries.append(Entry(client, *told, asked))
            asks.append((*account.asks,))
            account.asks.clear()
        return Message(tuple(entries), accounts, tuple(asks))

    def settle(self, message: Message, answers: Sequence[Answer], *, exact: bool) -> None:
        """Take in what the store has answered. Where it is not `exact`, asks are left to the coordinator."""
        each = zip(message.entries, message.accounts, message.asks, answers, strict=True)
        for entry, account, asks, answer in each:
            account.acknowledged = entry.used
            for ask, code in zip(asks, answer.codes, strict=True):
                verdict = Verdict(REFUSALS[code], answer.held, answer.waiting, answer.tokens) if exact else None
                self._answer(entry.client, account, ask, verdict)
            self._close(entry.client, account)

    def give_up(self, message: Message | None) -> None:
        """The store has not answered: asks are left to the coordinator, later ones too, and everything is to be told again."""
        told = () if message is None else zip(message.entries, message.accounts, message.asks, strict=True)
        for entry, account, asks in told:
            for ask in asks:
                self._answer(entry.client, account, ask, None)
        for client, account in self._accounts.items():
            while account.asks:
                self._answer(client, account, account.asks.pop(0), None)
        self.all_due()

    def _answer(self, client: str, account: _Account, ask: Ask, verdict: Verdict | None) -> None:
        granted = verdict is not None and not verdict.refused
        if ask.answered.done():  # whoever asked has left, and the store may count it
            self._due[client] = None
            return
        account.held += ask.places if granted else 0
        ask.answered.set_result(verdict)

    def _account(self, client: str) -> _Account:
        """The account of a client, which is to be told of."""
        self._due[client] = None
        if client not in self._accounts:
            self._accounts[client] = _Account(next(self._generations))
        return self._accounts[client]

    def _close(self, client: str, account: _Account) -> None:
        """Forget an account of which the store knows that there is nothing more to it."""
        if client not in self._due and not account.held and account.used == account.acknowledged:
            del self._accounts[client]

    def _waits(self, clients: Sequence[str], accounts: Sequence[_Account], queue: Queue) -> list[int]:
        asked: list[tuple[str, int]] = []
        for client, account in zip(clients, accounts, strict=True):
            asked += [(client, 0), *((client, ask.places) for ask in account.asks)]
        return queue.waits(asked)
