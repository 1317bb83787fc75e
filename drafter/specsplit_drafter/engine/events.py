"""The events that are posted to the engine thread of a drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from specsplit.membership import StartWave
from specsplit_drafter.engine.session_table import SessionEvent


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """A verifier has come."""

    stream: int


@dataclass(frozen=True, slots=True)
class Received:
    """A stream brought events for its sessions, in this order."""

    stream: int
    events: Sequence[tuple[int, SessionEvent]]


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """A verifier is gone, and its sessions with it."""

    stream: int


@dataclass(frozen=True, slots=True)
class Drain:
    """No new sessions are to be taken; `when_idle` is called once none is left."""

    when_idle: Callable[[], None]


@dataclass(frozen=True, slots=True)
class HandBack:
    """Every session is to end, so that its verifier may find another drafter."""


@dataclass(frozen=True, slots=True)
class TakeWeights:
    """Go on with other weights."""

    copy: Callable[[], None]
    """Copies them into the model. What it raises leaves that between two revisions."""
    answered: Future[int]
    """Gets the version of the weights then."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The thread is to end."""


Inbound: TypeAlias = StreamOpened | Received | StreamClosed | Drain | HandBack | StartWave | TakeWeights | Stop
