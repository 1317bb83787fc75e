"""The configuration file of the tiers: SGLang's JSON, so that a team that moves over keeps its file.

{"ema_alpha": 0.2, "8": {"candidate_steps": [0, 1, 3], "up_hysteresis": 0.1}, "1": {"candidate_steps": [1, 3, 5, 7]}}
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specsplit.errors import InvalidRequest, shortened
from specsplit.settings.files import read_text
from specsplit_verifier.policy.adaptive.tiers import DEFAULT_SLOTS, EmaSettings, Slot

_EMA: Final = EmaSettings()
_SLOT: Final = Slot(())
_SIZE: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_Number = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class TiersConfig:
    """Settings of the average, and the tiers by the least number of sessions in a batch."""

    ema: EmaSettings
    slots: Mapping[int, Slot]

    @property
    def steps(self) -> list[int]:
        """Every num_steps that some slot may have, ascending."""
        return sorted({steps for slot in self.slots.values() for steps in slot.candidate_steps})

    @property
    def middle(self) -> int:
        """The tier to begin with by default."""
        return self.steps[len(self.steps) // 2]


DEFAULT: Final = TiersConfig(EmaSettings(), DEFAULT_SLOTS)


class _Common(BaseModel):
    """Fields that a slot may have of its own, and the file for all slots."""

    model_config = ConfigDict(extra="forbid", strict=True)

    up_hysteresis: _Number = _SLOT.up_hysteresis
    down_hysteresis: _Number = _SLOT.down_hysteresis
    ceiling_coeff: _Number = Field(default=_SLOT.ceiling_coeff, ge=0)


class _Slot(_Common):
    candidate_steps: list[Annotated[int, Field(ge=0, le=64)]] = Field(min_length=1)


class _File(_Common):
    strategy: Literal["ema"] = "ema"
    ema_alpha: float = Field(default=_EMA.ema_alpha, gt=0, le=1)
    update_interval: int = Field(default=_EMA.update_interval, ge=1)
    warmup_batches: int = Field(default=_EMA.warmup_batches, ge=0)
    slots: dict[Annotated[int, Field(ge=1)], _Slot]


@cache
def read_tiers(file: Path) -> TiersConfig:
    """The configuration in `file`, which is read once: a process keeps what was right when it began, whatever becomes of the file.

    Raises InvalidRequest, with the key, for what is unknown, missing or out of range.
    """
    values = _content(file)
    slots = {int(key): values.pop(key) for key in list(values) if _SIZE.fullmatch(key)}
    if not slots or "slots" in values:
        raise _wrong(
            file,
            'has no batch size, or a key "slots"; expected a key such as "1" with an object that has candidate_steps',
        )
    try:
        read = _File.model_validate({**values, "slots": slots})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "slots")
        raise _wrong(file, f"is wrong at {shortened(where, 100)}: {first['msg']}") from error
    return TiersConfig(
        EmaSettings(read.ema_alpha, read.update_interval, read.warmup_batches),
        {size: _slot(read, read.slots[size]) for size in sorted(slots)},
    )


def _slot(file: _File, slot: _Slot) -> Slot:
    own = {name: getattr(slot if name in slot.model_fields_set else file, name) for name in _Common.model_fields}
    return Slot(tuple(sorted(set(slot.candidate_steps))), **own)


def _content(file: Path) -> dict[str, object]:
    try:
        content: object = json.loads(read_text("adaptive_config", file), object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise _wrong(file, f"cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise _wrong(file, "is no object of keys and values")
    return cast("dict[str, object]", content)


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"it has the key {twice!r} twice")
    return found


def _wrong(file: Path, problem: str) -> InvalidRequest:
    return InvalidRequest("adaptive_config", f"{file} {problem}")
