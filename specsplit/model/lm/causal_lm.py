"""A transformers causal language model served from paged KV: rows in, logits and hidden states out. Target and standalone draft alike."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Self

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from specsplit.errors import LoadError
from specsplit.model.adapters import Adapters, adapt
from specsplit.model.attention.backends import check_backend
from specsplit.model.attention.interface import ForwardBatch, ReadForward, TrialForward, run_model
from specsplit.model.attention.support import check_config, measure, refusing
from specsplit.model.graphs import (
    Buckets,
    Capturer,
    Inputs,
    OnLaunch,
    Results,
    SharedGraphs,
    StaticAttention,
    unwatched,
)
from specsplit.model.layers.capture import Capture, Hidden, decoder_layers
from specsplit.model.layers.cpu import NativeLayer
from specsplit.model.layers.positions import tell_positions
from specsplit.model.layers.recurrent import keep_states_in, recurrent_modules
from specsplit.model.layers.regional import Backend, compile_layers
from specsplit.model.layers.sharded import ShardedBlocks, TensorMesh, no_rows
from specsplit.model.lm.latents import laid_out
from specsplit.model.lm.load import load_model
from specsplit.model.lm.replaced import use_layers
from specsplit.model.lm.runner import ModelRunner
from specsplit.model.pages.batch import Row
from specsplit.model.pages.device_batch import DeviceBatch
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.room import MemoryShare, Room, room_of
from specsplit.model.pages.windows import WindowTokens
from specsplit.model.tensors.given_back import give_back
from specsplit.ranks.demand import EAGER, Demand
from specsplit.values import ModelInfo

_log = logging.getLogger(__name__)

_LOGITS: Final = "logits"


class CausalLM(ModelRunner):
    """One model and its KV. Used by one thread at a time."""

    def __init__(
        self,
        model: PreTrainedModel,
        info: ModelInfo,
        *,
        num_pages: int | MemoryShare,
        page_size: int,
        backend: str = "auto",
        kv_cache_dtype: str = "auto",
        blocks: ShardedBlocks | None = None,
        latent_cache: bool = True,
        window_tokens: WindowTokens | None = None,
        cpu_layers: bool = False,
        gpu_layers: bool = False,
        adapters: Adapters | None = None,
    ) -> None:
        """The model must have been built with attn_implementation NAME. `num_pages`: or the share of the device's memory that they take;
        all ranks and processes come to the same bytes. `blocks` are what ranks share of it; None: nothing.

        latent_cache: whether latents are kept in the place of heads that are made of them, if the model then gives its own numbers.
        window_tokens: see `ModelRunner`; all layers of a recurrent model have all pages. cpu_layers: faster modules in the place of
        transformers' own, where their numbers are the same: see `specsplit.model.layers.cpu`; gpu_layers: `specsplit.model.layers.gpu`.
        adapters: those that were put into the model; with any, latents are not kept.

        Raises LoadError if it cannot be served.
        """
        check_config(model.config, info.max_context)
        self.blocks = ShardedBlocks(model) if blocks is None else blocks
        # What is run at load is looked at by asking the device, which would wait for ever for a process that has gone.
        settled = model.register_forward_hook(lambda *_: self.blocks.synchronize())
        tell_positions(model, info.max_context)
        modules, self.states = recurrent_modules(model)
        self.model = model.eval()
        self.info = info
        self.adapters = Adapters() if adapters is None else adapters
        self.capture = Capture(model)
        measured = partial(measure, model, info.max_context, {module.layer for module in modules})
        lay_out = partial(
            super().__init__,
            num_pages=self._room(num_pages),
            page_size=page_size,
            dtype=model.dtype,
            device=model.device,
            backend=backend,
            kv_cache_dtype=kv_cache_dtype,
            window_tokens=window_tokens if self.states is None else None,
            alone=self.blocks.alone,
        )
        trees = laid_out(self, measured, lay_out, latent_cache=latent_cache)
        settled.remove()
        use_layers(self, trees, on_cpu=cpu_layers, on_gpu=gpu_layers)
        if isinstance(num_pages, MemoryShare):
            num_pages.tell(self.pool.total_pages * self.pool.page_size, self.kv.nbytes, self.device)

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        num_pages: int | MemoryShare,
        page_size: int,
        dtype: str = "float32",
        device: str = "cpu",
        inflate_layers: int = 0,
        random_weights: bool = False,
        backend: str = "auto",
        kv_cache_dtype: str = "auto",
        mesh: TensorMesh | None = None,
        split: DeviceMesh | None = None,
        cpu_layers: bool = True,
        gpu_layers: bool = False,
        max_context: int | None = None,
        latent_cache: bool = True,
        window_tokens: WindowTokens | None = None,
        adapters: Path | None = None,
    ) -> Self:
        """Load from a local folder, as `load_model` does, ready to serve; with a `mesh` or a `split`, this process's part of it.

        cpu_layers, gpu_layers, latent_cache: see the constructor. Nothing is replaced elsewhere than there, nor where it is split.
        adapters: a folder of them, as `adapters_in` has it; `info.adapters` says which, in the order of their numbers.

        Raises LoadError, saying why, if it cannot be, and RankLost.
        """
        alone = split is None and (mesh is None or mesh.size == 1)
        _check_changes(split=split is not None, changed=bool(inflate_layers or random_weights))
        _check_adapters(adapters, as_it_is=alone and not inflate_layers)
        check_backend(backend, torch.device(device))  # before a model is loaded for nothing
        model, info, blocks = load_model(
            folder,
            dtype=dtype,
            device=device,
            inflate_layers=inflate_layers,
            random_weights=random_weights,
            mesh=mesh,
            split=split,
            max_context=max_context,
        )
        with refusing(f"model folder {folder} cannot be served"):
            found = None if adapters is None else adapt(model, adapters)
            lm = cls(
                model,
                info if found is None else replace(info, adapters=found.known),
                num_pages=num_pages,
                page_size=page_size,
                backend=backend,
                kv_cache_dtype=kv_cache_dtype,
                blocks=blocks,
                latent_cache=latent_cache,
                window_tokens=window_tokens,
                cpu_layers=cpu_layers and split is None and model.device.type == "cpu",
                gpu_layers=gpu_layers and split is None,
                adapters=found,
            )
            give_back(folder)
            return lm

    def take(self, other: CausalLM) -> None:
        """Go on with modules and adapters of another model of the same config and type, which is given up.

        No page of the KV may be taken. What was captured is given up: `capture_again` is for when the other is given up too.
        """
        self.model, self.blocks = other.model, other.blocks
        self.capture, self.adapters = other.capture, other.adapters
        self.info = replace(self.info, adapters=other.info.adapters)
        if self.states is not None:
            keep_states_in(self.model, self.states)
        self.give_up_graphs()

    def compile_layers(self, backend: Backend = "inductor") -> None:
        """Have its decoder layers compiled when they are first run: see `specsplit.model.layers.regional`.

        Raises LoadError if it has no list of them, or adapters.
        """
        if self.adapters:
            raise LoadError("a target with adapters is not compiled: set compile = off, or leave adapters_dir out")
        layers = decoder_layers(self.model)
        if layers is None:
            raise LoadError(f"{type(self.model).__name__} has no list of decoder layers to compile; set compile = off")
        compile_layers(layers, backend)

    def capture_graphs(
        self,
        buckets: Buckets | None,
        layers: Collection[int] = (),
        *,
        lazily: bool = False,
        capturer: Capturer | None = None,
        attention: StaticAttention | None = None,
    ) -> None:
        """Capture forwards of all buckets, as `capture_program` does, to be run from then on, with the hidden states of `layers`.

        None captures none. All ranks of a group call it at the same time. Raises Incompatible for a layer that the model does not have,
        and RankLost.
        """
        self.capture.check(layers)
        if self.states is not None or not self.adapters.captures:
            recurrent = "recurrent layers run in as many passes as the trees are deep"
            adapted = "what adapters add is captured where kernels for a GPU add it (gpu_layers)"
            _log.info("no forward is captured: %s", recurrent if self.states is not None else adapted)
            return
        self.capture_program(
            self._captured,
            buckets,
            layers=frozenset(layers),
            together=self._together,
            lazily=lazily,
            capturer=capturer,
            attention=attention,
            wrap=self.with_adapters,
        )

    def demand(self, rows: Sequence[Row], layers: Collection[int]) -> Demand:
        """What rows need of a captured forward that all ranks of a group run together. EAGER: there is none for them.

        Raises Incompatible for a layer that the model does not have.
        """
        if not isinstance(self.graphs, SharedGraphs):
            return EAGER
        self.capture.check(layers)
        return self.graphs.demand(rows, frozenset(layers))

    def turn(self, rows: Sequence[int], demand: Demand) -> AbstractContextManager[None]:
        """Take part in one forward of all ranks of a group: `rows` of them by rank, which make this demand together.

        This rank may run its rows inside. If it does not, or fails, it does what the others wait for. Raises RankLost.
        """
        if isinstance(self.graphs, SharedGraphs):
            return self.graphs.turn(rows, demand)
        return self.blocks.turn(rows)

    def forward(self, rows: Sequence[Row]) -> Tensor:
        """Run rows through the model and store their KV -> logits [n, V], in the model's dtype and the order the rows ask for them.

        Rows that ask for no logits give [0, V]. Without any rows nothing is computed, and the result is [0, V] too.
        """
        return self.forward_capturing(rows, ())[0]

    def forward_capturing(
        self, rows: Sequence[Row], layers: Collection[int], on_launch: OnLaunch = unwatched
    ) -> tuple[Tensor, Hidden]:
        """Run `forward`, and capture the hidden states of `layers` (numbered as in FeatureNeed.layers) of every token, rows end to end.

        Raises Incompatible for a layer that the model does not have, and RankLost. No rows give [0, hidden_size].
        """
        self.capture.check(layers)
        if rows:
            return self._replayed(rows, layers, on_launch) or self._eager(rows, layers, on_launch)
        logits = torch.empty(0, self.model.config.vocab_size, dtype=self.model.dtype, device=self.device)
        return logits, dict.fromkeys(layers, no_rows(self.model))

    @torch.inference_mode()
    def forward_on_device(self, batch: DeviceBatch) -> Tensor:
        """Run a batch that only the device knows, and store its KV, without waiting for it -> logits [B * Q, V] in the model's dtype."""
        output = run_model(
            self.model,
            self.plan_on_device(batch),
            input_ids=batch.tokens.unsqueeze(0),
            position_ids=batch.positions.unsqueeze(0),
            use_cache=False,
        )
        return output.logits[0]

    @torch.inference_mode()
    def trial(self) -> None:
        """Run one token through the whole model, which reads and writes no KV. Raises whatever the device or another rank makes of it."""
        token = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        logits = run_model(
            self.model, TrialForward(), input_ids=token, position_ids=token, use_cache=False, logits_to_keep=1
        ).logits
        self.blocks.synchronize()
        logits.sum().item()  # waits for the device

    @torch.inference_mode()
    def forward_over(
        self, runner: ModelRunner, rows: Sequence[Row], layers: Collection[int] = (), on_launch: OnLaunch = unwatched
    ) -> Tensor:
        """Run `forward` eagerly over the KV of a runner of this model's shape, whose pages the rows have.

        `layers`: whose hidden states somebody takes meanwhile. Of the last layer nothing is computed that is not read.
        """
        batch = runner.inputs(rows)
        forward_batch = self._read(runner, batch, layers) or runner.backend.plan(batch)
        on_launch()
        return self._compute(batch, forward_batch)

    def keep_states(self, tokens: Sequence[tuple[Row, int]]) -> None:
        """Let recurrent layers go on behind these tokens of the last forward, (row, index of a token in it), where their sessions go on.

        To be called once behind a forward: what it holds of all other tokens is given back.
        """
        if self.states is not None:
            self.states.commit(tokens)

    def with_adapters(self, attention: StaticAttention, buckets: Buckets) -> StaticAttention:
        """How captured forwards attend that also go by the adapters of rows (a Wrap)."""
        return self.adapters.static(attention, buckets, self.device)

    def _room(self, num_pages: int | MemoryShare) -> int | Room:
        """The pages of the KV, or the least memory that any rank or process has for them. Waits for all of those. Raises RankLost."""
        return room_of(
            num_pages,
            self.model.device,
            self.blocks.assemble,
            weight_bytes=sum(each.nbytes for each in self.model.parameters()),
            max_context=self.info.max_context,
            state_bytes=0 if self.states is None else self.states.session_bytes,
        )

    @property
    def hidden_size(self) -> int:
        """Width of a hidden state."""
        return self.model.config.hidden_size

    @property
    def _together(self) -> ShardedBlocks | None:
        """What ranks exchange in a captured forward; None: nothing."""
        return self.blocks if len(self.blocks) else None

    def _replayed(
        self, rows: Sequence[Row], layers: Collection[int], on_launch: OnLaunch
    ) -> tuple[Tensor, Hidden] | None:
        """Replay the captured forward of these rows; None: there is no graph for them."""
        results = None if self.graphs is None else self.graphs.run(rows, frozenset(layers), on_launch)
        if results is None:
            return None
        tokens, wanted = sum(row.num_tokens for row in rows), sum(len(row.logits_at) for row in rows)
        return results[_LOGITS][:wanted], {layer: results[layer][:tokens] for layer in layers}

    def _eager(self, rows: Sequence[Row], layers: Collection[int], on_launch: OnLaunch) -> tuple[Tensor, Hidden]:
        with self.capture.of(layers) as hidden:
            return self.forward_over(self, rows, layers, on_launch), hidden

    def _captured(self, inputs: Inputs, forward_batch: ForwardBatch, layers: Collection[int]) -> Results:
        captured = self.adapters.captured(len(inputs.tokens), forward_batch)
        with self.capture.of(layers) as hidden, captured as attention:
            return {_LOGITS: self._compute(inputs, attention), **hidden}

    def _read(self, runner: ModelRunner, batch: InputBatch, layers: Collection[int]) -> ReadForward | None:
        """A forward whose last layer computes what logits are made of; None: that is all, or the model or its attention cannot.

        Recurrent models may take several passes for one batch.
        """
        last = None if self.states is not None else self.capture.last_layer
        if not isinstance(last, NativeLayer) or len(batch.logits_at) >= len(batch.tokens) or self.capture.ends(layers):
            return None
        read = runner.backend.plan_read(batch)
        if read is None:
            return None
        return ReadForward(runner.backend.plan(batch), read, last.layer_idx, batch.logits_at)

    def _compute(self, batch: InputBatch | Inputs, forward_batch: ForwardBatch) -> Tensor:
        """Logits [n, V]."""
        planned = adapted = nullcontext()
        if isinstance(batch, InputBatch):
            adapted = self.adapters.forward(batch)
            if self.states is not None:
                planned = self.states.forward(batch.rows, batch.tables)
        with planned, adapted:
            output = run_model(
                self.model,
                forward_batch,
                input_ids=batch.tokens.unsqueeze(0),
                position_ids=batch.positions.unsqueeze(0),
                use_cache=False,
                logits_to_keep=0 if isinstance(forward_batch, ReadForward) else batch.logits_at,  # 0: all there are
            )
        return output.logits[0]


def _check_changes(*, split: bool, changed: bool) -> None:
    if split and changed:
        raise LoadError("a model that is split over processes is neither inflated nor has it random weights")


def _check_adapters(folder: Path | None, *, as_it_is: bool) -> None:
    if folder is not None and not as_it_is:
        raise LoadError(
            "adapters (adapters_dir) are for a target that one process runs as it is: leave out inflate_layers, tp_size and dp_size, "
            "or the adapters"
        )
