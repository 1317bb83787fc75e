"""Levels drawn in one go beside the same levels drawn one by one, by two proposers of one model."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specsplit.model.lm.runner import ModelRunner
from specsplit.tree import Ints, Scores, as_sent
from specsplit.values import Sampling
from specsplit_drafter.drafts.calibration import DistanceCalibration
from specsplit_drafter.drafts.proposer import Children, DrawnLevel, FrontierPart, Scoring
from specsplit_drafter.kinds.heads import HeadModel
from specsplit_drafter.kinds.model_proposer import ModelProposer
from specsplit_drafter.kinds.standalone import StandaloneModel
from tests.drafter.head_toys import VOCABULARY, event_of, head_of, layout_of
from tests.drafter.toys import Handled, tiny_lm
from tests.support.rounding import APART, assert_same_log_probabilities, spacing

CHILDREN = 6
PROMPTS = (list(range(1, 12)), [5, 9, 2, 7], list(range(3, 30)))
PLANTED = ((0, 20), (1, 21), (1, 22), (0, 23))
"""Parent's id and token of what hangs below the root of every session but the first, and is expanded with its root before."""


def proposer_of(
    name: str, num_slots: int = 2048, device: str = "cpu", prepare: Callable[[ModelRunner], None] = lambda _: None
) -> ModelProposer:
    """`standalone`, `standalone, windows`, whose layers see one, or a head of `head_toys`. `prepare` is called with what runs it."""
    if name.startswith("standalone"):
        model = tiny_lm(num_slots, device=device, window=5 if name == "standalone, windows" else None)
        prepare(model)
        return ModelProposer(StandaloneModel(model), CHILDREN)
    head = HeadModel(head_of(name).to(device), num_slots)
    prepare(head.runners[0])
    return ModelProposer(head, CHILDREN)


def calibration_of(seed: int, distances: int) -> DistanceCalibration:
    """One that has seen a few picks, which were not what the draft had thought."""
    calibration, chance = DistanceCalibration(distances), random.Random(seed)
    for _ in range(60):
        raw = np.log(np.array([chance.uniform(0.3, 0.9), chance.uniform(0.01, 0.3)]))
        calibration.observe(raw, chance.choice([0, 1, None]), chance.randrange(distances))
    return calibration


class Twin:
    """Sessions of one proposer, of which the first is at its root and the others at nodes below it."""

    def __init__(self, name: str, proposer: ModelProposer, samplings: Sequence[Sampling]) -> None:
        self.proposer = proposer
        self.calibrations = [calibration_of(number, 3) for number in range(len(samplings))]
        self.sessions = [self._session(name, *each) for each in enumerate(zip(PROMPTS, samplings, strict=False))]

    def _session(self, name: str, number: int, how: tuple[list[int], Sampling]) -> Handled:
        prompt, sampling = how
        session = Handled(self.proposer, prompt, (1, number), sampling)
        if not name.startswith("standalone"):
            head = head_of(name)
            self.proposer.feed(session.key, event_of(head, prompt, 0, len(prompt) - 1), layout_of(head))
        if number:
            session.grow(*PLANTED)
            for ids in ((), (1,)):
                assert session.expand(*ids) is not None
        return session

    def frontiers(self, width: int) -> list[FrontierPart]:
        """What is expanded first: a root of the first session, and of the others nodes of several depths."""
        ids = [(), *[(2, 3, 4)[: number + 1] for number in range(1, len(self.sessions))]]
        return [
            FrontierPart(part.session, part.slots, self.scoring(number, part.slots, width))
            for number, part in enumerate(self.sessions[number].frontier(*each) for number, each in enumerate(ids))
        ]

    def scoring(self, number: int, slots: Ints, width: int) -> Scoring:
        """Scores and distances that are not all the same."""
        tree = self.sessions[number].original.tree
        depths = tree.positions.take(slots) - tree.root_position
        deepest = tree.root_position + (4 if number == 1 else 100)
        return Scoring(tree.log_survivals(slots), depths, self.calibrations[number].shifts, -9.0, deepest, width)

    def positions(self, number: int, slots: Ints) -> Ints:
        """Positions of nodes."""
        return self.sessions[number].original.tree.positions.take(slots)

    def hang(self, number: int, above: Ints, level: DrawnLevel) -> Ints:
        """Make nodes of a level below nodes with these slots; their slots."""
        original = self.sessions[number].original
        parents = above.take(level.parents)
        known = original.tree.children(parents, level.tokens)
        new = (known < 0).nonzero()[0]
        original.grow(parents.take(new), level.tokens.take(new), np.full(len(new), -1.0))
        return original.tree.children(parents, level.tokens)


@dataclass
class Above:
    """The nodes of one session's level, as the host knows them."""

    slots: Ints
    scores: Scores
    distances: Ints
    positions: Ints

    def best(self, children: Children, scoring: Scoring, calibration: DistanceCalibration) -> tuple[Ints, Ints, Scores]:
        """Choose the children that should be drawn: rows of their parents, tokens and scores, likeliest first."""
        raw = children.log_probabilities
        scores = self.scores[:, None] + as_sent(calibration.log_probabilities(raw, self.distances))
        padded_length = np.isfinite(raw) & (scores >= scoring.floor) & (self.positions[:, None] + 1 < scoring.deepest)
        rows, columns = padded_length.nonzero()
        order = np.argsort(-scores[rows, columns], kind="stable")[: scoring.width]
        rows, columns = rows[order], columns[order]
        return rows, children.tokens[rows, columns], scores[rows, columns]

    def below(self, slots: Ints, rows: Ints, scores: Scores) -> Above:
        """Go on with nodes below these rows."""
        return Above(slots, scores, self.distances[rows] + 1, self.positions[rows] + 1)


def compare(ours: Children, theirs: Children, tokens: int, apart: float) -> None:
    """Log-probabilities are near. Tokens are equal, but where one is as likely as its neighbour."""
    assert_same_log_probabilities(ours.log_probabilities, theirs.log_probabilities, tokens, apart)
    tolerance = apart * spacing(theirs.log_probabilities, math.log(tokens)).numpy()
    steps = np.diff(np.maximum(theirs.log_probabilities, -1e9), axis=1, append=-1e10, prepend=1e10)
    clear = (steps[:, 1:] < -2 * tolerance) & (steps[:, :-1] < -2 * tolerance)
    clear[:, -1] = False  # the next one, which is not there, may be as likely
    assert clear.mean() > 0.5
    assert ours.tokens[clear].tolist() == theirs.tokens[clear].tolist()


def check(one: Twin, other: Twin, levels: int, width: int, apart: float = APART) -> list[Children]:
    """Draw levels in one go, and by one call after the other whose frontiers are the same choice: what the first has found."""
    frontiers = one.frontiers(width)
    found = [children for children in one.proposer.expand(frontiers, levels) if isinstance(children, Children)]
    assert len(found) == len(frontiers)
    theirs = other.proposer.expand(other.frontiers(width))
    above = {
        number: Above(part.slots, part.scoring.scores, part.scoring.distances, other.positions(number, part.slots))
        for number, part in enumerate(frontiers)
        if part.scoring is not None
    }
    for depth in range(levels):
        chosen: dict[int, Above] = {}
        for number, children in zip(above, theirs, strict=True):
            assert isinstance(children, Children)
            scoring, ours = frontiers[number].scoring, found[number]
            assert scoring is not None
            drawn = ours.levels[depth - 1].children if depth else ours
            compare(drawn, children, VOCABULARY.size, apart)
            rows, tokens, scores = above[number].best(drawn, scoring, other.calibrations[number])
            if depth == levels - 1 or not len(rows):
                assert len(ours.levels) == depth
                continue
            level = ours.levels[depth]
            assert (level.parents.tolist(), level.tokens.tolist()) == (rows.tolist(), tokens.tolist())
            chosen[number] = above[number].below(other.hang(number, above[number].slots, level), rows, scores)
        above = chosen
        theirs = other.proposer.expand([FrontierPart((1, number), nodes.slots) for number, nodes in above.items()])
    return found
