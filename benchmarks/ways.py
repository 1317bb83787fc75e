"""Ways to have a text written at batch 1, timed: by a cluster with any drafter, and by transformers' `generate`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.account import Account
from benchmarks.plain import Generate
from benchmarks.report import Row
from specsplit.client import Client

ALONE = "specsplit, no drafter"


class Made(NamedTuple):
    """One text that was generated."""

    tokens: list[int]
    seconds: float
    """From request to last token."""
    accept_length: float | None
    """None where the way does not tell."""
    account: Account


Way = Callable[[list[int], int, float, int], Made]
"""Given a prompt, the number of new tokens, a temperature and a seed."""


def ours(client: Client, drafter: str, read: Callable[[], Account] = Account) -> Way:
    """A cluster, with a drafter or "none"; `read` gives what its verifier has accounted for so far."""

    def way(prompt: list[int], new: int, temperature: float, seed: int) -> Made:
        before, started = read(), time.perf_counter()
        done = client.generate(
            prompt, max_tokens=new, temperature=temperature, seed=seed, ignore_eos=True, drafter=drafter
        )
        seconds = time.perf_counter() - started
        return Made(list(done.tokens), seconds, done.speculation.accept_length, read() - before)

    return way


def theirs(call: Generate) -> Way:
    """A way of transformers."""

    def way(prompt: list[int], new: int, temperature: float, seed: int) -> Made:
        tokens, seconds, account = call(prompt, new, temperature, seed)
        return Made(tokens, seconds, None, account)

    return way


@dataclass
class Measured:
    """What one way gave at one temperature."""

    rates: list[float] = field(default_factory=list)
    """Tokens per second, one for each round over all prompts."""
    lengths: list[float] = field(default_factory=list)
    texts: dict[int, list[int]] = field(default_factory=dict)
    """By prompt; the latest."""
    tokens: int = 0
    seconds: float = 0.0
    account: Account = field(default_factory=Account)
    """Sums over all of it, as are the two above."""

    def visit(self, way: Way, prompts: list[list[int]], new: int, temperature: float) -> None:
        """One round over these prompts."""
        tokens, seconds = 0, 0.0
        for number, prompt in enumerate(prompts):
            made = way(prompt, new, temperature, number)
            self.texts[number] = made.tokens
            self.lengths += [] if made.accept_length is None else [made.accept_length]
            self.account += made.account
            tokens, seconds = tokens + len(made.tokens), seconds + made.seconds
        self.rates.append(tokens / seconds)
        self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds

    def same_as(self, plain: Measured) -> int:
        """How many of the texts are those that another way wrote."""
        return sum(self.texts[number] == text for number, text in plain.texts.items())

    def per_token(self) -> Row:
        """Where a token's milliseconds go. `host` is of specsplit's engine alone; whatever nobody accounts for is `rest`."""
        each, spent = 1e3 / self.tokens, self.account
        rest = self.seconds - spent.forward_s - spent.drafting_s - spent.host_s
        return {
            "token_ms": self.seconds * each, "forward_ms": spent.forward_s * each, "drafting_ms": spent.drafting_s * each,
            "host_ms": spent.host_s * each or "", "rest_ms": rest * each, "calls": spent.calls / self.tokens,
        }  # fmt: skip
