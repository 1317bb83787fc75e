"""A look at the bytes of a large message before it is parsed, because parsing multiplies them.

An empty message inside a list is 2 bytes on the wire and some 50 in memory: 16 MB of them take 0.6 s to parse, during which the event
loop stands still, and 0.5 GB. So a large message is first read as what it is on the wire, a row of records, and given up at the first list
or text that is longer than its limit, or when there are too many records of whatever kind. A small one costs little however it is made,
and is let pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from specsplit.errors import InvalidRequest
from specsplit.wire.limits import Limit, limit_of

SCANNED_BYTES = 16 * 2**10
"""Messages above this are scanned."""
MAX_RECORDS = 2**17
"""Records of one message, those inside of it counted; what the limits allow a message of ours is less."""

_VARINT, _DELIMITED = 0, 2
_FIXED = {1: 8, 5: 4}
"""Bytes of the kinds of value that are always as long."""
_LONGEST_VARINT = 70
"""Bits of the longest varint: ten bytes, seven bits in each."""
_CONTINUED = bytes(range(128, 256))
"""Bytes of a varint that are not its last."""
_LONGEST_CHARACTER = 4
"""Bytes of the longest character in UTF-8."""
_FIXED_WIDTH = {FieldDescriptor.TYPE_FLOAT: 4, FieldDescriptor.TYPE_DOUBLE: 8, FieldDescriptor.TYPE_FIXED64: 8}


class NotAMessage(Exception):
    """The bytes are no message of protobuf."""


def scan(data: bytes, descriptor: Descriptor) -> None:
    """Look at the bytes of a message of the kind `descriptor`, if there are many; see `look`."""
    if len(data) > SCANNED_BYTES:
        look(data, descriptor)


def look(data: bytes, descriptor: Descriptor) -> None:
    """Look at the bytes of a message of the kind `descriptor`.

    Raises InvalidRequest naming the field that is longer than its limit, and NotAMessage for what is none of protobuf 3.
    """
    _Scan(data).message(0, len(data), descriptor, "")


@dataclass(frozen=True, slots=True)
class _Field:
    """What the scan wants to know of a field."""

    name: str
    limit: Limit
    inner: Descriptor | None
    """The type of a message inside."""
    unit: str
    """What a text, or bytes, are measured in."""
    bytes_per_unit: int
    """Bytes of one unit, at most."""
    packed_width: int | None
    """Bytes of one number in a packed list, 0 if they vary; None: it is no list of numbers."""


class _Scan:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = MAX_RECORDS

    def message(self, begin: int, end: int, descriptor: Descriptor, path: str) -> None:
        """Scan the records from `begin` to `end`, which make a message."""
        fields, counts = _fields_of(descriptor), dict[str, int]()
        for number, kind, at, after in _records(self._data, begin, end):
            self._left -= 1
            if self._left < 0:
                raise InvalidRequest("message", f"holds more than {MAX_RECORDS:,} fields")
            field = fields.get(number)
            if field is not None:
                entries = self._entries(field, at, after, path) if kind == _DELIMITED else 1
                counts[field.name] = entries = counts.get(field.name, 0) + entries
                _require(field.limit.entries, entries, "entries", path, field.name)

    def _entries(self, field: _Field, begin: int, end: int, path: str) -> int:
        """How many entries a record adds to its field; looks at what is inside."""
        if field.inner is not None:
            if begin < end:
                self.message(begin, end, field.inner, f"{path}{field.name}.")
        elif field.packed_width is not None:
            return self._numbers(field.packed_width, begin, end)
        else:
            _require(field.limit.length, (end - begin) // field.bytes_per_unit, field.unit, path, field.name)
        return 1

    def _numbers(self, width: int, begin: int, end: int) -> int:
        """How many a packed list holds: of varints, as many as bytes that end one."""
        return (end - begin) // width if width else len(self._data[begin:end].translate(None, _CONTINUED))


def _records(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number of the field, kind of the value, where the value begins and ends. Raises NotAMessage for what is no row of records."""
    while at < end:
        key, at = _varint(data, at, end)
        kind, begin = key & 7, at
        if kind == _DELIMITED:
            length, begin = _varint(data, at, end)
            at = begin + length
        elif kind == _VARINT:
            _, at = _varint(data, at, end)
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            raise NotAMessage
        if at > end:
            raise NotAMessage
        yield key >> 3, kind, begin, at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read the number at `at`; return it and where it ends."""
    value = shift = 0
    while at < end and shift < _LONGEST_VARINT:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise NotAMessage


def _require(limit: int | None, found: int, unit: str, path: str, name: str) -> None:
    if limit is not None and found > limit:
        raise InvalidRequest(f"{path}{name}", f"has more than {limit:,} {unit}, expected at most {limit:,}")


@cache
def _fields_of(descriptor: Descriptor) -> dict[int, _Field]:
    return {field.number: _described(field) for field in descriptor.fields}


def _described(field: FieldDescriptor) -> _Field:
    limit = limit_of(field.full_name) or Limit()
    inner = field.message_type
    is_text = field.type == FieldDescriptor.TYPE_STRING
    is_number = inner is None and not is_text and field.type != FieldDescriptor.TYPE_BYTES
    width = _FIXED_WIDTH.get(field.type, 0) if field.is_repeated and is_number else None
    unit, size = ("characters", _LONGEST_CHARACTER) if is_text else ("bytes", 1)
    return _Field(field.name, limit, inner, unit, size, width)
