"""Sampling after the forward of a step, on the device: the host waits once, for the results that it needs.

The forward reads none of this, so it is laid out and copied, in one copy, while the device runs the forward.

    n   tokens of all trees      B   trees      D   tokens of the longest path from a root to a leaf      T   tokens of the forward

The path of a tree has D places, of which as many are real as were accepted; so the places of tree b are those from b * D.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specsplit.model.layers.capture import Hidden
from specsplit.model.layers.kernels.compaction import compact
from specsplit.model.lm.causal_lm import CausalLM
from specsplit.model.tensors.staging_buffer import StagingBuffer
from specsplit.model.tensors.transfer import HostCopy, UploadArray, on_host, to_host
from specsplit.sampling.device import DeviceBatch, DeviceRows, UnsentRows
from specsplit.sampling.kernels import launching_on
from specsplit.sampling.kernels.walking import Walked, walk
from specsplit.sampling.pick import Paths
from specsplit.values import Sampling
from specsplit_verifier.records.feed import Recipe
from specsplit_verifier.records.step import Accepted, StepInput, TreeInput
from specsplit_verifier.target.bars import Bar, Bars
from specsplit_verifier.target.extraction import Extractor, Made, Wanted, by_recipe, parted
from specsplit_verifier.target.logprobs import listed, measured
from specsplit_verifier.target.sampler import TreeRows, paths_of
from specsplit_verifier.target.tree_sampler import Accept, Outcome, wanted_of_chunks

_log = logging.getLogger(__name__)


class DeviceTreeSampler:
    """Picks, walks and compacts by kernels, and waits for one copy of the results of a step.

    Features follow in a copy that is waited for when somebody asks for their bytes.
    """

    def __init__(self, target: CausalLM, extractor: Extractor) -> None:
        self._target = target
        self._extractor = extractor
        self._staging = StagingBuffer(target.device)
        self._bars = Bars()
        self._rows: TreeRows[UnsentRows] = TreeRows(DeviceBatch, target.info.vocabulary.size, target.device)
        self._trial()

    @torch.inference_mode()
    def _trial(self) -> None:
        """Run every kernel for a root alone, on each type of logits, so that nothing is compiled within a step."""
        device, dtype = self._target.device, self._target.model.dtype
        vocab_size = self._target.model.config.vocab_size
        rows = DeviceBatch([Sampling(1.0, top_k=1, top_p=0.5)], vocab_size, device).rows([0])
        for each in dict.fromkeys((dtype, torch.float32)):  # what is biased or penalised is float32
            _log.info("kernels that pick from %s on %s are compiled, unless an earlier start has", each, device)
            upload = self._staging.begin()
            zero, columns = np.zeros(1, dtype=np.int64), rows.sent(upload)
            trees = DeviceTrees(*map(upload, (zero, zero - 1, zero, np.arange(2), zero, zero)), depths=[1])
            walked = self._walk(trees, columns, torch.zeros(1, vocab_size, dtype=each, device=device), (), upload)[1]
            on_host(walked)

    def prepare(self, step: StepInput) -> Accept:
        """Begin what a grammar needs, and nothing else yet: the device uses none of it before the forward is over.

        The function that is returned waits for one copy.
        """
        return partial(self._accept, step, self._bars.begin(step.trees))

    @torch.inference_mode()
    def _accept(
        self, step: StepInput, bars: Callable[[UploadArray], Bar] | None, logits: Tensor, hidden: Hidden
    ) -> Outcome:
        upload = self._staging.begin()
        trees = DeviceTrees.of(step.trees, upload)
        asked = AskedLogprobs.of(step.trees, trees, upload)
        wanted = WantedFeatures.of(step, trees, upload)
        rows, paths = self._rows.of(step.trees).sent(upload), paths_of(step.trees)
        picked, walked = self._walk(trees, rows, logits, paths, upload, bars and bars(upload))
        nodes = trees.nodes(walked)
        copied = to_host((*walked, *asked.measure(logits, picked, nodes)))
        features = wanted.gather(self._extractor, hidden, nodes)  # behind the copy above, so as not to delay it
        path, length, bonus, *logprobs = copied.arrays()
        accepted = {
            tree.session: Accepted(path[b, : length[b]].tolist(), int(bonus[b]))
            for b, tree in enumerate(step.trees)
            if bonus[b] >= 0
        }
        return Outcome(asked.read(logprobs, accepted), wanted.read(features, accepted))

    def _walk(
        self,
        trees: DeviceTrees,
        rows: DeviceRows,
        logits: Tensor,
        paths: Paths,
        upload: UploadArray,
        bar: Bar | None = None,
    ) -> tuple[Tensor, Walked]:
        """Send the uploads, pick behind every token, walk, and move the KV of accepted nodes -> picks int64 [n], accepted paths."""
        pool, device = self._target.pool, self._target.device
        follow = pool.tables.follow(device, upload)
        self._staging.send()
        tables = follow()
        with launching_on(device):
            allowed = logits if bar is None else bar(logits)
            picked = rows.pick(allowed, trees.positions, paths)
            walked = trees.walk(picked)
            compact(self._target.kv, tables, pool.page_size, trees.tables, trees.roots, walked.paths, walked.lengths)
        return picked, walked


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTrees:
    """The trees of a step end to end, on the device. They come first in their forward."""

    tokens: Tensor
    """int64 [n]"""
    parents: Tensor
    """int64 [n] index of each token's parent within its tree."""
    positions: Tensor
    """int64 [n] position of the token that is picked behind each token."""
    starts: Tensor
    """int64 [B + 1] index of the first of each tree's tokens, then n."""
    tables: Tensor
    """int64 [B] page table of each tree."""
    roots: Tensor
    """int64 [B] local index of each root."""
    depths: Sequence[int]
    """[B] tokens of the longest path of each tree."""

    @classmethod
    def of(cls, trees: Sequence[TreeInput], upload: UploadArray) -> DeviceTrees:
        """Lay the trees out end to end and send them with `upload`."""
        drafts = [tree.draft for tree in trees]
        widths = [len(draft.tokens) for draft in drafts]
        arrays = [
            [token for draft in drafts for token in draft.tokens],
            [parent for draft in drafts for parent in draft.parents],
            [position + 1 for draft in drafts for position in draft.positions],
            [0, *accumulate(widths)],
            [tree.pages.table for tree in trees],
            [tree.pages.length - tree.num_tokens for tree in trees],
        ]
        depths = [max(draft.positions) - draft.positions[0] + 1 for draft in drafts]
        return cls(*(upload(np.array(array, dtype=np.int64)) for array in arrays), depths=depths)

    @property
    def deepest(self) -> int:
        """D: the tokens of the longest path of all trees."""
        return max(self.depths, default=0)

    def places(self, tree: int) -> range:
        """The places that a path of this tree may have."""
        start = tree * self.deepest
        return range(start, start + self.depths[tree])

    def walk(self, picked: Tensor) -> Walked:
        """Walk down all trees along picks int64 [n]."""
        return walk(picked, self.tokens, self.parents, self.starts, self.deepest)

    def nodes(self, walked: Walked) -> Tensor:
        """Index in the forward of the token at every place, int64 [B * D]; the root's at places behind the path."""
        return (walked.paths + self.starts[:-1, None]).view(-1)


@dataclass(frozen=True, slots=True, eq=False)
class AskedLogprobs:
    """The log-probabilities of a step that sessions ask for."""

    asking: Sequence[tuple[TreeInput, int, int]]
    """(tree, likeliest tokens wanted, places)"""
    places: Tensor
    """int64 [R] places of all trees whose sessions ask."""

    @classmethod
    def of(cls, trees: Sequence[TreeInput], on_device: DeviceTrees, upload: UploadArray) -> AskedLogprobs:
        """Find the trees whose sessions ask for log-probabilities."""
        asking = [(b, tree, tree.logprobs) for b, tree in enumerate(trees) if tree.logprobs is not None]
        places = np.array([place for b, _, _ in asking for place in on_device.places(b)], dtype=np.int64)
        return cls([(tree, most, on_device.depths[b]) for b, tree, most in asking], upload(places))

    def measure(self, logits: Tensor, picked: Tensor, nodes: Tensor) -> Sequence[Tensor]:
        """Compute log-probabilities of the picks at every place; nothing if no session asks."""
        if not self.asking:
            return ()
        rows = nodes[self.places]
        return measured(logits[rows], picked[rows].clamp(min=0), max(most for _, most, _ in self.asking))

    def read(self, measured: Sequence[NDArray[Any]], accepted: Mapping[int, Accepted]) -> Mapping[int, Accepted]:
        """Add the log-probabilities to the accepted paths."""
        if not self.asking:
            return accepted
        values, likeliest = measured
        results, start = dict(accepted), 0
        for tree, most, places in self.asking:
            if (made := accepted.get(tree.session)) is not None:
                rows = slice(start, start + len(made.path))
                own = listed(
                    made.commits(tree.draft), values[rows, : 1 + most].tolist(), likeliest[rows, :most].tolist()
                )
                results[tree.session] = replace(made, logprobs=own)
            start += places
        return results


@dataclass(frozen=True, slots=True, eq=False)
class WantedOfTree(Wanted):
    """Features at the places of a tree, of which as many are wanted, from the front, as were accepted."""


@dataclass(frozen=True, slots=True, eq=False)
class WantedFeatures:
    """The features of a step that drafters want. Their indices are of all places and, behind these, of all tokens of the forward."""

    groups: Sequence[tuple[Recipe, Sequence[Wanted], Tensor]]
    """For each recipe: the parts that are wanted, by session, and int64 indices of all their tokens."""
    tokens: int
    """T: the tokens of the forward."""

    @classmethod
    def of(cls, step: StepInput, trees: DeviceTrees, upload: UploadArray) -> WantedFeatures:
        """Find the features that drafters want of this step."""
        first = len(trees.depths) * trees.deepest
        starts = list(accumulate((row.num_tokens for row in step.rows), initial=first))
        of_trees = (
            WantedOfTree(tree.session, tree.recipe, tree.draft.positions[0], trees.places(b))
            for b, tree in enumerate(step.trees)
            if tree.recipe is not None
        )
        groups = by_recipe([*wanted_of_chunks(step, starts[len(step.trees) :]), *of_trees])
        indices = {recipe: np.concatenate([want.at for want in group]) for recipe, group in groups.items()}
        return cls([(recipe, group, upload(indices[recipe])) for recipe, group in groups.items()], step.tokens)

    def gather(self, extractor: Extractor, hidden: Hidden, nodes: Tensor) -> HostCopy:
        """Make the features of each recipe, uint8 [m, bytes_per_token], at all places that may be accepted, and begin to copy them."""
        if not self.groups:
            return to_host(())
        everything = torch.cat((nodes, torch.arange(self.tokens, device=nodes.device)))
        return to_host([extractor.packed(recipe, hidden, everything[at]) for recipe, _, at in self.groups], aside=True)

    def read(self, copy: HostCopy, accepted: Mapping[int, Accepted]) -> list[Made]:
        """Split the features by session. Nothing waits for the copy."""
        return parted([group for _, group, _ in self.groups], copy, partial(_count, accepted))


def _count(accepted: Mapping[int, Accepted], want: Wanted) -> int:
    """How many of the wanted tokens, from the front, count: all of a chunk, and of a tree as many as were accepted."""
    if not isinstance(want, WantedOfTree):
        return len(want.at)
    made = accepted.get(want.session)
    return 0 if made is None else len(made.path)
