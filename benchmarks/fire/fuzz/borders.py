"""Values at and around the borders of what a field may hold, and a few that are nowhere near one."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, cast

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from specsplit.wire.limits import limit_of

Scalar = int | float | str | bytes

_SIGNED_32: Final = (-(2**31), 2**31 - 1)
_UNSIGNED_32: Final = (0, 2**32 - 1)
_SIGNED_64: Final = (-(2**63), 2**63 - 1)
_UNSIGNED_64: Final = (0, 2**64 - 1)
RANGES: Mapping[int, tuple[int, int]] = MappingProxyType(
    {
        FieldDescriptor.TYPE_INT32: _SIGNED_32,
        FieldDescriptor.TYPE_SINT32: _SIGNED_32,
        FieldDescriptor.TYPE_SFIXED32: _SIGNED_32,
        FieldDescriptor.TYPE_UINT32: _UNSIGNED_32,
        FieldDescriptor.TYPE_FIXED32: _UNSIGNED_32,
        FieldDescriptor.TYPE_INT64: _SIGNED_64,
        FieldDescriptor.TYPE_SINT64: _SIGNED_64,
        FieldDescriptor.TYPE_SFIXED64: _SIGNED_64,
        FieldDescriptor.TYPE_UINT64: _UNSIGNED_64,
        FieldDescriptor.TYPE_FIXED64: _UNSIGNED_64,
    }
)
"""Smallest and largest value by type of field."""
_EDGES: Final = (0, 1, 16, 20, 64, 256, 512, 1024, 2048, 4096, *(2**bits for bits in (16, 20, 24, 31, 32, 53, 63, 64)))
"""Numbers around which something may change: powers of two, and limits of the protocol."""
_FLOATS: Final = (
    0.0, -0.0, 1.0, -1.0, 0.5, 1e-6, 2.0**-20, -1024.0, -1024.5, 2.0, 1e9, 5e-324, 1e-45, 3.4e38, -3.4e38, 1.7e308, float("nan"),
    float("inf"), float("-inf"),
)  # fmt: skip
_WORDS: Final = (
    "", "a", "user", "system", "ngram", "standalone", "none", "goodput", "static", "coordinator", "127.0.0.1:1", "localhost:0",
    "host", "[::1]:7", "unix:/tmp/x", "127.0.0.1:99999", "\0", "é語🦀", "%s{}", "../..", ":", "\n", '{"type": "object"}', '{"type":',
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-zz-zz-zz",
)  # fmt: skip
_LONG: Final = 5_000
_SHORT_BYTES: Final = (0, 1, 3, 4, 5, 8, 63, 64, 65)


def scalar(chance: random.Random, field: FieldDescriptor, longest: int) -> Scalar:
    """One value for a field that holds no message; a text or bytes of at most `longest` characters or bytes."""
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return _text(chance, field, longest)
        case FieldDescriptor.TYPE_BYTES:
            return chance.randbytes(min(longest, chance.choice((*_SHORT_BYTES, *_lengths(field)))))
        case FieldDescriptor.TYPE_FLOAT | FieldDescriptor.TYPE_DOUBLE:
            return number(chance)
        case FieldDescriptor.TYPE_BOOL:
            return chance.random() < 0.5
        case FieldDescriptor.TYPE_ENUM:
            return _of_enum(chance, cast("EnumDescriptor", field.enum_type))
        case _:
            return integer(chance, *RANGES[field.type])


def integer(chance: random.Random, least: int, most: int) -> int:
    """Mostly small or next to an edge; now and then anything."""
    drawn = chance.random()
    if drawn < 0.35:
        return max(least, chance.randint(-1, 8))
    if drawn < 0.5:
        return chance.randint(0, 300)
    if drawn < 0.9:
        edge = chance.choice((*_EDGES, least, most)) + chance.randint(-1, 1)
        return min(most, max(least, edge if chance.random() < 0.8 else -edge))
    return min(most, max(least, chance.getrandbits(chance.randint(1, 64))))


def number(chance: random.Random) -> float:
    """A double, which may be none at all, or infinite."""
    return chance.choice(_FLOATS) if chance.random() < 0.7 else chance.uniform(-3.0, 3.0)


def count(chance: random.Random, field: FieldDescriptor, most: int) -> int:
    """How many entries a repeated field gets: few, as a rule; now and then as many as it may have, or one more; `most` at most."""
    drawn = chance.random()
    if drawn < 0.8:
        return min(most, chance.randint(0, 4))
    limit = limit_of(field.full_name)
    if drawn < 0.97 or limit is None or limit.entries is None:
        return min(most, chance.randint(5, 70))
    return min(most, limit.entries + chance.randint(-1, 1))


def _text(chance: random.Random, field: FieldDescriptor, longest: int) -> str:
    drawn = chance.random()
    if drawn < 0.85:
        return chance.choice(_WORDS)
    if drawn < 0.95:
        return "".join(
            chr(chance.choice((32, 65, 97, 0x7FF, 0x8A9E, 0x1F980)) + chance.randint(0, 25)) for _ in range(8)
        )
    return chance.choice("aé語") * min(longest, chance.choice(_lengths(field)))


def _lengths(field: FieldDescriptor) -> tuple[int, ...]:
    """Lengths around the limit of a text or of bytes."""
    limit = limit_of(field.full_name)
    if limit is None or limit.length is None:
        return (_LONG,)
    return limit.length - 1, limit.length, limit.length + 1


def _of_enum(chance: random.Random, kind: EnumDescriptor) -> int:
    known = [value.number for value in kind.values]
    return chance.choice((*known, max(known) + 1, -1, 2**31 - 1, -(2**31)))
