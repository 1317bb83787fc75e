"""Growing a tree from the draft, and its expected accepted length under the target.

Tree index 0 is the root; tokens and parents are parallel lists over the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.acceptance.schemes import Scheme
from benchmarks.acceptance.shapes import Budget, Slot
from benchmarks.acceptance.treecache import TreeCache


@dataclass(frozen=True)
class Spot:
    """A place in a committed sequence to draft at."""

    root: int
    """Index of the root in the sequence."""
    token: int
    temperature: float
    seed: int


@dataclass
class Tree:
    """Nodes with the draft's logits of those that were expanded."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    depths: list[int] = field(default_factory=lambda: [0])
    draft_logits: dict[int, Tensor] = field(default_factory=dict)

    def add(self, parent: int, token: int) -> int:
        """Append a node; returns its index."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        return len(self.tokens) - 1


def _expand(tree: Tree, cache: TreeCache, fed: dict[int, int], nodes: list[int]) -> None:
    """Run the draft on `nodes`; `fed` maps tree index -> index in the cache's tree."""
    parents = [fed[tree.parents[n]] if n else -1 for n in nodes]
    logits = cache.extend([tree.tokens[n] for n in nodes], parents)
    for node, row in zip(nodes, logits, strict=True):
        fed[node] = len(fed)
        tree.draft_logits[node] = row


def _draws(scheme: Scheme, logits: Tensor, spot: Spot, depth: int, count: int) -> list[int]:
    """The first `count` tokens that the scheme proposes at `depth` below the root."""
    return scheme.scores(logits, spot.temperature, spot.seed, spot.root + depth).topk(count).indices.tolist()


def grow_to_shape(cache: TreeCache, scheme: Scheme, spot: Spot, shape: list[Slot]) -> Tree:
    """Fill `shape` with the tokens that the scheme draws."""
    tree, fed, index_of = Tree([spot.token]), {}, {-1: 0}
    cache.reset(spot.root)
    widest = max(slot.rank for slot in shape) + 1
    for depth in range(1, max(slot.depth for slot in shape) + 1):
        born = [(number, slot) for number, slot in enumerate(shape) if slot.depth == depth]
        level = sorted({index_of[slot.parent] for _, slot in born})
        _expand(tree, cache, fed, level)
        drawn = {node: _draws(scheme, tree.draft_logits[node], spot, depth, widest) for node in level}
        for number, slot in born:
            parent = index_of[slot.parent]
            index_of[number] = tree.add(parent, drawn[parent][slot.rank])
    return tree


def grow_by_score(cache: TreeCache, scheme: Scheme, spot: Spot, budget: Budget) -> Tree:
    """Best-first by the draft's own confidence: the `budget.nodes` best-scored nodes there are within topk and depth."""
    grown, fed = Tree([spot.token]), {}
    scores, level = [0.0], [0]
    cache.reset(spot.root)
    for depth in range(budget.depth):
        _expand(grown, cache, fed, level)
        born = []
        for node in level:
            found = (
                scheme.scores(grown.draft_logits[node], spot.temperature, spot.seed, spot.root + depth + 1)
                .log_softmax(-1)
                .topk(budget.topk)
            )
            for score, token in zip(found.values.tolist(), found.indices.tolist(), strict=True):
                born.append(grown.add(node, token))
                scores.append(scores[node] + score)
        # A child never outscores its parent, so what is not among the best now never will be, nor will anything below it.
        best = _best(scores, budget.nodes)
        level = [n for n in born if n in best]
        if not level:
            break
    return _keep(grown, sorted(_best(scores, budget.nodes)))


def _best(scores: list[float], nodes: int) -> set[int]:
    return set(sorted(range(1, len(scores)), key=lambda n: -scores[n])[:nodes])


def _keep(grown: Tree, nodes: list[int]) -> Tree:
    """The subtree of the root and `nodes` (ascending, parents among them)."""
    tree, index_of = Tree([grown.tokens[0]], draft_logits={0: grown.draft_logits[0]}), {0: 0}
    for node in nodes:
        index_of[node] = tree.add(index_of[grown.parents[node]], grown.tokens[node])
        if node in grown.draft_logits:
            tree.draft_logits[index_of[node]] = grown.draft_logits[node]
    return tree


def expected_length(cache: TreeCache, scheme: Scheme, spot: Spot, tree: Tree) -> float:
    """Expected accept_length (bonus included) of `tree` under the target in `cache`; exact given the tree."""
    cache.reset(spot.root)
    target_logits = cache.extend(tree.tokens, tree.parents)
    reached = [1.0] + [0.0] * (len(tree.tokens) - 1)
    for node in range(len(tree.tokens)):  # parents come before children
        children = [n for n, parent in enumerate(tree.parents) if parent == node]
        if reached[node] == 0 or not children:
            continue
        tokens, position = [tree.tokens[c] for c in children], spot.root + tree.depths[node] + 1
        chances = scheme.acceptance(
            target_logits[node], tree.draft_logits[node], tokens, spot.temperature, spot.seed, position
        )
        for child, chance in zip(children, chances, strict=True):
            reached[child] = reached[node] * chance
    return sum(reached)


def acceptance_by_rank(target: TreeCache, draft: TreeCache, scheme: Scheme, spot: Spot, ranks: int) -> Tensor:
    """Chance of each of the root's first `ranks` children to be the accepted one, float64 [ranks]."""
    draft.reset(spot.root)
    target.reset(spot.root)
    d, t = draft.extend([spot.token], [-1])[0], target.extend([spot.token], [-1])[0]
    children = scheme.scores(d, spot.temperature, spot.seed, spot.root + 1).topk(ranks).indices.tolist()
    return torch.tensor(
        scheme.acceptance(t, d, children, spot.temperature, spot.seed, spot.root + 1), dtype=torch.float64
    )
