"""Files that settings name, and that hold a text."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from specsplit.errors import InvalidRequest

T = TypeVar("T")
MOST_BYTES = 2**24
"""Bytes of a file, at most: a device may have no end."""


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
