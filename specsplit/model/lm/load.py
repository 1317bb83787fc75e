"""A causal language model out of a local folder in the Hugging Face layout, checked and ready to be served."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils.import_utils import is_accelerate_available
from transformers.utils.logging import disable_progress_bar

from specsplit.errors import LoadError, SpecsplitError
from specsplit.model.attention.interface import NAME, OTHERS
from specsplit.model.attention.support import check_config, check_folder, context_of, refusing
from specsplit.model.layers.inflate import inflate
from specsplit.model.layers.sharded import ShardedBlocks, TensorMesh
from specsplit.model.layers.shards import shard_mlps
from specsplit.model.layers.text_config import TEXT_NAMES, text_config
from specsplit.model.lm.building import building_alone
from specsplit.model.lm.quantised import check_method, check_quantised
from specsplit.model.lm.text_part import check_inside, text_part, whole_of
from specsplit.model.ranks.split import reader_of_part, unwrap
from specsplit.model.tensors.dtypes import AUTO, dtype_of
from specsplit.model.tensors.shard_files import indexed
from specsplit.text.vocabulary import vocabulary_of
from specsplit.values import ModelInfo

_log = logging.getLogger(__name__)


class _Lacking(LoadError):
    """Weights that config.json asks for are not in the folder."""


_ALONE = threading.Lock()
"""transformers takes a method from PreTrainedModel, for the whole process, while it loads one: on two threads at once it would be lost."""


def load_model(
    folder: Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    inflate_layers: int = 0,
    random_weights: bool = False,
    mesh: TensorMesh | None = None,
    split: DeviceMesh | None = None,
    max_context: int | None = None,
) -> tuple[PreTrainedModel, ModelInfo, ShardedBlocks]:
    """The module, whose attention is ours, its facts, and what of it is shared out over the ranks of a mesh.

    dtype: "float32", "bfloat16", "float16" or "auto" (as in config.json). inflate_layers: see `inflate`; 0 leaves the model
    as it is. random_weights: see `_random`. split: processes that the model is split over, of which this one gets its part; that is
    not inflated, nor are its weights random. max_context: tokens of context that are served; None: all that it takes. What is shared
    out is what this process has of it. Raises LoadError, saying why, for anything that is missing, broken or not supported, and RankLost.
    """
    on_device = torch.device(device)
    # Without others to share with, weights are read to where they stay.
    direct = on_device if on_device.type != "cpu" and split is None and (mesh is None or mesh.size == 1) else None
    model = _load_model(folder, dtype, on_device if random_weights else None, split, max_context, direct)
    with refusing(f"model folder {folder} cannot be served"):
        if inflate_layers:
            inflate(model, inflate_layers)
        if split is not None and mesh is not None:
            mesh.assemble()  # parts of an MLP are checked by running them, together with other processes
        # What others hold never reaches the device.
        blocks = ShardedBlocks(model, mesh) if mesh is None or mesh.size == 1 else shard_mlps(model, mesh)
        nn.Module.to(model, on_device)
        return model, _info(folder, model, max_context), blocks


def _load_model(
    folder: Path,
    dtype: str,
    random_on: torch.device | None,
    split: DeviceMesh | None,
    max_context: int | None,
    direct: torch.device | None = None,
) -> PreTrainedModel:
    """`direct`: where the weights are read to; None: into the memory of the host."""
    resolved = dtype if dtype == AUTO else dtype_of(dtype)
    check_folder(folder)
    if not sys.stderr.isatty():
        disable_progress_bar()  # a bar in a log file is noise
    with refusing(f"model folder {folder} cannot be loaded"):
        whole = AutoConfig.from_pretrained(folder, local_files_only=True)
        config = text_config(whole)
        check_config(config, max_context)
        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            return _within_whole(folder, whole, resolved, random_on, split, direct)
        names = {} if config is whole else TEXT_NAMES
        if random_on is not None:
            return _random(AutoModelForCausalLM.from_config, config, resolved, random_on)
        if split is not None:
            return unwrap(_load_weights(reader_of_part(config, split), folder, config, resolved, names))
        try:
            model = _load_weights(_reader(AutoModelForCausalLM, direct), folder, config, resolved, names)
        except _Lacking as lacking:
            return _named_otherwise(folder, whole, resolved, lacking, direct)
        check_inside(model, whole)
        return model


def _named_otherwise(
    folder: Path,
    config: PretrainedConfig,
    dtype: torch.dtype | str,
    lacking: _Lacking,
    direct: torch.device | None,
) -> PreTrainedModel:
    """The text model of a multimodal folder in which its weights are named by the whole. Raises `lacking` if they are not there."""
    if whole_of(config) is None:
        raise lacking
    try:
        return _within_whole(folder, config, dtype, None, None, direct)
    except _Lacking:
        raise lacking from None


def _within_whole(
    folder: Path,
    config: PretrainedConfig,
    dtype: torch.dtype | str,
    random_on: torch.device | None,
    split: DeviceMesh | None,
    direct: torch.device | None,
) -> PreTrainedModel:
    """The text model taken out of a multimodal one. Raises LoadError if transformers has none with it."""
    found = whole_of(config)
    if found is None:
        kind = config.get_text_config(decoder=True).model_type
        raise LoadError(f"transformers has no causal language model of the kind {kind}{OTHERS}")
    if split is not None:
        raise LoadError(f"{config.model_type} can only be read as a whole, and not in parts: set tp_size = 1")
    kind, outer = found
    with _from_text_alone(config, outer):
        if random_on is not None:
            return text_part(_random(kind._from_config, outer, dtype, random_on))
        return text_part(_load_weights(_reader(kind, direct), folder, outer, dtype, {}))


@contextmanager
def _from_text_alone(config: PretrainedConfig, outer: PretrainedConfig) -> Iterator[None]:
    """Makes a LoadError of what is raised in here if the multimodal config was made up, from the one of its text model in the folder."""
    try:
        yield
    except SpecsplitError:
        raise
    except Exception as error:
        if outer is config:
            raise
        raise LoadError(
            f"transformers has {config.model_type} only inside of {outer.model_type}, and makes none with the config of the text model "
            "alone: have the config.json of the whole in the folder"
        ) from error


def _reader(kind: Any, device: torch.device | None) -> Callable[..., Any]:
    """The `from_pretrained` of a class, one tensor after the other to a device, for which transformers needs accelerate."""
    if device is None:
        return kind.from_pretrained
    if not is_accelerate_available():
        _log.warning(
            "weights are read into the host's memory first, all of them, and then go to %s; pip install accelerate has them go there "
            "directly",
            device,
        )
        return kind.from_pretrained
    return partial(kind.from_pretrained, device_map={"": device})


def _load_weights(
    read: Callable[..., Any], folder: Path, config: PretrainedConfig, dtype: torch.dtype | str, names: Mapping[str, str]
) -> PreTrainedModel:
    """The model with the weights in the folder, whose names are others by `names`, as transformers' `key_mapping` has them."""
    quantised = check_method(config)
    try:
        with _ALONE, building_alone(), indexed(folder) as readable:
            loaded: Any = read(
                readable,
                config=config,
                dtype=dtype,
                attn_implementation=NAME,
                local_files_only=True,
                output_loading_info=True,
                **({"key_mapping": dict(names)} if names else {}),
            )
    except KeyError as error:  # older architectures look their attention class up by name, and find none of ours
        raise LoadError(
            f"{config.model_type} does not use transformers' AttentionInterface: {error} is not known{OTHERS}"
        ) from error
    model, notes = loaded
    missing = sorted(notes["missing_keys"])
    if missing:  # transformers would go on with random numbers in their place
        raise _Lacking(
            f"model folder {folder} lacks {len(missing)} of the weights its config.json asks for, {missing[0]} first; "
            f"if no shard of them is missing{OTHERS}"
        )
    check_quantised(folder, model, dtype, quantised=quantised, unexpected=notes["unexpected_keys"])
    return model


def _random(
    build: Callable[..., Any], config: PretrainedConfig, dtype: torch.dtype | str, device: torch.device
) -> PreTrainedModel:
    """A model with the weights that its architecture begins with, drawn on the device itself; every time the same."""
    typed = {} if dtype == AUTO else {"dtype": dtype}  # by itself it takes that of config.json
    with _ALONE, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(0)
        return build(config, **typed, attn_implementation=NAME)


def _info(folder: Path, model: PreTrainedModel, max_context: int | None) -> ModelInfo:
    config = model.config
    eos = getattr(model.generation_config, "eos_token_id", None)
    eos = getattr(config, "eos_token_id", None) if eos is None else eos  # a generation_config.json need not name any
    ids = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
    return ModelInfo(folder.resolve().name, vocabulary_of(folder), context_of(config, max_context), ids)
