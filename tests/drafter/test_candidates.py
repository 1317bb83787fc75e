"""What is kept of an expansion."""

from __future__ import annotations

import weakref

import numpy as np

from specsplit.tree import ROOT, TokenTree
from specsplit_drafter.drafts.calibration import DistanceCalibration
from specsplit_drafter.drafts.proposer import Children, DrawnLevel
from specsplit_drafter.growth.candidates import CandidatePool


def test_of_an_expansion_of_several_levels_each_node_keeps_its_own_children_and_nothing_of_what_came_with_them() -> (
    None
):
    tokens, raw = np.array([[1, 2]]), np.array([[-0.5, -1.0]])
    copied = np.zeros(64)  # what came from the device in one piece
    level = DrawnLevel(np.array([0]), np.array([1]), Children(tokens, copied[:2].reshape(1, 2)))
    tree = TokenTree(7, 3)
    pool, held = CandidatePool(tree, DistanceCalibration()), weakref.ref(copied)
    pool.add(np.array([ROOT]), Children(tokens, raw, [level]), np.array([0]))
    del copied, level
    assert held() is None
    pool.learn(ROOT, 1)
