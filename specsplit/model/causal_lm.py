"""A transformers causal language model served from paged KV: rows in, logits and hidden states out. Target and standalone draft alike."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from specsplit.errors import LoadError
from specsplit.model.attention import NAME, AttentionBackend, IdleForward
from specsplit.model.batch import PackedBatch, Row
from specsplit.model.capture import Capture, Hidden
from specsplit.model.inflate import inflate
from specsplit.model.kv import KVCache
from specsplit.model.pages import PagePool, Slots
from specsplit.model.probe import probe
from specsplit.model.support import check_class, check_config, check_folder, measure
from specsplit.model.torch_attention import TorchAttention
from specsplit.text.vocabulary import vocabulary_of
from specsplit.values import ModelInfo

_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class CausalLM:
    """One loaded model, its KV and the pages of it. Used by one thread at a time."""

    def __init__(
        self, model: PreTrainedModel, info: ModelInfo, kv: KVCache, pool: PagePool, backend: AttentionBackend
    ) -> None:
        self.model: Final = model
        self.info: Final = info
        self.kv: Final = kv
        self.pool: Final = pool
        self.backend: Final = backend
        self.capture: Final = Capture(model)

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        num_pages: int,
        page_size: int,
        dtype: str = "float32",
        device: str = "cpu",
        inflate_layers: int = 0,
        backend: str = "torch",
    ) -> CausalLM:
        """Load from a local folder in the Hugging Face layout, ready to serve.

        dtype: "float32", "bfloat16", "float16" or "auto" (as in config.json). inflate_layers: see `inflate`; 0 leaves the model
        as it is. Raises LoadError, saying why, for anything that is missing, broken or not supported.
        """
        if backend != "torch":
            raise LoadError(f"attention backend {backend!r} is not there; expected 'torch'")
        model = _load_model(folder, dtype, torch.device(device))
        if inflate_layers:
            inflate(model, inflate_layers)
        return cls.wrap(model, _info(folder, model), num_pages=num_pages, page_size=page_size)

    @classmethod
    def wrap(cls, model: PreTrainedModel, info: ModelInfo, *, num_pages: int, page_size: int) -> CausalLM:
        """Serve a model that is in memory already; it must have been built with attn_implementation NAME. Raises LoadError."""
        check_config(model.config)
        check_class(model)
        geometry = measure(model)
        pool = PagePool(num_pages, page_size)
        kv = KVCache(geometry, pool.num_slots, model.dtype, model.device)
        lm = cls(model.eval(), info, kv, pool, TorchAttention(kv, geometry.group))
        probe(lm)
        return lm

    def forward(self, rows: Sequence[Row]) -> Tensor:
        """Run rows through the model and store their KV -> float32 [n, V]: logits in the order the rows ask for them.

        Rows that ask for no logits give [0, V], and so do no rows: see `idle`.
        """
        return self.forward_capturing(rows, ())[0]

    def forward_capturing(self, rows: Sequence[Row], layers: Collection[int]) -> tuple[Tensor, Hidden]:
        """As `forward`, and the hidden states of `layers` (numbered as in FeatureNeed.layers) of every token, rows end to end.

        Raises Incompatible for a layer that the model does not have. No rows give [0, hidden_size].
        """
        if rows:
            with self.capture.of(layers) as hidden:
                return self._run(PackedBatch.pack(rows)), hidden
        self.capture.check(layers)
        empty = torch.empty(0, self.hidden_size, dtype=self.model.dtype, device=self.kv.data.device)
        return self.idle(), dict.fromkeys(layers, empty)

    @torch.inference_mode()
    def idle(self) -> Tensor:
        """Call the model with nothing to compute -> float32 [0, V]: what layers do together with other ranks still happens.

        transformers cannot take zero tokens (its attention layers reshape to an unknown number of heads), so it is one that reads
        and writes no KV and has no logits.
        """
        token = torch.zeros(1, 1, dtype=torch.long, device=self.kv.data.device)
        output = self.model(
            input_ids=token,
            position_ids=token,
            use_cache=False,
            logits_to_keep=token[0, :0],
            forward_batch=IdleForward(),
        )
        return output.logits[0].float()

    @property
    def hidden_size(self) -> int:
        """Width of a hidden state."""
        return self.model.config.hidden_size

    def move(self, source: Slots, target: Slots) -> None:
        """Copy the KV in slots source [n] to slots target [n], in all layers; the two may overlap (compaction after a commit)."""
        device = self.kv.data.device
        with torch.inference_mode():
            self.kv.move(torch.from_numpy(source).to(device), torch.from_numpy(target).to(device))

    @torch.inference_mode()
    def _run(self, batch: PackedBatch) -> Tensor:
        tokens, positions, logits_at = (
            torch.from_numpy(array).to(self.kv.data.device, non_blocking=True)
            for array in (batch.input_ids, batch.positions, batch.logits_at)
        )
        output = self.model(
            input_ids=tokens.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=logits_at,
            forward_batch=self.backend.plan(batch),
        )
        return output.logits[0].float()


def _load_model(folder: Path, dtype: str, device: torch.device) -> PreTrainedModel:
    if dtype != "auto" and dtype not in _DTYPES:
        raise LoadError(f"dtype {dtype!r} is not known; expected one of {', '.join(_DTYPES)} or auto")
    check_folder(folder)
    if not sys.stderr.isatty():
        disable_progress_bar()  # a bar in a log file is noise
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        check_config(config)
        model = _load_weights(folder, config, _DTYPES.get(dtype, dtype))
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise LoadError(f"model folder {folder} cannot be loaded: {error}") from error
    nn.Module.to(model, device)
    return model


def _load_weights(folder: Path, config: PretrainedConfig, dtype: torch.dtype | str) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=NAME,
            local_files_only=True,
            output_loading_info=True,
        )
    except KeyError as error:  # older architectures look their attention class up by name, and find none of ours
        raise LoadError(
            f"{config.model_type} does not use transformers' AttentionInterface: {error} is not known"
        ) from error
    model, notes = loaded
    missing = sorted(notes["missing_keys"])
    if missing:  # transformers would go on with random numbers in their place
        raise LoadError(
            f"model folder {folder} lacks {len(missing)} of the weights its config.json asks for, {missing[0]} first"
        )
    return model


def _info(folder: Path, model: PreTrainedModel) -> ModelInfo:
    config = model.config
    eos = config.eos_token_id if model.generation_config is None else model.generation_config.eos_token_id
    ids = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
    return ModelInfo(folder.resolve().name, vocabulary_of(folder), config.max_position_embeddings, ids)
