"""A tiny config for every causal language model of transformers: sizes that many kinds share, and what a kind needs of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from transformers import CONFIG_MAPPING, PretrainedConfig

from scripts.targets.settings import OWN, SMALL, Settings

PARAMETERS: Final = 5_000_000
"""A model with more of them is not small."""


def tiny_config(name: str) -> PretrainedConfig:
    """The config of a tiny model of a kind. Raises whatever transformers raises where it makes nothing of these settings."""
    return CONFIG_MAPPING[name](**settings_of(CONFIG_MAPPING[name], OWN.get(name, {})))


def settings_of(kind: Any, own: Settings) -> dict[str, Any]:
    """What a config class is made of: the small sizes that it has a setting for, those of its own, and the same for configs inside of it.

    A setting of its own that is None where SMALL has a size is left out, and so keeps transformers' default.
    """
    known = {*kind.__dataclass_fields__, *kind.attribute_map}
    chosen = {name: value for name, value in SMALL.items() if name in known} | {
        name: value for name, value in own.items() if not isinstance(value, Mapping) or name not in kind.sub_configs
    }
    for name, inner in kind.sub_configs.items():
        given = own.get(name)
        if given is None and name in own:
            continue
        changes = dict(given or {})
        inner_kind = CONFIG_MAPPING[changes["model_type"]] if "model_type" in changes else inner
        if hasattr(inner_kind, "__dataclass_fields__"):
            chosen[name] = settings_of(inner_kind, changes)
    return {name: value for name, value in chosen.items() if value is not None or name not in SMALL}
