"""Fields that this version does not know, which protobuf would pass over in silence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from specsplit.errors import InvalidRequest


def refuse_unknown(message: Message, path: str = "") -> None:
    """Raise InvalidRequest, naming the number of the field, if `message` or one inside it holds an unknown field."""
    for field in UnknownFieldSet(message):
        where = path.removesuffix(".") or "request"
        raise InvalidRequest(where, f"field number {field.field_number} is unknown to this version of specsplit")
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        inner = [value] if isinstance(value, Message) else cast("Iterable[Message]", value)
        for part in inner:
            refuse_unknown(part, f"{path}{descriptor.name}.")
