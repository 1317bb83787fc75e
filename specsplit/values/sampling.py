"""How the target picks a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from specsplit.values.checks import require

MAX_TEMPERATURE: Final = 10_000.0
"""Logits that lie 1,000 apart are all but equally likely at it; a bound keeps logits divided by it within float32."""
MAX_REPETITION_PENALTY: Final = 1e6
"""Logits divided by its inverse are still within float32."""
MAX_BIAS: Final = 100.0
MAX_BIASES: Final = 1_024
"""Tokens that one request may bias."""


@dataclass(frozen=True)
class Sampling:
    """How the target picks a token. Raises InvalidRequest for a value out of range."""

    temperature: float = 0.0
    """0 means argmax; otherwise logits are divided by it. At most MAX_TEMPERATURE."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose probabilities (after top_k) sum to at least this."""
    min_p: float = 0.0
    """Drop tokens whose probability is below this times the likeliest token's."""
    seed: int = 0
    """Selects the noise; 64 bits unsigned. With the same seed, prompt and target the text is the same."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, bias) pairs, each token once: the bias, in [-MAX_BIAS, MAX_BIAS], is added to the token's logit before anything else."""
    repetition_penalty: float = 1.0
    """A logit above 0 is divided by it, one below 0 multiplied, of every token that the prompt or the output has had. 1: none."""
    frequency_penalty: float = 0.0
    """Taken off a token's logit for every time that it was generated; in [-2, 2]."""
    presence_penalty: float = 0.0
    """Taken off a token's logit once if it was generated; in [-2, 2]."""

    def __post_init__(self) -> None:
        require(
            0 <= self.temperature <= MAX_TEMPERATURE,
            "temperature",
            f"is {self.temperature}, expected a number in [0, {MAX_TEMPERATURE:,.0f}]",
        )
        require(self.top_k >= 0, "top_k", f"is {self.top_k}, expected 0 (all) or a positive count")
        require(0 < self.top_p <= 1, "top_p", f"is {self.top_p}, expected a number in (0, 1]")
        require(0 <= self.min_p <= 1, "min_p", f"is {self.min_p}, expected a number in [0, 1]")
        require(0 <= self.seed < 2**64, "seed", f"is {self.seed}, expected an unsigned 64-bit integer")
        require(
            1 / MAX_REPETITION_PENALTY <= self.repetition_penalty <= MAX_REPETITION_PENALTY,
            "repetition_penalty",
            f"is {self.repetition_penalty}, expected 1 (none) or a number above 0, from {1 / MAX_REPETITION_PENALTY} "
            f"to {MAX_REPETITION_PENALTY:,.0f}",
        )
        require(
            -2 <= self.frequency_penalty <= 2,
            "frequency_penalty",
            f"is {self.frequency_penalty}, expected a number in [-2, 2]",
        )
        require(
            -2 <= self.presence_penalty <= 2,
            "presence_penalty",
            f"is {self.presence_penalty}, expected a number in [-2, 2]",
        )
        self._check_bias()

    def _check_bias(self) -> None:
        entries = len(self.logit_bias)
        require(entries <= MAX_BIASES, "logit_bias", f"has {entries:,} entries, expected at most {MAX_BIASES:,}")
        for token, bias in self.logit_bias:
            require(token >= 0, "logit_bias", f"has the token id {token}, expected none below 0")
            require(
                -MAX_BIAS <= bias <= MAX_BIAS,
                f"logit_bias[{token}]",
                f"is {bias}, expected a number in [{-MAX_BIAS:.0f}, {MAX_BIAS:.0f}]",
            )
        require(len(dict(self.logit_bias)) == entries, "logit_bias", "names a token twice")

    @property
    def greedy(self) -> bool:
        """True if nothing is drawn: the pick is the argmax of the logits, less what bias and penalties do to them."""
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """True if the pick depends on which tokens the text has had."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    @property
    def noisy(self) -> bool:
        """True if the pick is drawn from softmax(logits / T) as it is: no token is left out, biased or penalised."""
        filtered = self.top_k or self.top_p < 1 or self.min_p
        return not (self.greedy or filtered or self.logit_bias or self.penalised)

    @property
    def plain(self) -> bool:
        """True if the pick is the argmax of the logits as they are."""
        return self.temperature == 0 and not self.logit_bias and not self.penalised
