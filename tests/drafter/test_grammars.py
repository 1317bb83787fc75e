"""A drafter that is told what a session is held to draws what may follow, and one that cannot know draws as if it were held to nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from specsplit.draft_events import Open
from specsplit.values import Constraint, ConstraintKind, Plan, Sampling, Vocabulary
from specsplit_drafter.descent.ranking import Ranking
from specsplit_drafter.drafts.grammars import DraftGrammars, Masks
from tests.support.grammars import LETTERS, allowed_of, write_letters

VOCAB = 16
SESSION, FREE = (1, 1), (1, 2)


def opened(constraint: Constraint | None, *output: int) -> Open:
    tokens = (9, 9, *output)
    return Open(tokens, Sampling(), Plan(), Vocabulary(VOCAB), 64, prompt_tokens=2, constraint=constraint, ends=(15,))


def masks(held: DraftGrammars, *paths: tuple[int, ...]) -> list[set[int]]:
    """What may be drafted behind paths of the session, beside a session that is held to nothing."""
    held.settle()
    future = held.begin([FREE, *[SESSION] * len(paths)], [(), *paths])
    if future is None:
        return []
    found = future.result()
    assert found.rows.tolist() == list(range(1, 1 + len(paths)))
    return [allowed_of(row, VOCAB) for row in found.words]


@pytest.fixture
def held(tmp_path: Path) -> DraftGrammars:
    return DraftGrammars(write_letters(tmp_path, VOCAB), VOCAB).read()


def begin(held: DraftGrammars, event: Open) -> None:
    held.open(SESSION, event)
    held._compiling.submit(int).result(60)  # pyright: ignore[reportPrivateUsage]  # what was begun is done then


def test_masks_follow_the_path_the_output_before_and_the_commits(held: DraftGrammars) -> None:
    begin(held, opened(LETTERS[1], 0, 1, 2))  # abc of (ab|c)+
    assert masks(held, (), (0,), (2, 2)) == [{0, 2, 15}, {1}, {0, 2, 15}]
    held.commit(SESSION, [0])
    assert masks(held, (), (1,)) == [{1}, {0, 2, 15}]
    held.commit(SESSION, [1, 2])
    assert masks(held, (2,), (5,)) == [{0, 2, 15}, set()]
    held.close(SESSION)
    assert masks(held, ()) == []


def test_where_something_has_to_follow_that_is_drafted(held: DraftGrammars) -> None:
    begin(held, opened(LETTERS[2]))  # a{2,3}
    assert masks(held, (), (0,), (0, 0), (0, 0, 0)) == [{0}, {0}, {0, 15}, set()]


@pytest.mark.parametrize("constraint", [Constraint(ConstraintKind.REGEX, "("), LETTERS[0]])
def test_what_cannot_be_known_is_said_once(
    constraint: Constraint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One cannot be compiled, and for the other there is no tokenizer."""
    held = DraftGrammars(None if constraint is LETTERS[0] else write_letters(tmp_path, VOCAB), VOCAB)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            begin(held, opened(constraint))
            assert masks(held, ()) == []
            held.close(SESSION)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "sessions with a constraint are drafted for as if they had none"
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_what_is_barred_is_no_candidate_and_a_row_that_is_barred_all_over_has_none(temperature: float) -> None:
    ranking = Ranking(4, VOCAB, torch.device("cpu"))
    for session in (SESSION, FREE):
        ranking.open(session, [1], Sampling(temperature, seed=3))
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    words = torch.tensor([[0b110], [0]], dtype=torch.int32).numpy()
    sessions, positions, paths = [FREE, SESSION, SESSION], [3, 3, 3], [(), (), ()]
    free = ranking.rank(logits, sessions, positions, paths)
    found = ranking.rank(logits, sessions, positions, paths, Masks(torch.tensor([1, 2]).numpy(), words))
    assert found.finite.all()
    assert torch.equal(found.tokens[0], free.tokens[0]) and torch.equal(found.raw[0], free.raw[0])
    assert {*found.tokens[1, :2].tolist()} == {1, 2}
    assert found.raw[1, :2].exp().sum().item() == pytest.approx(1) and (found.raw[1, 2:] == -torch.inf).all()
    assert (found.raw[2] == -torch.inf).all()
