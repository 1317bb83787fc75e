"""The adapter that a session is decoded with, as the target and the prefix cache know it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from specsplit.values import ModelInfo


@dataclass(frozen=True, slots=True)
class UsedAdapter:
    """Which adapter is added to the target; by default none is."""

    number: int = 0
    """The adapter's place in `ModelInfo.adapters`, counted from 1; 0: none."""
    salt: bytes = b""
    """What KV depends on beside the tokens; empty: nothing."""

    @classmethod
    def of(cls, info: ModelInfo, name: str) -> Self:
        """Find the adapter of that name; empty: none. Raises InvalidRequest, naming those that are there, if there is none of that name."""
        adapter = info.adapter(name)
        return cls() if adapter is None else cls(info.adapters.index(adapter) + 1, adapter.salt)


NO_ADAPTER: Final = UsedAdapter()
