"""Standard input, output and error as they really are: not open, full, gone, or in an encoding that has no place for a character.

`guard` is called once, at the edge of the command line. What is written to stderr never fails, and neither does the output of a service,
which is a line that nobody may need; what a command was asked for and cannot write is a `LostOutput`.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from specsplit.errors import InvalidRequest

_DIED_OF_SIGPIPE = 141
"""What a shell says of a program that the end of a pipe has ended."""


class LostOutput(Exception):
    """Standard output cannot be written."""

    def __init__(self, why: OSError) -> None:
        super().__init__(f"the output could not be written: {why.strerror}")
        self.status = _DIED_OF_SIGPIPE if why.errno == errno.EPIPE else 1
        self.is_quiet = why.errno == errno.EPIPE
        """Nobody reads any more, as behind `| head`: that is no fault."""


class _Output(io.FileIO):
    """A file that is written to. Once a write has failed, what follows is let go, so that nothing fails again at the end."""

    def __init__(self, number: int, *, may_fail: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self.may_fail = may_fail
        """Whether a failure is reported, or what could not be written let go."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if self.may_fail:
                self.may_fail = False
                raise LostOutput(error) from error
            return memoryview(data).nbytes


def guard() -> None:
    """Make this process's own streams safe to use. Streams that somebody else has put in their place, as a test does, are left alone."""
    _fill()
    if sys.stdout is sys.__stdout__:
        sys.stdout = sys.__stdout__ = _guarded(1, sys.stdout, may_fail=True)
    if sys.stderr is sys.__stderr__:
        sys.stderr = sys.__stderr__ = _guarded(2, sys.stderr, may_fail=False)


def let_output_go() -> None:
    """From now on the output may be lost: this is a service, which goes on without it."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Output):
        raw.may_fail = False


def read_input(option: str) -> str:
    """Everything that is piped in. Raises InvalidRequest, naming the option that stands for it, if nothing is, or what is no text."""
    stream: Any = sys.stdin
    if stream is None or stream.isatty():
        raise InvalidRequest(option, "is missing; give it, or pipe the text into stdin")
    try:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="strict")
        return stream.read()
    except UnicodeDecodeError as error:
        what = f"byte {error.object[error.start]:#04x} at {error.start}"
        raise InvalidRequest(option, f"stdin is no text in {error.encoding.upper()} ({what}); expected that") from error
    except OSError as error:
        raise InvalidRequest(option, f"is missing, and stdin cannot be read: {error.strerror}") from error


def piped_lines(what: str) -> Iterator[str]:
    """Every line of stdin as soon as it is there. Raises InvalidRequest, naming `what` it is, if stdin cannot be read."""
    let_bytes_pass()
    try:
        for line in sys.stdin or ():
            yield line.removesuffix("\n")
    except OSError as error:
        raise InvalidRequest(what, f"is missing, since stdin cannot be read: {error.strerror}") from error


def let_bytes_pass() -> None:
    """From now on what is no text comes from stdin as it does in arguments, so that `checked` finds it in the line that has it."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")


def _fill() -> None:
    """Open the numbers 0 to 2 where they are not, so that no socket gets them and is written to as if it were an output.

    Nothing can be read from what is opened for input, nor written to what is opened for output.
    """
    for number, way in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDWR)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, way)  # the lowest number that is free, which is this one


def _guarded(number: int, stream: TextIO | None, *, may_fail: bool) -> TextIO:
    encoding = getattr(stream, "encoding", "utf-8")
    if stream is not None:
        stream.flush()
    raw = _Output(number, may_fail=may_fail)
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, encoding, errors="backslashreplace", line_buffering=raw.isatty() or not may_fail)


def checked(option: str, text: str) -> str:
    """The text of an option, or of a line. Raises InvalidRequest if it is none: bytes in no encoding of text come as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            option, f"is no text in {sys.getfilesystemencoding().upper()} (at {error.start}); expected that"
        ) from error
    return text
