"""Frozen values that every step makes by the hundred."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def lean(*, slots: bool = True, eq: bool = True, kw_only: bool = False) -> Callable[[type[_T]], type[_T]]:
    """Make a frozen dataclass of which the type checker sees that nobody assigns a field, and no construction does.

    A frozen dataclass sets its fields through `object.__setattr__`, which takes three times as long as an assignment. It is hashed, and
    compared, as a frozen one.
    """
    return dataclass(slots=slots, eq=eq, unsafe_hash=eq, kw_only=kw_only)
