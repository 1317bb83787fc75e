"""Every error that crosses a module border.

    SpecsplitError
    ├── InvalidRequest       the caller's message is wrong: names the field, what was wrong, what was expected
    │   └── ContextExceeded  it asks for more tokens than the context holds
    ├── Unsupported          the caller asked for something specsplit does not do (yet): names the field
    ├── Incompatible         two peers do not fit together: names both sides
    ├── IllegalEvent         a peer broke the grow/commit protocol: names session, state and event
    ├── Exhausted            no room now; says when to try again
    │   └── Unread           a caller left too much of his answer unread: says how much
    ├── NotFound             a named thing (a session, a model, a drafter kind) is not there
    ├── Unauthenticated      the caller has not shown who he is, or nobody here knows him: names what was missing
    ├── PermissionDenied     the caller is known and may not do this: names the role that may
    ├── Unavailable          a peer is gone or not ready
    │   └── TargetFailed     a target fails on one session, and works on others
    ├── DeadlineExceeded     the caller's time is up
    ├── Cancelled            the caller went away
    ├── RankLost             a rank of one's group is gone: this rank has to exit
    └── LoadError            a model cannot be served here: says why

The table from these to gRPC statuses is `specsplit.rpc.catalogue`; nothing below it knows gRPC.
"""

from __future__ import annotations

import re

_QUOTED = 100
"""Characters of somebody else's text that a sentence repeats."""


_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves a cursor, changes a colour, a title or the direction of writing, or is no character at all."""


def printable(text: str, keep: str = "") -> str:
    """Somebody else's text as a terminal may show it: control characters, but those to `keep`, are spelled (\\x1b)."""
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else repr(found[0])[1:-1], text)


def printable_json(line: str) -> str:
    """JSON as a terminal may show it: what `printable` spells has JSON's own escapes (\\u001b), so that a reader gets it back."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def quoted(text: str) -> str:
    """Somebody else's text, in quotation marks, to be put into a sentence: of a long one the beginning and its length."""
    if len(text) <= _QUOTED:
        return repr(text)
    return f"{text[:_QUOTED]!r}… ({len(text):,} characters)"


def described(value: object) -> str:
    """Somebody else's value, to be put into a sentence: of a long one the beginning."""
    try:
        return shortened(repr(value), _QUOTED)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of thousands of digits"


def shortened(sentence: str, most_bytes: int) -> str:
    """The sentence, or the beginning of it with a mark at the end: no more than `most_bytes` in UTF-8.

    That is what a status can carry, and nobody reads more. Lone surrogates, which UTF-8 has no place for, become question marks.
    """
    data = sentence.encode(errors="replace")
    if len(data) <= most_bytes:
        return data.decode()
    mark = f"… ({len(sentence):,} characters)"
    return data[: max(0, most_bytes - len(mark.encode()))].decode(errors="ignore") + mark


class SpecsplitError(Exception):
    """Base of every error specsplit raises on purpose."""


class InvalidRequest(SpecsplitError):
    """A value in a message or an option is wrong."""

    def __init__(self, field: str, problem: str, *against: str) -> None:
        """`against`: other fields that this one does not go with."""
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem
        self.against = against


class ContextExceeded(InvalidRequest):
    """Prompt and output are more tokens than the context, or the KV pool of a verifier, holds: shorten the one or ask for less."""


class Unsupported(SpecsplitError):
    """A field is set to something specsplit does not do."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field


class Incompatible(SpecsplitError):
    """Two peers (a verifier and a drafter, say) do not fit together."""


class IllegalEvent(SpecsplitError):
    """An event that the grow/commit protocol does not allow in this state."""

    def __init__(self, session: int, state: str, event: str, why: str) -> None:
        super().__init__(f"session {session}: {event} in state {state}: {why}")
        self.session = session
        self.state = state
        self.event = event


class Exhausted(SpecsplitError):
    """There is no room now."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unread(Exhausted):
    """A caller has left more of his answer unread than is kept for him."""

    def __init__(self, unread_bytes: int, most_bytes: int) -> None:
        super().__init__(
            f"the answer was given up with {unread_bytes:,} bytes of it unread; at most {most_bytes:,} are kept for a caller, "
            "so read it as it comes, or ask for less"
        )


class NotFound(SpecsplitError):
    """A named thing does not exist."""


class Unauthenticated(SpecsplitError):
    """The caller has not shown who he is, or is not known."""


class PermissionDenied(SpecsplitError):
    """The caller is known, and may not do this."""


class Unavailable(SpecsplitError):
    """A peer is gone, draining or not ready."""

    def __init__(self, message: str, received: tuple[int, ...] = (), advice: str = "") -> None:
        """`received`: tokens of one's answer that had come when its stream broke; `resume_from` takes them.

        `advice`: what a program can do with them. A command that cannot do that says `message` alone.
        """
        super().__init__(f"{message}: {advice}" if advice else message)
        self.message = message
        self.received = received


class TargetFailed(Unavailable):
    """A verifier's target fails on one session again and again, and works on others: that says nothing of the verifier.

    The session may go on elsewhere, or there when what it was short of is back.
    """


class DeadlineExceeded(SpecsplitError):
    """The caller's time is up."""


class Cancelled(SpecsplitError):
    """The caller went away."""


class LoadError(SpecsplitError):
    """A model, or a setting of it, cannot be served."""


class RankLost(SpecsplitError):
    """A rank of the group is gone, or did not take part in time. There is no going on: every rank of the group exits."""
