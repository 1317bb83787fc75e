"""What leaves a process for people to read: log records and spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specsplit.lazy import offering

if TYPE_CHECKING:
    from specsplit.observe.public import *  # noqa: F403

__getattr__ = offering(__name__)  # whoever makes a log record imports no structlog
