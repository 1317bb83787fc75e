"""What a log record carries beside its sentence."""

from __future__ import annotations

FIELDS = "specsplit_fields"
"""The attribute of a record that holds them."""


def fields(**values: object) -> dict[str, dict[str, object]]:
    """Key=value pairs for a record: `log.info("session opened", extra=fields(session=3))`."""
    return {FIELDS: values}
