"""Output as it comes: accepted drafts in one colour, the target's own tokens in another."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from specsplit.client import Delta, Result

DRAFT_STYLE = "green"
BONUS_STYLE = "bold yellow"


class Painter:
    """Writes deltas to the terminal; to a pipe or file the bare text."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._ends_line = True

    def paint(self, delta: Delta) -> None:
        """Write one delta."""
        if not delta.text:
            return
        self._ends_line = delta.text.endswith("\n")
        if self._console.is_terminal:
            style = DRAFT_STYLE if delta.num_correct_drafts else BONUS_STYLE
            self._console.print(Text(delta.text, style, tab_size=4), end="", soft_wrap=True)
        else:
            self._console.file.write(delta.text)
        self._console.file.flush()

    def end(self) -> None:
        """The output is complete: leave a terminal at the start of a line."""
        if self._console.is_terminal and not self._ends_line:
            sys.stdout.write("\n")
            sys.stdout.flush()


def legend() -> Text:
    """Which colour is what."""
    return Text.assemble(("accepted drafts", DRAFT_STYLE), " · ", ("the target's own tokens", BONUS_STYLE))


def summary(result: Result) -> str:
    """One line on what happened."""
    done, did, usage = result.done, result.speculation, result.usage
    cached = f", {usage.cached_prompt_tokens} of {usage.prompt_tokens} prompt tokens cached"
    return (
        f"{usage.completion_tokens} tokens in {did.steps} steps, accept_length {did.accept_length:.2f}, "
        f"{did.hits} hits, {did.misses} misses, drafter {done.drafter or 'none'}, "
        f"finish_reason {done.reason.value}, seed {done.seed}"
        f"{cached if usage.cached_prompt_tokens else ''}"
    )
