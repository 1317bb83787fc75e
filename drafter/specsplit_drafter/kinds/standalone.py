"""The draft model that is a small language model of the target's vocabulary: one step, which reads tokens and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from specsplit.model.layers.weights import held_tensors
from specsplit.model.lm.causal_lm import CausalLM
from specsplit.model.lm.revision import check_updatable
from specsplit.model.pages.device_batch import DeviceBatch
from specsplit.model.pages.pool import PagePool
from specsplit.records import GraphStatistics
from specsplit.values import DrafterInfo, DrafterKind
from specsplit_drafter.drafts.draft_model import ExpansionInput
from specsplit_drafter.drafts.draft_weights import DraftWeights


class StandaloneModel:
    """DraftModel of kind standalone."""

    def __init__(self, model: CausalLM) -> None:
        if model.pool.page_size != 1:
            raise ValueError(f"the drafter's KV pool has pages of {model.pool.page_size} slots, expected 1")
        facts = model.info
        self.info: Final = DrafterInfo(DrafterKind.STANDALONE, facts.model, facts.vocabulary, facts.max_context)
        self.vocab_size: Final = facts.vocabulary.size
        self.device: Final = model.device
        self.recurrent: Final = True
        self.feature_dtype: Final[torch.dtype | None] = None
        self.pools: Final[Sequence[PagePool]] = (model.pool,)
        self.blocks: Final = (model.blocks,)
        self._model = model

    @property
    def graph_statistics(self) -> GraphStatistics:
        """How many of its forwards were replayed or run eagerly, and why."""
        return self._model.graph_statistics

    @property
    def weights(self) -> DraftWeights:
        """The weights that the model drafts with. Raises Unsupported for a model that is quantised, or shared out over ranks."""
        check_updatable(self._model)
        return DraftWeights(self.info, held_tensors(self._model.model))

    def set_up_levels(self) -> bool:
        """Set up what plans attention where the model is. False: nothing can."""
        return self._model.device_planner is not None

    def capture_next(self) -> bool:
        """Capture a forward that is not captured yet. False: there is none."""
        return self._model.capture_next()

    def run(self, step: int, work: ExpansionInput) -> Tensor:
        """Run one forward; every row names the tokens whose logits it wants."""
        return self._model.forward(work.rows)

    def run_level(self, batch: DeviceBatch, sources: Tensor) -> Tensor:
        """Run one forward over nodes that the device has chosen. It reads no states, so `sources` is not used."""
        return self._model.forward_on_device(batch)
