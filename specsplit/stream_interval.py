"""How many tokens of an answer are sent at once: a message costs every process that it passes as much as a small step does."""

from __future__ import annotations

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

    def holds(self, output: _Output, tokens: int) -> bool:
        """Hold output of so many tokens back -> False, and do not, if that is enough with what is held."""
        self._tokens += tokens
        if self._tokens >= self._interval:
            return False
        self._outputs.append(output)
        return True

    def release(self) -> list[_Output]:
        """Hold nothing any longer -> what was held, in order, which is sent now."""
        outputs, self._outputs, self._tokens = self._outputs, [], 0
        return outputs
