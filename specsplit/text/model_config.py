"""What config.json of a model folder says of the model beside its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from specsplit.engine import ModelConfig
from specsplit.text.json_file import read_json


def model_config(folder: Path) -> ModelConfig:
    """Read the config of a model folder; what it leaves out, or has in another form, takes its default.

    Raises LoadError, naming the file.
    """
    config = read_json(folder / "config.json")
    inner: object = config.get("text_config")  # models that also see or hear keep the decoder's facts one level down
    facts = {**cast("dict[str, Any]", inner if isinstance(inner, dict) else {}), **config}
    architectures: object = facts.get("architectures")
    names = cast("list[object]", architectures) if isinstance(architectures, list) else []
    return ModelConfig(
        model_type=str(facts.get("model_type") or ""),
        architectures=tuple(map(str, names)),
        bos_token_id=_token(facts.get("bos_token_id")),
        pad_token_id=_token(facts.get("pad_token_id")),
    )


def _token(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**31 else 0
