"""Who decides how much a verifier speculates, as an operator wants it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from specsplit.values.adaptive import Adaptive
from specsplit.values.checks import require, said


@dataclass(frozen=True)
class Control:
    """The controller that an operator wants, and its bound; None leaves either as each verifier is set.

    Raises InvalidRequest for a bound out of range.
    """

    adaptive: Adaptive | None = None
    max_draft_tokens: int | None = None
    """The most that goodput gives a session in one step, in tokens, root included."""

    def __post_init__(self) -> None:
        most = self.max_draft_tokens
        require(most is None or 1 <= most <= 256, "max_draft_tokens", f"is {most}, expected 1..256")

    @property
    def wanted(self) -> Adaptive | None:
        """The controller that a verifier has to know for this; None: any will do."""
        bounds = self.adaptive is None and self.max_draft_tokens is not None
        return Adaptive.GOODPUT if bounds else self.adaptive

    def after(self, earlier: Control) -> Control:
        """These wishes, and the `earlier` ones where these say nothing."""
        return replace(earlier, **said(self))


AS_SET: Final = Control()
"""Leaves everything as each verifier is set."""
