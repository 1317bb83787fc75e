"""Output as it comes: accepted drafts in one colour, the target's own tokens in another."""

from __future__ import annotations

import sys
from collections import deque

from rich.console import Console
from rich.text import Text

from specsplit.cli.screen import Screen, joined, text
from specsplit.client import Delta, Result
from specsplit.requests import GenerateEvent

DRAFT_STYLE = "green"
BONUS_STYLE = "bold yellow"


class Painter:
    """Writes deltas to the terminal; to a pipe or file the bare text."""

    def __init__(self, console: Console | None = None, *, coloured: bool = True) -> None:
        """Onto `console`, or else stdout; on a terminal accepted drafts and the target's own tokens are `coloured` apart."""
        self._console = console or Screen()
        self._styles = (BONUS_STYLE, DRAFT_STYLE) if coloured else ("", "")
        self._ends_line = True

    def paint(self, delta: Delta) -> None:
        """Write one delta."""
        if not delta.text:
            return
        self._ends_line = delta.text.endswith("\n")
        if self._console.is_terminal:
            style = self._styles[delta.num_correct_drafts > 0]
            self._console.print(text(delta.text, style), end="", soft_wrap=True)
        else:
            self._console.file.write(delta.text)
        self._console.file.flush()

    def head(self, line: str) -> None:
        """Write a line of its own."""
        self.end_line()
        self._console.file.write(f"{line}\n")

    def end_line(self) -> None:
        """End the line that is under way, if one is."""
        if not self._ends_line:
            self._console.file.write("\n")
            self._console.file.flush()
        self._ends_line = True

    def end(self) -> None:
        """End the output: what is said about it on stderr begins a line of its own. Into a pipe or file goes the bare text alone."""
        if not self._ends_line:
            stream = sys.stdout if self._console.is_terminal else sys.stderr
            stream.write("\n")
            stream.flush()


class ChoicesPainter:
    """Paints the choices one behind the other: the first that is not done as it comes, and what has come of those behind it after that."""

    def __init__(self, painter: Painter, n: int) -> None:
        self._painter = painter
        self._unpainted: list[deque[GenerateEvent]] = [deque() for _ in range(n)]
        self._current = 0
        self._head()

    def add(self, event: GenerateEvent) -> None:
        """Take the next event."""
        self._unpainted[event.index].append(event)
        while self._current < len(self._unpainted) and self._unpainted[self._current]:
            self._paint(self._unpainted[self._current].popleft())

    def _paint(self, event: GenerateEvent) -> None:
        if isinstance(event, Delta):
            self._painter.paint(event)
            return
        self._current += 1
        if self._current < len(self._unpainted):
            self._head()
        else:
            self._painter.end()

    def _head(self) -> None:
        if len(self._unpainted) > 1:
            self._painter.head(f"--- choice {self._current} of {len(self._unpainted)} ---")


def legend() -> Text:
    """Say which colour is what."""
    return joined(text("accepted drafts", DRAFT_STYLE), " · ", text("the target's own tokens", BONUS_STYLE))


def summary(result: Result) -> str:
    """Sum up in one line what happened."""
    done, did, usage = result.done, result.speculation, result.usage
    cached = f", {usage.cached_prompt_tokens} of {usage.prompt_tokens} prompt tokens cached"
    return (
        f"{usage.completion_tokens} tokens in {did.steps} steps, accept_length {did.accept_length:.2f}, "
        f"{did.hits} hits, {did.misses} misses, drafter {done.drafter or 'none'}, "
        f"finish_reason {done.reason.value}, seed {done.seed}"
        f"{cached if usage.cached_prompt_tokens else ''}"
        f"{'' if result.no_drafts is None else f'; {result.no_drafts.sentence}'}"
    )
