"""What a kustomization comes to, for machines without kubectl: resources, and patches as strategic merges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
KEYS = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath", "ports": "containerPort"}
"""What tells the items of a list apart, which are merged one by one; a list that is not here replaces the one that was there."""


def rendered(folder: Path) -> list[Object]:
    """Every object of a kustomization, those of the ones that it stands on included."""
    whole = yaml.safe_load((folder / "kustomization.yaml").read_text())
    objects = [each for name in whole["resources"] for each in _resource(folder / name)]
    for patch in whole.get("patches", ()):
        for change in yaml.safe_load_all((folder / patch["path"]).read_text()):
            objects = [each for one in objects if (each := _patched(one, change)) is not None]
    return objects


def merged(base: Any, change: Any, field: str = "") -> Any:
    """A value of a manifest with a change to it; null takes a field away."""
    if isinstance(base, Mapping) and isinstance(change, Mapping):
        names = [*base, *(name for name in change if name not in base)]
        kept = {name: merged(base.get(name), change[name], name) if name in change else base[name] for name in names}
        return {name: value for name, value in kept.items() if name not in change or change[name] is not None}
    if isinstance(base, list) and isinstance(change, list) and field in KEYS:
        items = {each[KEYS[field]]: each for each in base}
        for each in change:
            items[each[KEYS[field]]] = merged(items.get(each[KEYS[field]]), each)
        return [*items.values()]
    return change


def _resource(path: Path) -> list[Object]:
    return rendered(path) if path.is_dir() else [*yaml.safe_load_all(path.read_text())]


def _patched(one: Object, change: Object) -> Object | None:
    """An object, patched if it is the one that is meant; None if it is taken away."""
    if (one["kind"], one["metadata"]["name"]) != (change["kind"], change["metadata"]["name"]):
        return one
    return None if change.get("$patch") == "delete" else merged(one, change)
