"""Messages that a caller has not read, and how many bytes of them there may be. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from specsplit.errors import Unread

Answered = TypeVar("Answered", bound=Message)
LARGE_BYTES: Final = 2**20
"""Of what is larger than all that may be unread, as it comes at once, so much may be unread beside the latest."""

_USUAL, _LARGE, _PROMPT = 0, 1, 2
"""What a message counts as: large is what came at once and is larger than all that may be unread, which is no fault of the caller's; what
tells of the prompt, which is as long as it is, counts towards no bound.
"""


class UnreadMessages(Generic[Answered]):
    """The messages of one call, in order."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._messages: deque[tuple[Answered, int, int]] = deque()
        """With their bytes, and which sum these count towards."""
        self._bytes = [0, 0, 0]
        """Sums over the messages that are _USUAL, _LARGE and _PROMPT."""
        self._latest = 0
        """Bytes of the latest that is large."""

    def __bool__(self) -> bool:
        return bool(self._messages)

    @property
    def roomy(self) -> bool:
        """No more than half as much is unread as may be."""
        return sum(self._bytes) <= self._max_bytes // 2

    def add(self, messages: Iterable[Answered], *, prompt: bool = False) -> None:
        """Add messages of what came at once."""
        sized = [(message, message.ByteSize()) for message in messages]
        size = sum([size for _, size in sized])
        kind = _PROMPT if prompt else _USUAL if size <= self._max_bytes else _LARGE
        if kind == _LARGE:
            self._latest = size
        self._messages.extend([(*each, kind) for each in sized])
        self._bytes[kind] += size

    def check(self) -> None:
        """Raise Unread if too much is unread."""
        usual, large, _ = self._bytes
        if usual > self._max_bytes:
            raise Unread(usual, self._max_bytes)
        if large and large - self._latest > max(self._max_bytes, LARGE_BYTES):
            raise Unread(large, max(self._max_bytes, LARGE_BYTES))

    def take(self) -> Answered:
        """Take the first, which the caller reads now."""
        message, size, kind = self._messages.popleft()
        self._bytes[kind] -= size
        return message
