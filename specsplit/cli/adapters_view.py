"""The adapters of a cluster as rows of a table: which verifiers have each, and how many sessions use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from specsplit.cli.columns import NOTHING, Column, named
from specsplit.membership import Member
from specsplit.values import Adapter, ModelInfo

_DIGITS = 12
"""Digits of a digest that are shown."""


@dataclass
class AdapterRow:
    """One adapter, which is the same one on all verifiers that have it: a coordinator takes no other under its name."""

    adapter: Adapter
    sessions: int
    verifiers: list[str] = field(default_factory=list[str])
    """Member ids."""


def adapter_rows(members: Sequence[Member]) -> list[AdapterRow]:
    """List the adapters of all verifiers, most used first, then by name."""
    used = Counter[str]()
    for member in members:
        used.update({each.name: each.sessions for each in member.load.adapters})
    rows: dict[str, AdapterRow] = {}
    for member in members:
        for adapter in member.role.adapters if isinstance(member.role, ModelInfo) else ():
            row = rows.setdefault(adapter.name, AdapterRow(adapter, used[adapter.name]))
            row.verifiers.append(member.member_id)
    return sorted(rows.values(), key=lambda row: (-row.sessions, row.adapter.name))


ADAPTERS: Sequence[Column[AdapterRow]] = (
    Column("adapter", "its name, for which requests ask", 0, lambda row: row.adapter.name, right=False),
    Column("sessions", "that are decoded with it, waiting ones included", 1, lambda row: str(row.sessions)),
    Column("verifiers", "who has it", 2, lambda row: named(row.verifiers), right=False),
    Column("rank", "the highest of its matrices", 3, lambda row: str(row.adapter.rank or NOTHING)),
    Column("digest", "of its files, its first digits", 4, lambda row: row.adapter.digest[:_DIGITS], right=False),
)
