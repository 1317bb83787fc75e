"""A folder of adapters in peft's layout: each folder in it with an adapter_config.json is one, and its name is the folder's."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Final

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from specsplit.errors import LoadError
from specsplit.model.adapters.config import CONFIG, LoraConfig, read_config
from specsplit.values import Adapter
from specsplit.values.checks import check_name

_log = logging.getLogger(__name__)

_WEIGHTS: Final = "adapter_model.safetensors"
_PICKLED: Final = "adapter_model.bin"
_TENSOR: Final = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """What an adapter adds to a linear layer's output: (x down^T) up^T."""

    down: Tensor
    """[r, in], peft's lora_A"""
    up: Tensor
    """[out, r], peft's lora_B times its scale"""


@dataclass(frozen=True, slots=True, eq=False)
class AdapterWeights:
    """All that one adapter adds, in float32 on the CPU."""

    adapter: Adapter
    modules: Mapping[str, LowRank]
    """By the name of the module in the base that it was trained for."""


def adapters_in(folder: Path) -> list[Path]:
    """The folders of all adapters, by name. Raises LoadError if there are none, or one has a name that no request could say."""
    if not folder.is_dir():
        raise LoadError(f"adapters_dir {folder} does not exist or is no folder")
    if (folder / CONFIG).exists():
        raise LoadError(f"adapters_dir {folder} is itself an adapter: expected a folder with a folder for each")
    found = sorted(each for each in folder.iterdir() if (each / CONFIG).is_file())
    if not found:
        raise LoadError(
            f"adapters_dir {folder} has no adapter in it: expected folders with {CONFIG}, as peft saves them"
        )
    if others := sorted(each.name for each in folder.iterdir() if each.is_dir() and each not in found):
        _log.info("%s: no adapters, since there is no %s in them: %s", folder, CONFIG, ", ".join(others))
    for each in found:
        check_name("adapters_dir", each.name)
    return found


def read_adapter(folder: Path) -> AdapterWeights:
    """Read one. Raises LoadError, naming it and what is wrong, for anything that is missing, broken or not supported."""
    try:
        config = read_config(folder)
        tensors = _tensors(folder)
        modules = {name: _low_rank(name, pair, config) for name, pair in _pairs(tensors).items()}
        rank = max(len(low_rank.down) for low_rank in modules.values())
        return AdapterWeights(Adapter(folder.name, _digest(folder), rank), modules)
    except LoadError as error:
        raise LoadError(f"adapter {folder.name}: {error}") from error


def _tensors(folder: Path) -> dict[str, Tensor]:
    if not (folder / _WEIGHTS).is_file() and (folder / _PICKLED).is_file():
        raise LoadError(f"it has {_PICKLED}, which may run code when it is read: save it as {_WEIGHTS}, as peft does")
    try:
        return load_file(folder / _WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise LoadError(f"{_WEIGHTS} cannot be read: {error}") from error


def _pairs(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The matrices of each module, by "A" and "B"."""
    pairs: dict[str, dict[str, Tensor]] = {}
    for name, tensor in sorted(tensors.items()):
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise LoadError(
                f"{_WEIGHTS} has a tensor {name}, which is not supported: expected matrices lora_A and lora_B of linear layers alone, "
                "named base_model.model.MODULE.lora_A.weight"
            )
        pairs.setdefault(match["module"], {})[match["side"]] = tensor
    if not pairs:
        raise LoadError(f"{_WEIGHTS} has no tensors")
    return pairs


def _low_rank(module: str, pair: Mapping[str, Tensor], config: LoraConfig) -> LowRank:
    if len(pair) < 2:
        raise LoadError(f"{_WEIGHTS} has one of the two matrices of {module}: expected lora_A and lora_B")
    down, up, rank = pair["A"], pair["B"], config.rank_of(module)
    if down.dim() != 2 or up.dim() != 2 or (down.shape[0], up.shape[1]) != (rank, rank):
        raise LoadError(
            f"{module} has matrices of {list(down.shape)} and {list(up.shape)}: expected [{rank}, in] and [out, {rank}], since {CONFIG} "
            f"says a rank of {rank}"
        )
    if not down.is_floating_point() or not up.is_floating_point():
        raise LoadError(f"the matrices of {module} are {down.dtype} and {up.dtype}: expected floating point")
    return LowRank(down.float(), up.float() * config.scale_of(module))


def _digest(folder: Path) -> str:
    """Of both files: of the digest of each, so that no byte can go from one to the other unseen."""
    return sha256(b"".join(_file_digest(folder / name) for name in (CONFIG, _WEIGHTS))).hexdigest()


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return file_digest(file, "sha256").digest()
