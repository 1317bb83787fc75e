"""Every message is held to the table of limits before anything else walks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from specsplit.wire.limits import check_count, check_length, limit_of
from specsplit.wire.reading import intact

_Check: TypeAlias = Callable[[Any, str], None]
"""Given a message and its path ("sampling."; empty for the outermost), raises InvalidRequest if one field of it is too long."""


def check(message: Message) -> None:
    """Raise InvalidRequest, naming the field, if a list or a text in `message`, or in one inside it, is longer than its limit.

    Raises what is wrong with it if it stands for a message that could not be read.
    """
    if intact(message).ByteSize() > _lowest_limit(message.DESCRIPTOR):
        _walk(message, "")


@cache
def _lowest_limit(descriptor: Descriptor) -> int:
    """A message of no more bytes than this is within every limit: each entry and each character takes at least a byte."""
    limits = (limit_of(field.full_name) for field in _fields_within(descriptor, set()))
    own = [
        bound for limit in limits if limit is not None for bound in (limit.entries, limit.length) if bound is not None
    ]
    return min(own, default=0)


def _fields_within(descriptor: Descriptor, seen: set[str]) -> Iterator[FieldDescriptor]:
    """The fields of a message, and of those inside it."""
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        yield field
        if field.message_type is not None and field.message_type.full_name not in seen:
            yield from _fields_within(field.message_type, seen)


def _walk(message: Message, path: str) -> None:
    for check_field in _checks_of(message.DESCRIPTOR):
        check_field(message, path)


@cache
def _checks_of(descriptor: Descriptor) -> tuple[_Check, ...]:
    """Make the checks of a message: one for every field that has a limit or holds messages."""
    return tuple(check for field in descriptor.fields if (check := _check_of(field)) is not None)


def _check_of(field: FieldDescriptor) -> _Check | None:
    limit, inner = limit_of(field.full_name), field.message_type
    if limit is None:
        return None if inner is None else partial(_check_inner, field.name)
    if limit.entries is None:
        return None if limit.length is None else partial(_check_text, field.name, limit.length)
    if inner is not None and not inner.GetOptions().map_entry:
        return partial(_check_messages, field.name, limit.entries)
    return partial(_check_list, field.name, limit.entries, limit.length)


def _check_inner(name: str, message: Message, path: str) -> None:
    if message.HasField(name):
        _walk(getattr(message, name), f"{path}{name}.")


def _check_text(name: str, length: int, message: Message, path: str) -> None:
    check_length(f"{path}{name}", getattr(message, name), length)


def _check_list(name: str, entries: int, length: int | None, message: Message, path: str) -> None:
    values = getattr(message, name)
    check_count(f"{path}{name}", values, entries)
    if length is not None:
        for i, value in enumerate(values):
            check_length(f"{path}{name}[{i}]", value, length)


def _check_messages(name: str, entries: int, message: Message, path: str) -> None:
    values = getattr(message, name)
    check_count(f"{path}{name}", values, entries)
    for i, value in enumerate(values):
        _walk(value, f"{path}{name}[{i}].")
