"""How many tokens of an answer are sent at once: a message costs every process that it passes as much as a small step does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from specsplit.errors import InvalidRequest

MAX_STREAM_INTERVAL: Final = 1024
"""Tokens that are held back, at most."""

_Output = TypeVar("_Output")


def check_stream_interval(tokens: int) -> None:
    """Raise InvalidRequest for an interval out of range."""
    if not 1 <= tokens <= MAX_STREAM_INTERVAL:
        raise InvalidRequest("stream_interval", f"is {tokens}, expected 1..{MAX_STREAM_INTERVAL:,} tokens")


class Held(Generic[_Output]):
    """Output of one choice that is held back, to be sent with what comes behind it. The first is not."""

    def __init__(self, interval: int) -> None:
        """`interval`: tokens that are sent at once, at least; 1 holds nothing back."""
        self._interval = interval
        self._outputs: list[_Output] = []
        self._tokens = interval
        self.due = False
        """There is enough to be sent, and it waits for what is being sent."""

    def holds(self, outputs: Iterable[_Output], tokens: int) -> bool:
        """Hold outputs of so many tokens back -> False, and do not, if that is enough with what is held."""
        self._tokens += tokens
        if self._tokens >= self._interval:
            return False
        self._outputs += outputs
        return True

    def gathers(self, outputs: Iterable[_Output], most: int) -> bool:
        """Hold outputs that `holds` let pass until what is being sent has gone -> False, and do not, if that makes `most` tokens."""
        if self._tokens >= most:
            return False
        self._outputs += outputs
        self.due = True
        return True

    def release(self) -> list[_Output]:
        """Hold nothing any longer -> what was held, in order, which is sent now."""
        outputs, self._outputs, self._tokens, self.due = self._outputs, [], 0, False
        return outputs
