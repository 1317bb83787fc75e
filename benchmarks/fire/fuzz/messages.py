"""Strategies that make a message of any kind from its descriptor, or another one of a message that somebody said."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle, islice
from operator import mul
from typing import Any, Final, TypeVar, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from benchmarks.fire.fuzz.draws import Draws
from specsplit.wire.limits import limit_of

T = TypeVar("T")
M = TypeVar("M", bound=Message)
_CHANGES: Final = st.integers(1, 3)
_TENTHS: Final = st.integers(0, 9)
_STEPS: Final = st.integers(-3, 3)
_FEW: Final = 4
"""Entries of a list, as a rule; those of a long one are few different ones, over and over."""
_LONG: Final = 5_000
_LONGEST: Final = 2**20 + 1
_OFTEN: Final = 70_000
"""Limits below this are met as often as others; those above it, and below `_LONGEST`, seldom."""
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
_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1), FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1), FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}  # fmt: skip
"""Smallest and largest number by type of field."""


def kind_of(message: type[Message]) -> Descriptor:
    """The descriptor of a message type."""
    return cast("Descriptor", message.DESCRIPTOR)


def read(kind: type[M], data: bytes) -> M | None:
    """The message that this is; None if it is none."""
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    return message


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def hostile(
    draws: Draws, honest: bytes | None, kind: Descriptor, broken: float = 0.1, made: float = 0.2, kept: float = 0.2
) -> bytes:
    """A message in the place of an honest one, or of none: spoiled in its bytes, made, as it was, or else with fields changed.

    `broken`, `made` and `kept` are the shares of the first three.
    """
    drawn = draws.chance.random()
    if honest is None or drawn < made:
        data = draws(encoded(kind))
        return draws(spoiled(data)) if draws.chance.random() < broken else data
    if drawn < made + broken:
        return draws(spoiled(honest))
    return honest if drawn < made + broken + kept else draws(changed(honest, kind))


@st.composite
def encoded(draw: st.DrawFn, kind: Descriptor) -> bytes:
    """A message of this kind as bytes, now and then with more behind it: unknown fields, or a second message that is merged."""
    data, more = draw(messages(kind)).SerializeToString(), draw(st.integers(0, 19))
    if more == 0:
        return data + draw(_UNKNOWN)
    # every member of a oneof may be on the wire, and a field twice
    return data + draw(messages(kind)).SerializeToString() if more == 1 else data


@cache
def messages(kind: Descriptor, long: bool = True) -> SearchStrategy[Message]:
    """A message of this kind, each field set or not, of a oneof any one or none. If `long`, lists and texts may be long."""
    oneofs = [each.fields for each in kind.oneofs if len(each.fields) > 1]
    apart = [
        st.one_of(st.just({}), *(st.fixed_dictionaries({field.name: values(field, long)}) for field in each))
        for each in oneofs
    ]
    names = {field.name for each in oneofs for field in each}
    others = {field.name: values(field, long) for field in kind.fields if field.name not in names}
    plain = st.fixed_dictionaries(others) if len(others) == 1 else st.fixed_dictionaries({}, optional=others)
    return st.tuples(plain, *apart).map(lambda given: GetMessageClass(kind)(**ChainMap(*given)))


@cache
def values(field: FieldDescriptor, long: bool = True) -> SearchStrategy[Any]:
    """What one field may hold: if `long`, now and then as much as its limit allows for, or one more."""
    if not field.is_repeated:
        return _single(field, long)
    limit = limit_of(field.full_name)
    counts = _around(limit.entries if limit else None) if long else st.integers(0, _FEW)
    if _is_map(field):
        key, value = cast("Descriptor", field.message_type).fields
        few = st.dictionaries(_single(key, False), _single(value, False), max_size=_FEW)
        name = str if key.type == FieldDescriptor.TYPE_STRING else int
        many = st.builds(lambda count, one: dict.fromkeys(map(name, range(count)), one), counts, _single(value, False))
    else:
        few = st.lists(_single(field, long), max_size=_FEW)
        inside = st.lists(_single(field, False), min_size=1, max_size=_FEW)
        many = st.builds(_repeated, inside, st.integers(5, 70)) | st.builds(_repeated, inside, counts)
    return _seldom(many, few, 16)


def _repeated(few: list[Any], count: int) -> list[Any]:
    return list(islice(cycle(few), count))


def _seldom(this: SearchStrategy[T], other: SearchStrategy[T], many: int) -> SearchStrategy[T]:
    """This once in so many times."""
    return st.integers(1, many).flatmap(lambda drawn: this if drawn == many else other)


@cache
def _single(field: FieldDescriptor, long: bool) -> SearchStrategy[Any]:
    """One value: at and around the borders of what it may be, and anything."""
    limit = limit_of(field.full_name)
    lengths = _around(limit.length if limit else None) if long else st.integers(0, 70)
    match field.type:
        case FieldDescriptor.TYPE_MESSAGE:
            return st.deferred(lambda: messages(cast("Descriptor", field.message_type), long))
        case FieldDescriptor.TYPE_STRING:
            words = st.one_of(*[st.sampled_from(_WORDS)] * 4, st.text(max_size=8))
            return _seldom(st.builds(mul, st.sampled_from("aé語"), lengths), words, 16)
        case FieldDescriptor.TYPE_BYTES:
            sizes, one = st.sampled_from((0, 3, 4, 5, 8, 63, 64, 65)) | lengths, st.binary(min_size=1, max_size=1)
            return st.binary(max_size=8) | st.builds(mul, one, sizes)
        case FieldDescriptor.TYPE_FLOAT | FieldDescriptor.TYPE_DOUBLE:
            return st.sampled_from(_FLOATS) | st.floats(-3.0, 3.0)
        case FieldDescriptor.TYPE_ENUM:
            known = [value.number for value in cast("EnumDescriptor", field.enum_type).values]
            return st.sampled_from((*known, max(known) + 1, -1, 2**31 - 1, -(2**31)))
        case _:
            return _INTEGERS[field.cpp_type]


def _integers(least: int, most: int) -> SearchStrategy[int]:
    edges = {sign * edge + step for edge in (*_EDGES, least, most) for sign in (1, -1) for step in (-1, 0, 1)}
    near = st.sampled_from(sorted(edge for edge in edges if least <= edge <= most))
    return st.one_of(st.integers(max(least, -1), 8), st.integers(0, 300), near, near, st.integers(least, most))


_INTEGERS: Final[dict[int, SearchStrategy[Any]]] = {
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(), **{kind: _integers(*borders) for kind, borders in _RANGES.items()},
}  # fmt: skip


def _around(limit: int | None) -> SearchStrategy[int]:
    """Sizes around the limit of a list, a text or bytes, where it can be reached."""
    if limit is None or limit >= _LONGEST:
        return st.just(_LONG)
    near = (limit - 1, limit, limit + 1)
    return st.sampled_from(near if limit < _OFTEN else (*[_LONG] * 29, *near))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


_UNKNOWN: Final = st.builds(
    lambda number, wire, length, data: varint(number << 3 | wire) + (varint(length) if wire == 2 else b"") + data,
    st.sampled_from((5, 15, 19_000, 2**28, 2**29 - 1)), st.integers(0, 7), st.sampled_from((0, 1, 3, 127, 2**31, 2**63)),
    st.binary(max_size=12),
)  # fmt: skip
"""Fields of numbers that nobody has, of every kind that there is on the wire, groups and kinds that do not exist included."""


@st.composite
def changed(draw: st.DrawFn, data: bytes, kind: Descriptor) -> bytes:
    """The message with one to three fields changed, somewhere in it; other bytes if it is no message of this kind."""
    if (message := read(GetMessageClass(kind), data)) is None:
        return draw(spoiled(data))
    for _ in range(draw(_CHANGES)):
        if places := list(_places(message)):
            inside, field = places[draw(st.integers(0, len(places) - 1))]
            value = _other(draw, getattr(inside, field.name), field)
            inside.ClearField(field.name)
            if value is not None:
                inside.MergeFrom(type(inside)(**{field.name: value}))
    return message.SerializeToString()


def _places(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    """Every field of a message and of those inside it; those that are set more than once, so that they are changed more often."""
    for field in kind_of(type(message)).fields:
        yield message, field
    for field, value in message.ListFields():
        yield from [(message, field)] * 4
        if field.message_type is not None and not _is_map(field):
            for each in value[:_FEW] if field.is_repeated else [value]:
                yield from _places(each)


def _other(draw: st.DrawFn, value: Any, field: FieldDescriptor) -> Any:
    """Another value: none, one nearby, or any."""
    drawn = draw(_TENTHS)
    if drawn == 0:
        return None
    if drawn < 2 and value and field.is_repeated and field.message_type is None:  # and as many entries as before
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], draw(_single(field, False)), *value[at + 1 :]]
    if drawn < 6 and field.is_repeated and not _is_map(field):
        return draw(shuffled(list(value), list(value)))
    if drawn < 6 and isinstance(value, str | bytes):
        return value[: draw(st.integers(0, len(value)))] if drawn < 4 else 2 * value
    if drawn < 6 and not field.is_repeated and field.cpp_type in _RANGES:
        least, most = _RANGES[field.cpp_type]
        return min(most, max(least, value + draw(_STEPS)))
    return draw(_anything(field))


@cache
def _anything(field: FieldDescriptor) -> SearchStrategy[Any]:
    return _seldom(values(field), values(field, False), 16)


@st.composite
def spoiled(draw: st.DrawFn, data: bytes) -> bytes:
    """Other bytes: with bits flipped, something cut off, cut out, put in, doubled, or a length that is another."""
    for _ in range(draw(_CHANGES)):
        at, end = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
        head, inside, tail = data[:at], data[at:end], data[end:]
        match draw(st.integers(0, 6)):
            case 0 | 1 if data[at:]:
                data = head + bytes((data[at] ^ 1 << draw(st.integers(0, 7)),)) + data[at + 1 :]
            case 2:
                data = head + tail
            case 3:
                data = head
            case 4:
                data = head + inside[:4_096] + inside + tail
            case 5 if data[at:]:
                lengths = (data[at] ^ 1, 127, 128, 2**14, 2**31 - 1, 2**32, 2**63, 2**70)
                data = head + varint(draw(st.sampled_from(lengths))) + data[at + 1 :]
            case _:
                data = head + draw(st.binary(min_size=1, max_size=8)) + inside + tail
    return data


@st.composite
def shuffled(draw: st.DrawFn, said: Sequence[T], others: Sequence[T]) -> list[T]:
    """The messages, or entries, with some dropped, doubled, exchanged or cut off, or with some others among them."""
    found = [*said]
    for _ in range(draw(_CHANGES)):
        if not found:
            break
        at, other = draw(st.tuples(*[st.integers(0, len(found) - 1)] * 2))
        match draw(st.integers(0, 5)):
            case 0:
                del found[at]
            case 1:
                found[at:at] = [found[at]] * draw(st.sampled_from((1, 1, 2, 20, 70)))
            case 2:
                found[at], found[other] = found[other], found[at]
            case 3:
                del found[at:]
            case 4:
                del found[:at]
            case _:
                found[at:at] = [draw(st.sampled_from(others)) for _ in range(3) if others]
    return found
