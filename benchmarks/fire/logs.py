"""What the processes of a cluster write, kept in files, and what of it must not be there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Final, Self, TextIO

from specsplit.cli.local import Child

_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\)|Fatal Python error")
_METRICS: Final = re.compile(r"http://([\d.]+:\d+)/metrics")
_LINE: Final = 500
"""Characters of a line that are told."""


class Logs:
    """A file for every process by name, whichever incarnation of it wrote. A context manager: inside it the files are open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tracebacks: list[str] = []
        """Lines with a traceback, each behind the name of its process."""
        self.unwell: list[str] = []
        """A sentence on each process that ended untold, or was told to leave and did not do so with status 0."""
        self._metrics: dict[str, str] = {}
        self._files: dict[str, TextIO] = {}
        self._lock = Lock()

    def hear(self, name: str, line: str) -> None:
        """Take a line of a process: what a `LocalCluster` calls as its listener, from any thread."""
        with self._lock:
            print(line, file=self._file(name), flush=True)
            if _TRACEBACK.search(line):
                self.tracebacks.append(f"{name}: {line[:_LINE]}")
            if place := _METRICS.search(line):
                self._metrics[name] = f"http://{place[1]}/metrics"

    def metrics(self, name: str) -> str | None:
        """Where a process tells its metrics; None if it has not said."""
        with self._lock:
            return self._metrics.get(name)

    def look(self, children: Iterable[Child]) -> None:
        """Take note of processes that have ended although nobody told them to."""
        for child in children:
            if not child.alive and not child.dismissed:
                self._note(f"{child.name} ended by itself with status {child.process.returncode}: {child.last_line}")

    def left(self, children: Iterable[Child]) -> None:
        """Take note of processes that were told to leave, and either did so with another status than 0, or have not left."""
        for child in children:
            if child.alive or child.process.returncode:
                status = "still runs" if child.alive else f"left with status {child.process.returncode}"
                self._note(f"{child.name} was told to leave, and {status}: {child.last_line}")

    def _note(self, sentence: str) -> None:
        if sentence not in self.unwell:
            self.unwell.append(sentence)

    def _file(self, name: str) -> TextIO:
        if name not in self._files:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._files[name] = (self.folder / f"{name}.log").open("a", encoding="utf-8")
        return self._files[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()
