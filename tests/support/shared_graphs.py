"""Captured forwards of a rank group in this process: ranks are threads, and what is captured is called again, collectives and all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from specsplit.model import CausalLM, Row
from specsplit.model.graphs import Buckets, Capturer, StaticAttention
from specsplit.model.layers.capture import Hidden
from specsplit.model.lm.load import load_model
from specsplit.ranks.demand import EAGER, Demand, of_all
from tests.support.graphs import ALL_LAYERS, RecordingCapturer, TorchStatic
from tests.support.meshes import ThreadMesh, mesh_of

Output = tuple[Tensor, Hidden]
T = TypeVar("T")


@dataclass(frozen=True)
class Brought:
    """What one rank has in a turn."""

    rows: Sequence[Row] = ()
    layers: Collection[int] = field(default_factory=frozenset[int])

    @property
    def tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


@dataclass
class SharedModels:
    """One model, shared out over the ranks of a mesh."""

    meshes: list[ThreadMesh]
    lms: list[CausalLM]

    @classmethod
    def load(cls, folder: Path, size: int, num_pages: int = 64, page_size: int = 4) -> SharedModels:
        meshes = mesh_of(size)
        parts = [load_model(folder, mesh=mesh) for mesh in meshes]

        def ready(rank: int) -> CausalLM:
            model, info, blocks = parts[rank]
            with meshes[rank].dying():
                return CausalLM(model, info, num_pages=num_pages, page_size=page_size, blocks=blocks)

        return cls(meshes, on_all(size, ready))

    def on_all(self, work: Callable[[int], T]) -> list[T]:
        """What `work` returns, by rank; all ranks run it at the same time. A rank that raises dies of it."""

        def run(rank: int) -> T:
            with self.meshes[rank].dying():
                return work(rank)

        return on_all(len(self.lms), run)

    def capture(
        self,
        buckets: Buckets,
        attention: Callable[[CausalLM], StaticAttention] = TorchStatic,
        capturers: Sequence[Capturer] | None = None,
        layers: Collection[int] = ALL_LAYERS,
    ) -> None:
        """Capture forwards of all ranks."""
        made = capturers or [RecordingCapturer() for _ in self.lms]
        self.on_all(lambda rank: self.capture_one(rank, buckets, attention, made[rank], layers))

    def capture_one(
        self,
        rank: int,
        buckets: Buckets | None,
        attention: Callable[[CausalLM], StaticAttention] = TorchStatic,
        capturer: Capturer | None = None,
        layers: Collection[int] = ALL_LAYERS,
    ) -> None:
        lm = self.lms[rank]
        lm.capture_graphs(buckets, layers, capturer=capturer or RecordingCapturer(), attention=attention(lm))

    def turn(self, rank: int, brought: Brought, *, eager: bool = False) -> tuple[Demand, Output]:
        """Agree with the other ranks, and run what they agreed on -> that, and what came of the rows of this rank."""
        lm, mesh = self.lms[rank], self.meshes[rank]
        demand = EAGER if eager else lm.demand(brought.rows, brought.layers)
        told = mesh.exchange((brought.tokens, *demand.numbers))
        together = of_all([Demand.of(numbers) for _, *numbers in told])
        with lm.turn([tokens for tokens, *_ in told], together):
            logits, hidden = lm.forward_capturing(brought.rows, brought.layers)
            return together, (logits.clone(), {layer: states.clone() for layer, states in hidden.items()})

    def turns(self, brought: Sequence[Brought], *, eager: bool = False) -> list[tuple[Demand, Output]]:
        """A turn of all ranks."""
        return self.on_all(lambda rank: self.turn(rank, brought[rank], eager=eager))


def on_all(size: int, work: Callable[[int], T]) -> list[T]:
    """What `work` returns, by rank; raises what the lowest rank raises."""
    torch.set_num_threads(1)
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(work, range(size)))
