"""The draft model that is a head on the target's features: EAGLE, EAGLE-3 and multi-layer EAGLE.

A head reads, for every token u, its embedding and a *state* of its parent, and leaves a state of u from which u's children are predicted.
Step j of the head (from 0) keeps its rows in a KV pool of its own. With positions in the text counted from 0,

    S_j(u) = layer_j(embedding(u), S_{j-1}(parent of u)), attending to the rows of step j on u's path      S_{-1}(v) = fused feature of v

The row of a token at position p is row p - (j + 1) of its step: earlier tokens have none. Two kinds of head:

    multi-layer  a node at depth d below the root is predicted from step d, so that its state comes from a true feature whatever the tree
                 looks like. It has rows in steps d and up (its descendants attend to those), so no node as deep as there are steps can be
                 expanded. A row depends on tokens and features only: it stays right for good. But once the root has come nearer, a lower
                 step, with features of more tokens, can say what follows a node.
    recurrent    one step. The feature of a node is not there yet: its parent's own state stands in for it. Once the node is committed,
                 its row is computed again, in the same slot, from the true feature; and level by level those of the nodes below it, from
                 states that are as many guesses better. Where the step has several decoder layers, the rows of a node's second layer also
                 tell what its first saw above it, so that they are right to the last digit only once the node is computed again.

States of rows lie beside their KV, by slot (state_width numbers each), so that whoever has a slot has the state, and the inputs of a
forward are one gather.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import Final

import torch
from torch import Tensor

from specsplit.features import FeatureFormat, FeatureNeed
from specsplit.model.graphs import Buckets
from specsplit.model.heads import Head, HeadRunner
from specsplit.model.pages.device_batch import DeviceBatch
from specsplit.model.pages.geometry import Geometry
from specsplit.model.pages.kv import STORED
from specsplit.model.pages.room import MemoryShare, room_of
from specsplit.model.tensors.transfer import on_device
from specsplit.records import GraphStatistics
from specsplit_drafter.drafts.draft_model import ExpansionInput
from specsplit_drafter.drafts.draft_weights import DraftWeights


class HeadModel:
    """DraftModel of the kinds that read features. Every step of the head has a pool of `num_slots` slots."""

    def __init__(
        self,
        head: Head,
        num_slots: int | MemoryShare,
        need: FeatureNeed | None = None,
        attention: str = "auto",
        kv_cache_dtype: str = "auto",
    ) -> None:
        """`num_slots`: or the share of the device's memory that those of all steps take; all ranks come to the same.

        need: the head's own, perhaps with another format, or with a projection: then features come projected.

        Raises LoadError for too little room, and RankLost.
        """
        shape = head.shape
        need = need or shape.need
        self.info: Final = replace(shape.info, features=need)
        self.vocab_size: Final = shape.vocabulary.size
        self.device: Final = head.device
        self.recurrent: Final = shape.recurrent
        self.feature_dtype: Final = head.dtype
        sources = 1 if shape.recurrent else shape.num_steps - 1  # nobody reads the last step's states
        slots = _slots(head, sources, num_slots, kv_cache_dtype)
        self.runners: Final = [
            HeadRunner(head, step, slots, attention, kv_cache_dtype) for step in range(shape.num_steps)
        ]
        self.pools: Final = [runner.pool for runner in self.runners]
        self.blocks: Final = head.blocks
        self.states: Final = [
            torch.zeros(self.runners[0].kv.num_slots, shape.state_width, dtype=head.dtype, device=head.device)
            for _ in range(sources)
        ]
        """The states of every step, [kv.num_slots, state_width]."""
        width = need.layout(need.hidden_size, FeatureFormat.FLOAT32).width
        self._no_features = torch.empty(0, width, dtype=head.dtype)
        self._projected = bool(need.projection)
        self._head = head
        if isinstance(num_slots, MemoryShare):
            kept = (*(runner.kv for runner in self.runners), *self.states)
            num_slots.tell(slots, sum(each.nbytes for each in kept), head.device)

    @property
    def graph_statistics(self) -> GraphStatistics:
        """How many forwards of all steps were replayed or run eagerly, and why."""
        return reduce(GraphStatistics.merged_with, (runner.graph_statistics for runner in self.runners))

    @property
    def weights(self) -> DraftWeights:
        """The weights that the model drafts with, and what the model shares of its target."""
        return DraftWeights(self.info, self._head.held_tensors())

    def set_up_levels(self) -> bool:
        """Set up what plans attention where the head is. False: nothing can."""
        return self.runners[0].device_planner is not None

    def states_of(self, step: int) -> Tensor | None:
        """The states of a step, by slot; None: nobody reads them."""
        return self.states[step] if step < len(self.states) else None

    def capture_graphs(self, buckets: Buckets, *, lazily: bool = False) -> None:
        """Capture forwards of every step, as `HeadRunner.capture_graphs` does."""
        for step, runner in enumerate(self.runners):
            runner.capture_graphs(buckets, self.states_of(step), lazily=lazily)

    def capture_next(self) -> bool:
        """Capture a forward that is not captured yet. False: there is none."""
        return any(runner.capture_next() for runner in self.runners)

    @torch.inference_mode()
    def run(self, step: int, work: ExpansionInput) -> Tensor:
        """Run one forward of the step's layer, and the LM head where logits are wanted."""
        hidden, _ = self.runners[step].forward(work.rows, self._inputs(step, work), self.states_of(step))
        return self._head.logits(step, hidden[on_device(work.logits_at, self._head.device)])

    @torch.inference_mode()
    def run_level(self, batch: DeviceBatch, sources: Tensor) -> Tensor:
        """Run the layer of a recurrent head over nodes that the device has chosen."""
        states = self.states[0]
        hidden = self.runners[0].forward_on_device(batch, states.index_select(0, sources), states)
        return self._head.logits(0, hidden)

    def _inputs(self, step: int, work: ExpansionInput) -> Tensor:
        """Gather the states [num_tokens, state_width] of the parents of the rows' tokens."""
        parts: list[Tensor] = []
        if step == 0:
            features = on_device(torch.cat([self._no_features, *work.features]), self._head.device)
            parts.append(self._head.fuse(features, projected=self._projected))
        if self.recurrent or step:
            source = self.states[0 if self.recurrent else step - 1]
            parts.append(source.index_select(0, on_device(work.source_slots, self._head.device)))
        return torch.cat(parts)


def _slots(head: Head, sources: int, num_slots: int | MemoryShare, kv_cache_dtype: str) -> int:
    """Slots of each step, whose KV and states (of `sources` steps) lie beside one another. Waits for other ranks. Raises as `HeadModel`."""
    room = room_of(
        num_slots,
        head.device,
        head.assemble,
        weight_bytes=sum(each.nbytes for each in head.parameters()),
        max_context=head.shape.max_context,
    )
    if isinstance(room, int):
        return room
    layers = Geometry(tuple(chain.from_iterable(step.layers for step in head.geometries)))
    states = sources * head.shape.state_width * head.dtype.itemsize
    return room.pages(layers, 1, (STORED[kv_cache_dtype] or head.dtype).itemsize, beside=states)
