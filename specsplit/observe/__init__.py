"""What leaves a process for people to read: log records for now."""

from __future__ import annotations

from specsplit.observe.log import announce, fields, set_up

__all__ = ["announce", "fields", "set_up"]
