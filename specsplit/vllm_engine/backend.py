"""What the servicer of the engine protocol asks of the service that it is part of, beside the answers themselves."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from specsplit.engine import BlockBatch, EngineLoad, Operation, Outcome
from specsplit.values import ModelInfo


class EngineBackend(Protocol):
    """A service that generates."""

    def model(self) -> ModelInfo:
        """What is served. Raises Unavailable if that is not known yet."""
        ...

    def load(self) -> EngineLoad:
        """How busy the service is."""
        ...

    def problem(self) -> str:
        """Why no requests are taken, in a sentence; empty if they are. Raises Unavailable while nobody knows yet what is served."""
        ...

    async def operate(self, operation: Operation) -> Outcome:
        """Do what an operator asks for. Raises SpecsplitError."""
        ...

    def block_events(self) -> AsyncGenerator[BlockBatch, None]:
        """Yield what is cached of texts, then what changes of it. The caller has to close the generator. Raises SpecsplitError."""
        ...
