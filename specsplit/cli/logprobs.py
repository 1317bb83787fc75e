"""Log-probabilities of a generation, for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from specsplit.cli.screen import WIDE, Screen
from specsplit.values import TokenLogprob


def show(logprobs: Sequence[TokenLogprob], of: str = "token") -> None:
    """Print the table. `of`: what the tokens are, for its head."""
    Screen(width=WIDE).print("", table(logprobs, of), sep="\n")


def table(logprobs: Sequence[TokenLogprob], of: str = "token") -> Table:
    """A line for every token: its own log-probability, and the likeliest tokens in its place with theirs."""
    made = Table(box=None, pad_edge=False)
    made.add_column(of)
    made.add_column("logprob", justify="right")
    made.add_column("likeliest")
    for each in logprobs:
        tops = "   ".join(f"{_spelled(top)} {top.logprob:.3f}" for top in each.top)
        made.add_row(_spelled(each), f"{each.logprob:.3f}", tops)
    return made


def as_objects(logprobs: Sequence[TokenLogprob]) -> list[dict[str, object]]:
    """What JSON says of them; a log-probability of -inf, which JSON has no number for, is null."""
    return [{**_as_object(each), "top": [_as_object(top) for top in each.top]} for each in logprobs]


def _as_object(logprob: TokenLogprob) -> dict[str, object]:
    value = logprob.logprob if math.isfinite(logprob.logprob) else None
    return {"token_id": logprob.token, "text": logprob.text, "logprob": value}


def _spelled(logprob: TokenLogprob) -> str:
    return repr(logprob.text) if logprob.text else f"<{logprob.token}>"
