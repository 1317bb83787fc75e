"""Messages of honest parties with something changed: a field, an entry, or bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from benchmarks.fire.fuzz.generated import Generator, varint

_MOST_CHANGES: Final = 3
_DEEPER: Final = 0.75
"""How likely a change is in a message inside rather than in the message itself, if there is one."""
_MOST_PASTED: Final = 4_096


class Mutator:
    """Changes messages of one conversation, all by one source of chance."""

    def __init__(self, chance: random.Random, generator: Generator) -> None:
        self._chance = chance
        self._generator = generator

    def changed(self, data: bytes, kind: Descriptor) -> bytes:
        """The message with one to three fields changed; other bytes if it is no message of this kind."""
        message = GetMessageClass(kind)()
        try:
            message.ParseFromString(data)
        except DecodeError:
            return self.spoiled(data)
        for _ in range(self._chance.randint(1, _MOST_CHANGES)):
            self._change(message)
        return message.SerializeToString()

    def spoiled(self, data: bytes) -> bytes:
        """Other bytes: with bits flipped, something cut off, put in, doubled, or a length that is another."""
        spoiled = bytearray(data)
        for _ in range(self._chance.randint(1, _MOST_CHANGES)):
            self._chance.choice(_SPOILINGS)(self._chance, spoiled)
        return bytes(spoiled)

    def shuffled(self, conversation: Sequence[bytes], others: Sequence[bytes]) -> list[bytes]:
        """The messages with some dropped, doubled, exchanged or cut off, or with some of another conversation among them."""
        messages = [*conversation]
        for _ in range(self._chance.randint(1, _MOST_CHANGES)):
            if not messages:
                break
            at = self._chance.randrange(len(messages))
            match self._chance.randint(0, 5):
                case 0:
                    del messages[at]
                case 1:
                    messages[at:at] = [messages[at]] * self._chance.choice((1, 1, 2, 20))
                case 2:
                    other = self._chance.randrange(len(messages))
                    messages[at], messages[other] = messages[other], messages[at]
                case 3:
                    del messages[at:]
                case 4:
                    del messages[:at]
                case _:
                    messages[at:at] = self._chance.choices(others, k=min(len(others), 3))
        return messages

    def _change(self, message: Message) -> None:
        """Change one field, of the message or of one inside it."""
        present = message.ListFields()
        inner = [field for field, _ in present if _holds_messages(field)]
        if inner and self._chance.random() < _DEEPER:
            return self._change_below(message, self._chance.choice(inner))
        if present and self._chance.random() < 0.6:
            field = self._chance.choice(present)[0]
            return self._change_field(message, field)
        fields = cast("Sequence[FieldDescriptor]", cast("Descriptor", message.DESCRIPTOR).fields)
        if fields:
            self._generator.set_field(message, self._chance.choice(fields))
        return None

    def _change_below(self, message: Message, field: FieldDescriptor) -> None:
        held: Any = getattr(message, field.name)
        if not field.is_repeated:
            return self._change(held)
        if self._chance.random() < 0.3:
            return self._change_entries(held)
        return self._change(held[self._chance.randrange(len(held))])

    def _change_field(self, message: Message, field: FieldDescriptor) -> None:
        """Another value, or one nearby, or none."""
        value: Any = getattr(message, field.name)
        drawn = self._chance.random()
        if drawn < 0.15:
            message.ClearField(field.name)
        elif field.is_repeated and not _is_map(field) and drawn < 0.8:
            self._change_entries(value)
        elif isinstance(value, int) and drawn < 0.6:
            self._step(message, field, value)
        elif isinstance(value, str | bytes) and drawn < 0.6:
            cut = self._chance.randint(0, len(value))
            setattr(message, field.name, value[:cut] if self._chance.random() < 0.5 else 2 * value)
        else:
            self._generator.set_field(message, field)

    def _step(self, message: Message, field: FieldDescriptor, value: int) -> None:
        """A number nearby, if the field has room for it."""
        try:
            setattr(message, field.name, value + self._chance.choice((-2, -1, 1, 2, 3)))
        except (ValueError, TypeError):
            self._generator.set_field(message, field)

    def _change_entries(self, entries: Any) -> None:
        """Drop, double, exchange, replace or append entries of a list; messages in it are copied whole."""
        if not entries:
            return
        at, other = self._chance.randrange(len(entries)), self._chance.randrange(len(entries))
        match self._chance.randint(0, 4):
            case 0:
                del entries[at]
            case 1:
                entries.append(entries[at])
            case 2:
                entries.extend([entries[at]] * self._chance.choice((1, 17, 70)))
            case 3:
                del entries[min(at, other) : max(at, other)]
            case _:
                first, second = _copied(entries[at]), _copied(entries[other])
                _put(entries, at, second)
                _put(entries, other, first)


def _copied(entry: Any) -> Any:
    if not isinstance(entry, Message):
        return entry
    copy = type(entry)()
    copy.CopyFrom(entry)
    return copy


def _put(entries: Any, at: int, entry: Any) -> None:
    if isinstance(entry, Message):
        entries[at].CopyFrom(entry)
    else:
        entries[at] = entry


def _holds_messages(field: FieldDescriptor) -> bool:
    return field.message_type is not None and not _is_map(field)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _flip(chance: random.Random, data: bytearray) -> None:
    for _ in range(chance.randint(1, 4)):
        if data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _cut(chance: random.Random, data: bytearray) -> None:
    begin, end = sorted((chance.randint(0, len(data)), chance.randint(0, len(data))))
    del data[begin:end]


def _truncate(chance: random.Random, data: bytearray) -> None:
    del data[chance.randint(0, len(data)) :]


def _insert(chance: random.Random, data: bytearray) -> None:
    at = chance.randint(0, len(data))
    data[at:at] = chance.randbytes(chance.randint(1, 8))


def _double(chance: random.Random, data: bytearray) -> None:
    begin, end = sorted((chance.randint(0, len(data)), chance.randint(0, len(data))))
    data[begin:begin] = data[begin : min(end, begin + _MOST_PASTED)]


def _lengthen(chance: random.Random, data: bytearray) -> None:
    """A number where a length may stand: far too long, or one byte off."""
    if data:
        at = chance.randrange(len(data))
        data[at : at + 1] = varint(chance.choice((data[at] ^ 1, 127, 128, 2**14, 2**31 - 1, 2**32, 2**63, 2**70)))


_SPOILINGS: Final[Sequence[Callable[[random.Random, bytearray], None]]] = (
    _flip,
    _flip,
    _cut,
    _truncate,
    _insert,
    _double,
    _lengthen,
)
