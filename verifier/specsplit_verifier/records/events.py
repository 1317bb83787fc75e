"""What reaches the engine thread, and what leaves it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from specsplit.draft_events import ToDrafter, ToVerifier
from specsplit.engine import Block, BlockChange, StartProfile
from specsplit.errors import InvalidRequest, SpecsplitError
from specsplit.grammar import GrammarState
from specsplit.membership import HandOver, PlanOrder, Roster, StartWave
from specsplit.model.lm.revision import Revision
from specsplit.sessions import DecodeEvent, DecodeRequest
from specsplit_verifier.records.step import StepResult

T = TypeVar("T")
Output = DecodeEvent | SpecsplitError
"""What a caller of Decode gets; an error ends it too."""
Outputs = list[tuple[int, Output]]
"""(session, what its caller gets), in order."""
Sends = list[tuple[str, int, ToDrafter]]
"""(drafter address, session, what it is told), in order."""


@dataclass(frozen=True, slots=True)
class Constrained:
    """A request whose output is held to its constraint, which has been compiled."""

    request: DecodeRequest
    grammar: GrammarState


@dataclass(frozen=True, slots=True)
class Cancel:
    """The caller of a session is gone. A session that has ended already is no error."""

    session: int


@dataclass(frozen=True, slots=True)
class FromDrafter:
    """One message of a drafter, taken apart."""

    address: str
    events: Sequence[tuple[int, ToVerifier | InvalidRequest]]
    openings: int = sys.maxsize
    """How many openings the streams had been told of when it came: it says nothing of a later one."""


@dataclass(frozen=True, slots=True)
class DrafterLost:
    """The stream to a drafter is gone, and with it everything it held."""

    address: str
    why: str
    dropped: bool = False
    """True if it was closed here, since the drafter caused more work than it was asked for."""
    left: bool = False
    """True if the drafter has ended it in order."""


@dataclass(frozen=True, slots=True)
class FlushPages:
    """Free the pages that no session has."""

    answered: Future[tuple[int, int]]
    """Gets how many were freed, and how many pages that can be shared sessions have."""


@dataclass(frozen=True, slots=True)
class WatchBlocks:
    """Somebody wants to know which blocks of tokens the prefix cache has. Called on the engine thread, and to return at once."""

    begin: Callable[[Sequence[Block]], None]
    """Called with all that are there now."""
    changed: Callable[[Sequence[BlockChange]], None]
    """Called with what has changed since."""


@dataclass(frozen=True, slots=True)
class UnwatchBlocks:
    """Nobody wants to know any more."""


@dataclass(frozen=True, slots=True)
class BeginProfile:
    """Profile what the engine thread computes."""

    wanted: StartProfile
    answered: Future[Any]


@dataclass(frozen=True, slots=True)
class EndProfile:
    """End the profile."""

    answered: Future[Any]
    """Gets the profile of torch, to be written."""


@dataclass(frozen=True, slots=True)
class HoldSessions:
    """Sessions that have not begun are to wait, or no longer."""

    held: bool


@dataclass(frozen=True, slots=True)
class TakeWeights:
    """Go on with other weights."""

    revision: Revision
    restart: bool
    """True: what runs is computed again. False: nothing is done while a session that has begun is there."""
    heads_rest: bool
    """Whether heads are not used on weights that they were not made for."""
    answered: Future[int]
    """Gets the number of sessions that have begun: other weights are in force if it is 0, or they restart."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the engine thread."""


SessionEvent = DecodeRequest | Constrained | Cancel | FromDrafter | DrafterLost | Roster | HandOver | PlanOrder
"""What happens to sessions: a request begins one. Of a HandOver the source is the address of the drafter, by which a verifier knows it."""
CacheEvent = FlushPages | WatchBlocks | UnwatchBlocks
WeightsEvent = HoldSessions | TakeWeights
Inbound = SessionEvent | CacheEvent | WeightsEvent | BeginProfile | EndProfile | StartWave | Stop


def answer(waiting: Future[T], work: Callable[[], T]) -> None:
    """Do what somebody waits for, unless he has gone; what it raises is his."""
    if waiting.set_running_or_notify_cancel():
        try:
            waiting.set_result(work())
        except Exception as error:  # noqa: BLE001 (raised where it is waited for)
            waiting.set_exception(error)


class Outbox(Protocol):
    """Where the engine thread hands over what it made; must not block, may be called from any thread."""

    @property
    def watching(self) -> bool:
        """True if somebody wants to know of steps now; asked once per step."""
        ...

    @property
    def watched(self) -> frozenset[int]:
        """Sessions whose trees are wanted too; asked once per step."""
        ...

    def deliver(self, outputs: Outputs, sends: Sends, result: StepResult | None) -> None:
        """`result` is of the step that brought them about, if there was one and somebody wants to know."""
        ...

    def died(self, why: str = "") -> None:
        """The engine thread ended on an error; nothing more will be delivered. Without `why` the log holds it."""
        ...
