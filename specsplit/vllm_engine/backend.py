"""What the servicer of the engine protocol asks of the service that it is part of."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from specsplit.engine import EngineLoad
from specsplit.requests import Delta, GenerateEvent, GenerateRequest
from specsplit.rpc import Context
from specsplit.values import ModelInfo

Asked = TypeVar("Asked")
Answered = TypeVar("Answered", bound=Message)
Write = Callable[[GenerateEvent, Sequence[Delta]], Iterable[Answered]]
"""Makes messages of an event and of the deltas before it that were held back; none if there is nothing to tell yet."""


class EngineBackend(Protocol):
    """A service that generates."""

    def read(self, parse: Callable[[Asked], GenerateRequest], message: Asked) -> GenerateRequest:
        """Parse a request. What `parse` raises is logged and raised."""
        ...

    def answer(
        self, request: GenerateRequest, context: Context, write: Write[Answered]
    ) -> AsyncGenerator[Answered, None]:
        """Yield the messages of an answer. Raises SpecsplitError. The caller has to close the generator."""
        ...

    def abort(self, request_ids: Iterable[str]) -> None:
        """End those requests of these ids that the present caller has made; others are let pass."""
        ...

    def model(self) -> ModelInfo:
        """What is served. Raises Unavailable if that is not known yet."""
        ...

    def load(self) -> EngineLoad:
        """How busy the service is."""
        ...

    def problem(self) -> str:
        """Why no requests are taken, in a sentence; empty if they are."""
        ...
