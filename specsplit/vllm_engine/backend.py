"""What the servicer of the engine protocol asks of the service that it is part of, beside the answers themselves."""

from __future__ import annotations

from typing import Protocol

from specsplit.engine import EngineLoad
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
        """Why no requests are taken, in a sentence; empty if they are."""
        ...
