"""What callers ask for and how they behave, drawn on a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from specsplit.values import PlanChanges, Sampling

DRAFTERS: Final = (None, None, "standalone", "eagle3", "ngram", "none")
PLANS: Final = (
    PlanChanges(),
    PlanChanges(),
    PlanChanges(num_steps=0),
    PlanChanges(num_steps=8, topk=8, num_draft_tokens=32),
    PlanChanges(num_steps=3, topk=1, num_draft_tokens=4),
    PlanChanges(draft_ahead=False, wait_budget_us=20_000),
)
PICKS: Final = (
    Sampling(0.9, top_k=20, seed=101),
    Sampling(1.1, top_p=0.8, min_p=0.02, seed=102),
    Sampling(0.7, repetition_penalty=1.2, seed=103),
    Sampling(0.0, frequency_penalty=0.4, presence_penalty=0.3),
    Sampling(0.8, seed=104, logit_bias=((5, 2.0), (9, -100.0))),
    Sampling(0.0, logit_bias=((7, 1.5),), repetition_penalty=1.1),
    Sampling(
        0.8, top_k=50, top_p=0.95, min_p=0.01, seed=105, logit_bias=((11, 1.0),), repetition_penalty=1.05,
        frequency_penalty=0.2, presence_penalty=0.2,
    ),
)  # fmt: skip
"""Filters, biases and penalties, one by one and all together; there is a known text for each."""
STOPS: Final = ((), (), ("\n\u2603", "  \u2603"))
"""Stop strings that no text has: they begin as lines and indents do, so text is held back, and none ends there."""


class Manner(StrEnum):
    """How a caller takes his answer."""

    READ = "reads"
    SLOW = "reads slowly"
    CANCEL = "cancels"
    DEADLINE = "has a deadline"


_MANNERS: Final = (Manner.READ,) * 6 + (Manner.SLOW, Manner.CANCEL, Manner.CANCEL, Manner.DEADLINE)
_PATIENCE_S: Final = {
    Manner.READ: (0.0, 0.0), Manner.SLOW: (0.02, 0.3), Manner.CANCEL: (0.0, 1.0), Manner.DEADLINE: (0.05, 1.5),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that a caller is to send."""

    text: int
    """Which of the known texts."""
    new: int
    """Tokens of the text that are asked for."""
    n: int
    """Number of choices."""
    drafter: str | None
    plan: PlanChanges
    manner: Manner
    patience_s: float
    """Seconds between two messages of a slow reader, or until a caller cancels, or until the deadline."""
    resumes: bool
    """True if the caller asks for the rest of an answer that breaks with UNAVAILABLE, or again where nothing had come."""
    pause_s: float
    """Seconds from the end of the caller's last request."""
    stop: tuple[str, ...] = ()
    """Stop strings that the text does not have."""
    cut: float | None = None
    """At this share of the text a stop string is cut out of it, before which it has to end; None: nowhere."""
    logprobs: int | None = None
    """As the option of that name."""


def requests(chance: random.Random, texts: int, longest: int) -> Iterator[Asked]:
    """The requests of one caller, for ever, of so many texts of so many tokens."""
    while True:
        manner = chance.choice(_MANNERS)
        yield Asked(
            text=chance.randrange(texts),
            new=min(longest, chance.choice((1, 2, 5, 16, longest, longest, longest))),
            n=chance.choice((1, 1, 1, 1, 2)),
            drafter=chance.choice(DRAFTERS),
            plan=chance.choice(PLANS),
            manner=manner,
            patience_s=chance.uniform(*_PATIENCE_S[manner]),
            resumes=chance.random() < 0.7,
            pause_s=chance.choice((0.0, 0.0, chance.uniform(0.0, 0.5))),
            stop=chance.choice(STOPS),
            cut=chance.choice((None, None, None, chance.random())),
            logprobs=chance.choice((None, None, 0, 3)),
        )
