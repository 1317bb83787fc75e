"""Which nodes of a tree a step should take: the best ones that hang together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specsplit.tree.columns import NO_SLOTS, ROOT, Columns, Ints, Scores


def best(tree: Columns, count: int, topk: int, depth: int) -> list[int]:
    """Choose the root and the best-scored nodes, `count` slots in all at most, parents before children.

    At most `topk` children of one node and `depth` levels below the root are considered. A child never outscores its parent, so
    taking the best one at a time from the frontier is optimal (the argument of EAGLE-2, arXiv 2406.16858). It comes to this: in the
    order of scores, the older of equals first, take every node whose parent is taken and has not got `topk` children yet.
    """
    if count == 1 or depth <= 0:
        return [ROOT]
    if topk == 1:
        return _chain(tree, min(count, depth + 1))
    near = (tree.positions[1:] <= tree.root_position + depth).nonzero()[0] + 1
    taken = _walk(tree, _likeliest(tree, near, 4 * count + 32), count, topk)
    if len(taken) == count or len(near) <= 4 * count + 32:
        return taken
    return _walk(tree, _likeliest(tree, _eligible(tree, count, topk, depth), count), count, topk)


def best_of_few(tree: Columns, count: int, topk: int, depth: int) -> list[int]:
    """Do what `best` does by a look at each node, which takes less time in a small tree than the calls for arrays."""
    if count == 1 or depth <= 0:
        return [ROOT]
    scores, parents, positions = tree.scores.tolist(), tree.parents.tolist(), tree.positions.tolist()
    children_left, deepest = {ROOT: topk}, positions[ROOT] + depth
    for slot in sorted(range(1, len(scores)), key=scores.__getitem__, reverse=True):  # of equals the older stays first
        parent = parents[slot]
        if positions[slot] <= deepest and children_left.get(parent, 0) > 0:
            children_left[parent] -= 1
            children_left[slot] = topk
            if len(children_left) == count:
                break
    return list(children_left)


def _likeliest(tree: Columns, slots: Ints, count: int) -> Ints:
    return likeliest(slots, tree.scores.take(slots), count)


def _walk(tree: Columns, ranked: Ints, count: int, topk: int, start: Sequence[int] = (ROOT,)) -> list[int]:
    """Take `start` and the first nodes that `best` takes below it, `count` in all, from slots in the order of their scores."""
    children_left = dict.fromkeys(start, topk)
    for slot, parent in zip(ranked.tolist(), tree.parents.take(ranked).tolist(), strict=True):
        if len(children_left) == count:
            break
        if children_left.get(parent, 0) > 0:
            children_left[parent] -= 1
            children_left[slot] = topk
    return list(children_left)


def _chain(tree: Columns, count: int) -> list[int]:
    """Take the root, its best child, the best child of that and so on, `count` in all at most."""
    chain, scores = [ROOT], tree.scores
    while len(chain) < count and tree.has_children(chain[-1]):
        below = tree.below(chain[-1:])
        chain.append(int(below[scores.take(below).argmax()]))
    return chain


def _eligible(tree: Columns, count: int, topk: int, depth: int) -> Ints:
    """List all nodes that `best` might take, ascending: on each level the best `count` below those of the level above.

    This is needed when most of the best-scored nodes hang below ones that are not taken.
    """
    level, found = [ROOT], NO_SLOTS
    for _ in range(depth):
        below = tree.below(level)
        if not len(below):
            break
        ranked = _likeliest(tree, below, len(below))
        level = _walk(tree, ranked, len(level) + count, topk, level)[len(level) :]
        found = np.concatenate((found, level))
    return np.sort(found)


def likeliest(slots: Ints, scores: Scores, count: int) -> Ints:
    """Choose the `count` best-scored of `slots` [n], which ascend, or more if the last are equal: best first, of equals the lower slot."""
    if count < len(slots):
        least = np.partition(scores, len(slots) - count)[len(slots) - count]
        enough: Ints = (scores >= least).nonzero()[0]
        slots, scores = slots.take(enough), scores.take(enough)
    order: Ints = np.argsort(-scores, kind="stable")
    return slots.take(order)
