"""Bytes to messages. Bytes that are none are no exception of the transport's, which would log it and call the server at fault.

A deserializer of grpc may not fail. One that is made here gives a `Malformed` in the place of a message, and `intact` says later, where an
error can be answered, what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from specsplit.errors import Incompatible, InvalidRequest, SpecsplitError
from specsplit.wire.scan import NotAMessage, scan

M = TypeVar("M")
Read = Callable[[bytes], Any]
"""A deserializer: `FromString` of a message type."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """Stands for a message that could not be read."""

    error: SpecsplitError


class _OfType(Protocol):
    """A bound class method, which knows its class."""

    __self__: type[Message]


def request_reader(read: Read) -> Read:
    """A deserializer for what callers send; what cannot be read is their InvalidRequest."""
    return _reader(read, lambda name: InvalidRequest("request", f"is not a {name}"))


def response_reader(read: Read) -> Read:
    """A deserializer for what servers answer; a server whose answers cannot be read is Incompatible."""
    problem = "the peer sent what is not a {}; do both sides run the same version of specsplit?"
    return _reader(read, lambda name: Incompatible(problem.format(name)))


def intact(message: M) -> M:
    """The message. Raises what is wrong with it if it could not be read."""
    if isinstance(message, Malformed):
        raise message.error
    return message


def _reader(read: Read, failure: Callable[[str], SpecsplitError]) -> Read:
    descriptor = cast("Descriptor", cast("_OfType", read).__self__.DESCRIPTOR)

    def guarded(data: bytes) -> Any:
        try:
            scan(data, descriptor)
            return read(data)
        except InvalidRequest as error:
            return Malformed(error)
        except (DecodeError, NotAMessage):
            return Malformed(failure(descriptor.name))

    return guarded
