"""Events of a Draft stream, parted into messages that the other side takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from specsplit.draft_events import Open, ToDrafter, ToVerifier
from specsplit.features import Features
from specsplit.speculation import Commit, Grow
from specsplit.wire.limits import MAX_EVENTS
from specsplit.wire.scan import MAX_RECORDS

_Said = TypeVar("_Said", bound="ToDrafter | ToVerifier")

_TOKEN_BYTES = 5
"""Bytes of a token id on the wire, at most."""
_NODE_BYTES = 29
"""Bytes of a node: id, parent, token and edge."""
_EDGE_BYTES = 14
"""Bytes of a node that is rescored: id and edge."""
_BIAS_BYTES = 18
"""Bytes of a token id and its bias."""
_CHARACTER_BYTES = 4
_TEXT_BYTES = 4
"""Bytes before one of several texts, at most."""
_EVENT_RECORDS = MAX_RECORDS // MAX_EVENTS
"""Fields of an event, those inside of it counted, but for its biases and choices."""
_BIAS_RECORDS = 3


def packed(events: Iterable[tuple[int, _Said]], most_bytes: int) -> Iterator[list[tuple[int, _Said]]]:
    """(session, event)s in order, parted so that no message has more than `MAX_EVENTS`, `MAX_RECORDS`, or lists of half of `most_bytes`.

    An event that is larger by itself is a message of its own.
    """
    message: list[tuple[int, _Said]] = []
    size = records = 0
    for session, event in events:
        more, fields = bytes_of(event), _EVENT_RECORDS + _BIAS_RECORDS * _biases_of(event) + len(_choices_of(event))
        if message and (records + fields > MAX_RECORDS or (size and size + more > most_bytes // 2)):
            yield message
            message, size, records = [], 0, 0
        message.append((session, event))
        size += more
        records += fields
    if message:
        yield message


def bytes_of(event: ToDrafter | ToVerifier) -> int:
    """What the lists of an event take on the wire, at most; what else an event holds is short."""
    match event:
        case Commit():
            return _TOKEN_BYTES * len(event.tokens)
        case Features():
            return event.nbytes
        case Open():
            tokens, texts = len(event.tokens) + len(event.ends), _choices_of(event)
            text = 0 if event.constraint is None else len(event.constraint.text)
            constraint = _CHARACTER_BYTES * (text + sum(map(len, texts))) + _TEXT_BYTES * len(texts)
            return _TOKEN_BYTES * tokens + _BIAS_BYTES * _biases_of(event) + constraint
        case Grow():
            return _NODE_BYTES * len(event.ids) + _EDGE_BYTES * len(event.rescored)
        case _:
            return 0


def _biases_of(event: ToDrafter | ToVerifier) -> int:
    return len(event.sampling.logit_bias) if isinstance(event, Open) else 0


def _choices_of(event: ToDrafter | ToVerifier) -> Sequence[str]:
    return event.constraint.choices if isinstance(event, Open) and event.constraint is not None else ()
