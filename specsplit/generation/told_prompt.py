"""How far the log-probabilities of its prompt have come to a choice, of however many verifiers. Pure."""

from __future__ import annotations

from specsplit.errors import Incompatible
from specsplit.values import PromptLogprobs


class ToldPrompt:
    """The tokens of a prompt, from the front, that have been told."""

    def __init__(self, wanted: int = 0) -> None:
        """`wanted`: tokens that are to be told: all of the prompt, or 0."""
        self._wanted = wanted
        self._told = 0

    @property
    def lacking(self) -> bool:
        """True while some are to come."""
        return self._told < self._wanted

    def take(self, piece: PromptLogprobs) -> PromptLogprobs | None:
        """Take in what a verifier tells -> what of it is new: one that goes on for another tells the beginning again; None: nothing.

        Raises Incompatible for what nobody asked for, and for a piece with a gap before it.
        """
        if piece.first > self._told or piece.end > self._wanted:
            what = (
                f"tokens {piece.first} to {piece.end} of the prompt, expected those from {self._told} to {self._wanted}"
            )
            raise Incompatible(f"the verifier told log-probabilities of {what}; update it")
        new = piece.behind(self._told)
        self._told = max(self._told, piece.end)
        return new

    def check_whole(self) -> None:
        """Raise Incompatible if some are missing, now that output has come."""
        if self.lacking:
            raise Incompatible(
                f"the verifier told log-probabilities of {self._told} of {self._wanted} tokens of the prompt: one of an older build tells "
                "none; update it, or leave prompt_logprobs out"
            )
