"""Descents as they will come when a session begins: of one session, below its root, by the lengths of contexts.

They are made of free slots and of numbers that mean nothing: what is captured of them depends on shapes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Final

import numpy as np
import torch

from specsplit.errors import Exhausted
from specsplit.model.pages.pool import PageTable
from specsplit.values import Sampling
from specsplit_drafter.descent.descent import Descent, DescentInputs, DescentPart
from specsplit_drafter.descent.device_ranking import Ranked
from specsplit_drafter.descent.graphs import padded_length
from specsplit_drafter.descent.ranking import Ranking
from specsplit_drafter.drafts.calibration import DistanceCalibration
from specsplit_drafter.drafts.draft_model import DraftModel
from specsplit_drafter.drafts.proposer import Scoring, SessionKey

_CONTEXTS: Final = (512, 1024, 256, 2048, 128, 4096, 64, 8192)
"""Lengths of contexts, those that are met most first. One that is between two is padded to the longer."""
_SAMPLINGS: Final = (Sampling(), Sampling(temperature=1.0))
_NOBODY: Final[SessionKey] = (-1, -1)


def rehearsals(
    model: DraftModel, ranking: Ranking, distances: int, levels: int, width: int
) -> Iterator[Callable[[], Descent | None]]:
    """Descents of up to `levels` levels, the frontier's own counted, of `width` nodes each, the likeliest to come first.

    Two levels are what is tried at first, and all of them what is drawn where they cost next to nothing. None: slots are short.
    """
    longest = model.info.max_context
    for context, depth, sampling in product(_CONTEXTS, dict.fromkeys((levels - 1, 1)), _SAMPLINGS):
        if depth and context <= longest:
            yield partial(_rehearsed, model, ranking, distances, context, depth, width, sampling)


@torch.inference_mode()
def _rehearsed(
    model: DraftModel, ranking: Ranking, distances: int, context: int, depth: int, width: int, sampling: Sampling
) -> Descent | None:
    pool, first = model.pools[0], int(model.feature_dtype is not None)
    table = PageTable(pool)
    try:
        table.reserve(context + depth * width)
    except Exhausted:
        return None
    ranking.open(_NOBODY, [0], sampling)
    try:
        part = _part(table, context, depth, width, distances, first)
        inputs = DescentInputs.of([part], [np.zeros(1, dtype=np.int64)], pool.tables, model.device, padded_length)
        on_device = ranking.on_device([_NOBODY], width, [part.span])
        tokens = torch.zeros(1, ranking.children, dtype=torch.int64, device=model.device)
        finite = torch.ones(1, dtype=torch.bool, device=model.device)
        return Descent(inputs, on_device, Ranked(tokens, tokens.double(), finite), first)
    finally:
        ranking.close(_NOBODY)
        table.release()


def _part(table: PageTable, context: int, depth: int, width: int, distances: int, first: int) -> DescentPart:
    root = np.array([context - 1 + first])
    scoring = Scoring(
        scores=np.zeros(1),
        distances=np.zeros(1, dtype=np.int64),
        shifts=DistanceCalibration(distances).shifts,
        floor=-1.0,
        deepest=int(root[0]) + depth + 2,
        width=width,
    )
    return DescentPart(
        session=_NOBODY,
        scoring=scoring,
        positions=root,
        slots=table.slots(context - 1, context),
        context=table.upto(context),
        own=np.empty(0, dtype=np.int64),
        mask=np.zeros((1, 0), dtype=np.bool_),
        level_slots=table.slots(context, context + depth * width).reshape(depth, width),
    )
