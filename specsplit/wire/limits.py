"""How long what a peer sends may be. The transport caps whole messages; these caps name the field."""

from __future__ import annotations

from collections.abc import Sequence

from specsplit.errors import InvalidRequest

MAX_NODES = 65_536
"""Nodes of one session, and with that of one grow."""
MAX_NAME = 256
"""Characters of a request id, a member id or an address."""
MAX_STOP_STRINGS = 16
MAX_STOP_STRING = 1_000
"""Characters of one."""
MAX_STOP_TOKENS = 256
MAX_TRACE_MODULES = 16
MAX_FEATURE_LAYERS = 64
MAX_FEATURE_TOKENS = 65_536
"""Tokens of one features event."""


def check_text(field: str, text: str, limit: int = MAX_NAME) -> str:
    """The text. Raises InvalidRequest naming `field` if it is longer than `limit` characters."""
    if len(text) > limit:
        raise InvalidRequest(field, f"has {len(text):,} characters, expected at most {limit:,}")
    return text


def check_count(field: str, entries: Sequence[object], limit: int) -> None:
    """Raise InvalidRequest naming `field` for more than `limit` entries."""
    if len(entries) > limit:
        raise InvalidRequest(field, f"has {len(entries):,} entries, expected at most {limit:,}")
