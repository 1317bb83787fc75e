"""Files that are read again when they change."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from specsplit.errors import InvalidRequest
from specsplit.observe.record import fields

_log = logging.getLogger(__name__)

T = TypeVar("T")
MOST_BYTES = 2**24
"""Bytes of a file, at most: a device may have no end."""
_Stamp = tuple[tuple[int, int, int] | None, ...]


class Reloaded(Generic[T]):
    """What some files say. Asked for after a change they are read again; what cannot be read then is logged once, and the old stays."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Reads them. Raises what `read` raises: InvalidRequest."""
        self._paths = tuple(paths)
        self._read = read
        self._stamp = _stamp_of(self._paths)
        self._value = read()
        self._lock = threading.Lock()

    @property
    def value(self) -> T:
        """What they say now, or said last. May be asked from any thread."""
        with self._lock:
            stamp = _stamp_of(self._paths)
            if stamp != self._stamp:
                self._stamp = stamp
                self._reload()
            return self._value

    def _reload(self) -> None:
        told = fields(files=", ".join(map(str, self._paths)))
        try:
            self._value = self._read()
        except InvalidRequest as error:
            _log.error("changed files are no good, so what they said before stays in force: %s", error, extra=told)
        else:
            _log.info("changed files are read again", extra=told)


def read(field: str, path: Path, parse: Callable[[str], T]) -> T:
    """What a file says. Raises InvalidRequest naming the setting and the file."""
    text = read_text(field, path)
    try:
        return parse(text)
    except InvalidRequest as error:
        raise InvalidRequest(error.field, f"{path}: {error.problem}") from error


def read_text(field: str, path: Path, *, twice: bool = False) -> str:
    """The text of a file, which may be a pipe unless it is read `twice`. Raises InvalidRequest naming the setting and the file."""
    try:
        with open(path, "rb", opener=_open_now) as file:
            if twice and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidRequest(field, f"{path} is no regular file, and expected to be one")
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(field, f"cannot read {path}: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise InvalidRequest(field, f"{path} has more than {MOST_BYTES:,} bytes; is it the right file?")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(field, f"{path} is no text in UTF-8") from error


def _open_now(path: str, flags: int) -> int:
    """Open a named pipe too without waiting for somebody who writes to it: it is empty then. One that is written to is read to its end."""
    number = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(number, True)
    return number


def _stamp_of(paths: Sequence[Path]) -> _Stamp:
    """What differs once a file was written anew, or another put in its place."""
    return tuple(_file_stamp(path) for path in paths)


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
