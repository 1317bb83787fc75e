"""Log-probabilities of a generation, for people and as JSON."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specsplit.values import TokenLogprob

WIDE = 180
"""Columns of a table that goes to a file or a pipe."""


def show(logprobs: Sequence[TokenLogprob]) -> None:
    """Print the table."""
    Console(width=None if sys.stdout.isatty() else WIDE, highlight=False).print("", table(logprobs), sep="\n")


def table(logprobs: Sequence[TokenLogprob]) -> Table:
    """A line for every token: its own log-probability, and the likeliest tokens in its place with theirs."""
    made = Table(box=None, pad_edge=False)
    made.add_column("token")
    made.add_column("logprob", justify="right")
    made.add_column("likeliest")
    for each in logprobs:
        tops = "   ".join(f"{_spelled(top)} {top.logprob:.3f}" for top in each.top)
        made.add_row(Text(_spelled(each)), f"{each.logprob:.3f}", Text(tops))
    return made


def as_objects(logprobs: Sequence[TokenLogprob]) -> list[dict[str, object]]:
    """What JSON says of them; a log-probability of -inf, which JSON has no number for, is null."""
    return [{**_as_object(each), "top": [_as_object(top) for top in each.top]} for each in logprobs]


def _as_object(logprob: TokenLogprob) -> dict[str, object]:
    value = logprob.logprob if math.isfinite(logprob.logprob) else None
    return {"token_id": logprob.token, "text": logprob.text, "logprob": value}


def _spelled(logprob: TokenLogprob) -> str:
    return repr(logprob.text) if logprob.text else f"<{logprob.token}>"
