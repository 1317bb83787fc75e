"""What a part is given: where to run, how large, until when, and where findings go."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.gpu.findings import Findings
from specsplit.settings import DrafterSettings, VerifierSettings
from specsplit.values import DrafterKind


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    name: str = "full"
    tree_tokens: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    committed: int = 1024
    """Tokens in front of a tree whose KV is read, where the target's context has room."""
    repeats: int = 40
    """How often a step of one size is measured, and a copy."""
    copy_bytes: tuple[int, ...] = (256 << 20, 4 << 30)
    tiny: bool = False
    """The 1B and the 8B target are tiny ones in these runs."""
    layers: int = 32
    """The pocket target is inflated to so many: as many as an 8B model has, against a head's one."""
    prompts: int = 3
    new: int = 96
    """Tokens of a text."""
    rounds: int = 3
    temperatures: tuple[float, ...] = (0.0, 1.0)
    kinds: tuple[DrafterKind, ...] = (
        DrafterKind.EAGLE3,
        DrafterKind.MULTI_LAYER_EAGLE,
        DrafterKind.EAGLE,
        DrafterKind.STANDALONE,
        DrafterKind.NGRAM,
    )
    """Drafters whose tokens/s are measured."""
    pairs: tuple[DrafterKind, ...] = (DrafterKind.EAGLE3, DrafterKind.STANDALONE, DrafterKind.NGRAM)
    """Drafters that are looked at step by step."""


FULL = Scale()
QUICK = Scale(
    name="quick",
    tree_tokens=(1, 4, 16),
    committed=64,
    repeats=3,
    copy_bytes=(1 << 20,),
    layers=0,
    prompts=1,
    new=24,
    rounds=1,
    temperatures=(0.0,),
    kinds=(DrafterKind.EAGLE3, DrafterKind.NGRAM),
    pairs=(DrafterKind.NGRAM,),
)
"""Shows that everything runs."""
DRY = replace(QUICK, name="dry", tiny=True)
"""The same where there is no GPU."""
SCALES = {each.name: each for each in (FULL, QUICK, DRY)}


@dataclass(frozen=True)
class Job:
    """One part's work."""

    device: str
    scale: Scale
    models: Path
    """Folder with the pocket models, their heads as wide as kernels want them."""
    until: float
    """When it has to be done, in seconds of time.monotonic()."""
    findings: Findings
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """What verifiers and drafters with a model are told besides, by name."""
    attention: Sequence[str] = ()
    """The backends that can be had here, the one that all parts have first; none: whoever loads a model decides."""

    @property
    def target(self) -> Path:
        """The pocket target's folder."""
        return self.models / "target"

    @property
    def dtype(self) -> str:
        """Type of weights and KV."""
        return "bfloat16" if self.device.startswith("cuda") else "float32"

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.until - time.monotonic()

    @property
    def placed(self) -> Mapping[str, object]:
        """Settings of every service that runs a model here."""
        decided = {"attention": self.attention[0]} if self.attention else {}
        return {"device": self.device, "dtype": self.dtype, **decided, **self.settings}

    def verifier(self, model: Path, **settings: object) -> VerifierSettings:
        """Settings of a verifier in this process."""
        own = {"model": model, "cpu_layers": "off"}  # so that its weights can be counted where there is no GPU, too
        return VerifierSettings(**{**own, **self.placed, **settings})

    def drafter(self, kind: DrafterKind, model: Path | None) -> DrafterSettings:
        """Settings of a drafter for the pocket target."""
        target = self.target if kind.is_head else None
        placed = self.placed if kind.needs_model else {}
        return DrafterSettings(**{"kind": kind, "model": model, "target": target, **placed})
