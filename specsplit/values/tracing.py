"""What is traced, and what an operator wants different about it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specsplit.errors import quoted
from specsplit.values.checks import require, said

SERVICES = ("coordinator", "verifier", "drafter")
"""The kinds of process, in the order in which a request meets them."""


@dataclass(frozen=True)
class TraceScope:
    """What is traced. Raises InvalidRequest for a value out of range."""

    level: int = 1
    """0: nothing; 1: stages of a request; 2: its steps too; 3: the parts of a step too."""
    ratio: float = 1.0
    """Share of the requests that are traced, of those whose caller has not decided that already."""
    modules: tuple[str, ...] = ()
    """Services that make spans; empty: all of them."""

    def __post_init__(self) -> None:
        require(0 <= self.level <= 3, "trace_level", f"is {self.level}, expected 0..3")
        require(0 <= self.ratio <= 1, "trace_ratio", f"is {self.ratio}, expected a number in [0, 1]")
        for module in self.modules:
            require(
                module in SERVICES, "trace_modules", f"has {quoted(module)}, expected some of {', '.join(SERVICES)}"
            )

    def level_of(self, service: str) -> int:
        """The level that holds for `service`."""
        return self.level if not self.modules or service in self.modules else 0


@dataclass(frozen=True)
class TraceChanges:
    """What an operator wants traced different from a service's own settings; None leaves a field as it is.

    Raises InvalidRequest for a number out of range.
    """

    level: int | None = None
    ratio: float | None = None
    modules: tuple[str, ...] | None = None
    """All of them by name for all: a list that is there is not empty."""

    def __post_init__(self) -> None:
        require(self.modules != (), "trace_modules", f"is empty, expected some of {', '.join(SERVICES)}")
        # Only its numbers: the services that a newer peer names are its own affair until they are traced.
        TraceScope(1 if self.level is None else self.level, 1.0 if self.ratio is None else self.ratio)

    def over(self, default: TraceScope) -> TraceScope:
        """The default with these changes. Raises InvalidRequest for a service that is not known here."""
        return replace(default, **said(self))

    def after(self, earlier: TraceChanges) -> TraceChanges:
        """Combine these changes with those made before, which hold where these say nothing."""
        return replace(earlier, **said(self))
