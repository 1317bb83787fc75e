"""The folder in which an unfinished run keeps what it has, and which only the same run goes on with."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from specsplit.errors import InvalidRequest
from specsplit.text.json_file import read_json
from specsplit.training.order import HeadOrder

WORK: Final = "training"
"""Its name within the out folder."""
_ORDER: Final = "order.json"
_FILES: Final = ("data", "target")


def open_work(order: HeadOrder) -> tuple[Path, bool]:
    """Make or find the work folder -> it, and whether it was found.

    Raises InvalidRequest if the out folder holds anything but an unfinished run of this order, or cannot be made.
    """
    work, said = order.out / WORK, _said(order)
    if not order.out.exists() or (order.out.is_dir() and not any(order.out.iterdir())):
        try:
            work.mkdir(parents=True)
            (work / _ORDER).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidRequest("--out", f"{order.out} cannot be made: {error}; name a folder that can") from error
        return work, False
    if not (work / _ORDER).is_file():
        raise InvalidRequest(
            "--out", f"{order.out} is there already and holds no unfinished run; name a folder that is new or empty"
        )
    before = read_json(work / _ORDER)
    if before != said:
        changed = ", ".join(
            f"{name}: other files" if name in _FILES else f"{name} was {before.get(name)!r} and is {said.get(name)!r}"
            for name in sorted({*before, *said})
            if before.get(name) != said.get(name)
        )
        raise InvalidRequest(
            "--out",
            f"{order.out} holds an unfinished run of something else ({changed}); repeat that, name another folder, or remove it",
        )
    return work, True


def _said(order: HeadOrder) -> dict[str, Any]:
    """Everything that the result depends on, as JSON has it."""
    weights = sorted(
        (each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in order.target.glob("*.safetensors")
    )
    facts: dict[str, Any] = {
        **asdict(order),
        "target": [str(order.target.resolve()), weights, _digest(order.target / "config.json")],
        "data": [_digest(file) for file in order.data],
    }
    for name in ("out", "trainer"):
        del facts[name]
    return json.loads(json.dumps(facts))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
