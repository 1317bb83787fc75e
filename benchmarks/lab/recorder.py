"""Makes a trace of models: for every root of every request, how the drafter ranks the target's own tokens, level by level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.lab.clock import VirtualClock
from benchmarks.lab.models import ModelSource
from benchmarks.lab.scenario import DrafterSpec, Scenario
from benchmarks.lab.trace import Header, Level, row, write
from specsplit.draft_events import Open
from specsplit.model.pages.pool import PageTable
from specsplit.sessions import DecodeRequest
from specsplit.tree import ROOT, Ints, TokenTree
from specsplit.values import Plan
from specsplit_drafter.drafts.proposer import Children, FrontierPart, Proposer, WholeTree
from specsplit_verifier.records.feed import Recipe, Rows
from specsplit_verifier.records.step import ChunkInput, StepInput

CHILDREN = 8
HEAD_LEVELS = 16
_MAX_NODES = 4096
_KEY = (0, 0)
_AT_ROOT: Ints = np.array([ROOT], dtype=np.int64)


ANOTHER_SEED = 1 << 32
"""Added to the seed of whoever has noise of its own."""


def record(source: ModelSource, scenario: Scenario, file: Path, *, own_noise: bool = False) -> None:
    """Write the trace of a scenario's requests and its first drafter.

    With `own_noise` the drafter does not share the target's noise: it is wrong more often, as on text that it knows little of.
    """
    spec = replace(scenario.drafters[0], children=CHILDREN)
    head = spec.kind.is_head
    target = source.target(VirtualClock()).info.model
    drafter = source.proposer(spec).info.model
    header = Header(target, drafter, spec.kind.value, head, scenario.temperature)
    depth = HEAD_LEVELS if head else 1
    another = ANOTHER_SEED if own_noise else 0
    rows = [line for request in source.requests(scenario) for line in _lines(source, spec, request, depth, another)]
    write(file, header, rows)


def _lines(
    source: ModelSource, spec: DrafterSpec, request: DecodeRequest, depth: int, another: int
) -> Iterator[dict[str, object]]:
    proposer, text, vocabulary = (
        source.proposer(spec),
        source.truth(request),
        source.target(VirtualClock()).info.vocabulary,
    )
    sampling = replace(request.sampling, seed=request.sampling.seed + another)
    features = _features(source, proposer, text)
    for root in range(len(request.tokens) - 1, len(text) - 1):
        tree = TokenTree(text[root], root)
        opened = Open(text[: root + 1], sampling, Plan(), vocabulary, _MAX_NODES, prompt_tokens=len(request.tokens))
        proposer.open(_KEY, tree, opened)
        if features is not None:
            recipe, rows = features
            proposer.feed(_KEY, rows.cut(0, root), recipe.layout)
        yield row(request.request_id, root, list(_levels(proposer, tree, text[root + 1 : root + 1 + depth])))
        proposer.close(_KEY)


def _levels(proposer: Proposer, tree: TokenTree, ahead: Sequence[int]) -> Iterator[Level]:
    """What is said of every one of the tokens to come, up to one that is not proposed."""
    at = _AT_ROOT
    for number, token in enumerate(ahead, 1):
        children = _expanded(proposer, at)
        tokens = children.tokens[0].tolist()
        probabilities = np.exp(children.log_probabilities[0]).round(4).tolist()
        rank = tokens.index(token) if token in tokens else -1
        yield Level(rank, tuple(probabilities))
        if rank < 0:
            return
        at = np.array([tree.add(int(at[0]), number, token, -float(number))], dtype=np.int64)


def _expanded(proposer: Proposer, at: Ints) -> Children:
    """Read the context, in as many parts as it takes, and expand a node: its children in the first row. Raises a proposer's error."""
    while True:
        (expanded,) = proposer.expand([FrontierPart(_KEY, at)])
        if isinstance(expanded, WholeTree):
            return expanded.children
        if isinstance(expanded, Children):
            return expanded
        if expanded is not None:
            raise expanded


def _features(source: ModelSource, proposer: Proposer, text: Sequence[int]) -> tuple[Recipe, Rows] | None:
    """The features of a whole text, if the drafter reads any."""
    if not proposer.info.features:
        return None
    target = source.target(VirtualClock())
    recipe = target.recipe(proposer.info.features)
    table = PageTable(target.pool)
    table.reserve(len(text))
    chunk = ChunkInput.chunk(text, table.upto(len(text)), session=0, first=0, recipe=recipe)
    rows = Rows(recipe.layout, 0)
    for _, _, features in target.run(StepInput(chunks=[chunk])).features:
        rows.append(features)
    return recipe, rows
