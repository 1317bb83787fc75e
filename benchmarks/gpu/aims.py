"""What was aimed at on one H100, bfloat16, batch 1, and whether it was met."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.gpu.findings import Findings
from benchmarks.gpu.pair import HIT
from benchmarks.ways import ALONE


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound on one figure."""

    part: str
    what: str
    name: str
    bound: float
    at_least: bool = False

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"

    def met(self, value: float) -> bool:
        """Tell whether a value is within it."""
        return value >= self.bound if self.at_least else value <= self.bound


AIMS = (
    Aim("verify 8B", "8B", "step / memory floor", 1.25),
    Aim("verify 8B", "8B", "16 tokens / 1 token", 1.10),
    Aim("pair", "eagle3", HIT, 100),
    Aim("rates", "specsplit, eagle3, T=0", f"times {ALONE}", 2.5, at_least=True),
)


def aim_of(part: str, what: str, name: str) -> Aim | None:
    """Look up the aim for a figure."""
    return next((aim for aim in AIMS if (aim.part, aim.what, aim.name) == (part, what, name)), None)


def unmeasured(findings: Findings) -> list[Aim]:
    """Aims for which there is no figure."""
    return [aim for aim in AIMS if findings.find(aim.part, aim.what, aim.name) is None]
