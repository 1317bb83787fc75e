"""Files that are read again when they change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from specsplit.errors import InvalidRequest
from specsplit.observe.record import fields

_log = logging.getLogger(__name__)

T = TypeVar("T")
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
        extra = fields(files=", ".join(map(str, self._paths)))
        try:
            self._value = self._read()
        except InvalidRequest as error:
            _log.error("changed files are no good, so what they said before stays in force: %s", error, extra=extra)
        else:
            _log.info("changed files are read again", extra=extra)


def _stamp_of(paths: Sequence[Path]) -> _Stamp:
    """What differs once a file was written anew, or another put in its place."""
    return tuple(_file_stamp(path) for path in paths)


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
