"""Messages made from their descriptors alone: whatever a field can hold, set or not, deep and wide."""

from __future__ import annotations

import random
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from benchmarks.fire.fuzz import borders

_SET: Final = 0.55
"""The share of the fields of a message that are set."""
_DEEPEST: Final = 8
_HUGE: Final = 0.002
"""The share of messages that may be as long as a transport lets through."""
_WIRE_KINDS: Final = (0, 1, 2, 3, 4, 5, 6, 7)


class Generator:
    """Makes messages. Each has at most so many entries in all its lists and texts together, as `most` says."""

    def __init__(self, chance: random.Random, most: int = 2_000, huge: int = 200_000) -> None:
        """Now and then a message may have `huge` entries."""
        self._chance = chance
        self._most, self._huge = most, huge
        self._left = most

    def encoded(self, kind: Descriptor) -> bytes:
        """A message of this kind as bytes, now and then with more behind it: unknown fields, or a second message that is merged."""
        data = self.message(kind).SerializeToString()
        drawn = self._chance.random()
        if drawn < 0.05:
            return data + self._unknown()
        if drawn < 0.1:  # every member of a oneof may be on the wire, and a field twice
            return data + self.message(kind).SerializeToString()
        return data

    def message(self, kind: Descriptor) -> Message:
        """Make a message of this kind."""
        self._left = self._huge if self._chance.random() < _HUGE else self._most
        return self._filled(kind, 0)

    def set_field(self, message: Message, field: FieldDescriptor) -> None:
        """Give one field another value."""
        self._left = self._most
        message.ClearField(field.name)
        self._set(message, field, 1)

    def _filled(self, kind: Descriptor, depth: int) -> Message:
        message = GetMessageClass(kind)()
        for field in _some_of_oneofs(self._chance, kind):
            self._set(message, field, depth)
        return message

    def _set(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        inner = cast("Descriptor | None", field.message_type)
        if field.is_repeated:
            self._extend(message, field, inner, depth)
        elif inner is None:
            value = borders.scalar(self._chance, field, self._left)
            self._spend(len(value) if isinstance(value, str | bytes) else 1)
            setattr(message, field.name, value)
        elif depth < _DEEPEST:
            getattr(message, field.name).CopyFrom(self._filled(inner, depth + 1))

    def _extend(self, message: Message, field: FieldDescriptor, inner: Descriptor | None, depth: int) -> None:
        entries: Any = getattr(message, field.name)
        count = borders.count(self._chance, field, self._left if inner is None else self._left // 8)
        self._spend(count)
        if inner is None:
            entries.extend(self._values(field, count))
        elif inner.GetOptions().map_entry:
            self._extend_map(entries, inner, count, depth)
        else:
            entries.extend(self._filled(inner, depth + 1) for _ in range(count) if self._left > 0)

    def _extend_map(self, entries: Any, kind: Descriptor, count: int, depth: int) -> None:
        key, value = kind.fields
        for _ in range(count):
            name = borders.scalar(self._chance, key, 8)
            if value.message_type is None:
                entries[name] = borders.scalar(self._chance, value, 8)
            else:
                entries[name].CopyFrom(self._filled(cast("Descriptor", value.message_type), depth + 1))

    def _values(self, field: FieldDescriptor, count: int) -> list[borders.Scalar]:
        """Values for a list. A long one holds few different ones, so that it takes no time to make."""
        few = [borders.scalar(self._chance, field, max(8, self._left)) for _ in range(min(count, 16))]
        self._spend(sum(len(value) for value in few if isinstance(value, str | bytes)))
        return few if count <= len(few) else self._chance.choices(few, k=count)

    def _spend(self, entries: int) -> None:
        self._left = max(0, self._left - entries)

    def _unknown(self) -> bytes:
        """Fields of numbers that nobody has, of every kind that there is on the wire, groups and kinds that do not exist included."""
        number, kind = self._chance.choice((5, 15, 19_000, 2**28, 2**29 - 1)), self._chance.choice(_WIRE_KINDS)
        key = varint(number << 3 | kind)
        length = self._chance.choice((0, 1, 3, 127, 2**31, 2**63))
        return key + (varint(length) if kind == 2 else b"") + self._chance.randbytes(self._chance.randint(0, 12))


def kind_of(message: type[Message]) -> Descriptor:
    """The descriptor of a message type."""
    return cast("Descriptor", message.DESCRIPTOR)


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def _some_of_oneofs(chance: random.Random, kind: Descriptor) -> list[FieldDescriptor]:
    """The fields to be set, in order: of a oneof one as a rule, and as often each of them."""
    chosen = {
        chance.choice(list(oneof.fields)).name
        for oneof in kind.oneofs
        if len(oneof.fields) > 1 and chance.random() < 0.95
    }
    return [field for field in kind.fields if field.name in chosen or (_alone(field) and chance.random() < _SET)]


def _alone(field: FieldDescriptor) -> bool:
    """True unless it is one of several in a oneof."""
    return field.containing_oneof is None or len(field.containing_oneof.fields) == 1
