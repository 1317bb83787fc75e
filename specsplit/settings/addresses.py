"""Where the replicas of one service are, as settings and programs write it: HOST:PORT,HOST:PORT, or dns:///NAME:PORT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from specsplit.errors import InvalidRequest, quoted
from specsplit.settings.address import check_dialable

DNS: Final = "dns:///"
"""Stands before a name of which every address is meant, as gRPC writes it; without it a name is one server."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """What one such text says."""

    listed: tuple[str, ...] = ()
    """host:port of one server each."""
    names: tuple[str, ...] = ()
    """host:port where the host stands for every address that DNS has for it."""

    @classmethod
    def read(cls, field: str, text: str) -> Self:
        """Read them. Raises InvalidRequest naming `field` for an empty part, one that nobody can dial, and one that is given twice."""
        parts = [part.strip() for part in text.split(",")]
        for part in parts:
            check_dialable(field, part.removeprefix(DNS))
        twice = next((part for index, part in enumerate(parts) if part in parts[:index]), None)
        if twice is not None:
            raise InvalidRequest(field, f"has {quoted(twice)} twice; name each server once")
        names = tuple(part.removeprefix(DNS) for part in parts if part.startswith(DNS))
        return cls(tuple(part for part in parts if not part.startswith(DNS)), names)

    @property
    def dialled(self) -> tuple[str, ...]:
        """Every host:port in it, names included."""
        return (*self.listed, *self.names)
