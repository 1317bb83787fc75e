"""The tensors of a model folder by name: their shapes are known without reading them, and they are read one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specsplit.errors import LoadError
from specsplit.model.tensors.shard_files import weight_map
from specsplit.text.json_file import read_json

_SUFFIXES: Final = ("safetensors", "bin")
_STEMS: Final = {"safetensors": "model", "bin": "pytorch_model"}


class Checkpoint:
    """One folder's weights: one file or an index of several, safetensors or torch's own (`.bin`); or shards of safetensors without one.

    Raises LoadError if the folder has neither, or a file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self._files: Final = _files_by_name(folder)

    @property
    def names(self) -> frozenset[str]:
        """Every tensor's name."""
        return frozenset(self._files)

    def shapes(self, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Shapes of some tensors."""
        return self._each(names, _shape)

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Some tensors, as they are stored. Reads no others, as far as the file format allows."""
        return self._each(names, _tensor)

    def _each(self, names: Iterable[str], look: Callable[[Any, str], Any]) -> dict[str, Any]:
        by_file: dict[str, list[str]] = {}
        for name in names:
            by_file.setdefault(self._files[name], []).append(name)
        found: dict[str, Any] = {}
        for file, wanted in by_file.items():
            found |= _look(self.folder / file, wanted, look)
        return found


def _files_by_name(folder: Path) -> dict[str, str]:
    for suffix in _SUFFIXES:
        file = f"{_STEMS[suffix]}.{suffix}"
        if (folder / file).is_file():
            return dict.fromkeys(_names(folder / file), file)
        index = folder / f"{file}.index.json"
        if index.is_file():
            return _weight_map(index)
    shards = weight_map(folder)
    if shards is not None:
        return shards
    expected = " or ".join(f"{_STEMS[suffix]}.{suffix}" for suffix in _SUFFIXES)
    raise LoadError(f"model folder {folder} has no weights: expected {expected}, or an index of one")


def _weight_map(index: Path) -> dict[str, str]:
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise LoadError(f"{index} has no usable weight_map: expected tensor names and their files")
    return files


def _names(path: Path) -> list[str]:
    return list(_open(path).keys())


def _look(path: Path, names: list[str], look: Callable[[Any, str], Any]) -> dict[str, Any]:
    opened = _open(path)
    absent = sorted(set(names) - set(opened.keys()))
    if absent:
        raise LoadError(f"{path} lacks {', '.join(absent)}, which the folder's index says it holds")
    return {name: look(opened, name) for name in names}


def _open(path: Path) -> Any:
    """A safetensors file, or the dict in one of torch's, whose tensors stay on disk until they are used."""
    try:
        if path.suffix == ".safetensors":
            return safe_open(path, framework="pt")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, SafetensorError, UnpicklingError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error


def _shape(opened: Any, name: str) -> tuple[int, ...]:
    return tuple(opened[name].shape if isinstance(opened, dict) else opened.get_slice(name).get_shape())


def _tensor(opened: Any, name: str) -> Tensor:
    return opened[name] if isinstance(opened, dict) else opened.get_tensor(name)
