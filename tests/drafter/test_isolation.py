"""What breaks for one session ends that session: the others of the expansion get what they would have got without it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest
import torch

from specsplit.draft_events import Open
from specsplit.errors import SpecsplitError
from specsplit.features import FeatureLayout
from specsplit.model.heads import Head
from specsplit.rpc import code_of
from specsplit.speculation import Commit, Grow
from specsplit.values import Plan, Sampling
from specsplit_drafter.drafts.proposer import Children, FrontierPart, Proposer
from specsplit_drafter.engine.session_table import Answer, SessionTable
from specsplit_drafter.kinds.heads import HeadModel
from specsplit_drafter.kinds.isolation import MOST_FAULTS
from specsplit_drafter.kinds.model_proposer import ModelProposer
from specsplit_drafter.kinds.standalone import StandaloneModel
from tests.drafter.head_toys import HEADS, VOCABULARY, event_of, head_of, layout_of
from tests.drafter.toys import TableProposer, open_event, table_of, tiny_lm
from tests.support.rounding import assert_same_log_probabilities

NAN = 31
"""A token whose embedding is NaN in the drafter."""
NOWHERE = 99
"""A token outside the vocabulary, as only a bug would let through: the forward raises."""
SAMPLED = Sampling(0.8, top_k=9, top_p=0.9, min_p=0.01, seed=4)
PLAN = Plan(num_steps=1, draft_ahead=False)
"""Roots alone are expanded: a node that breaks would end its session too."""


def standalone() -> tuple[Proposer, None]:
    model = tiny_lm()
    embeddings = model.model.get_input_embeddings()
    assert isinstance(embeddings, torch.nn.Embedding)
    embeddings.weight.data[NAN] = torch.nan
    return ModelProposer(StandaloneModel(model), 6), None


def with_head(name: str) -> Callable[[], tuple[Proposer, Head]]:
    def proposer() -> tuple[Proposer, Head]:
        head = head_of(name)
        head.target.embeddings.data[NAN] = torch.nan
        return ModelProposer(HeadModel(head, 512), 6), head

    return proposer


KINDS = {"standalone": standalone, **{name: with_head(name) for name in HEADS}}


def opened(table: SessionTable, head: Head | None, session: int, prompt: Sequence[int], sampling: Sampling) -> None:
    """Open a session; a head gets all of its features, which are the target's and know nothing of what breaks here."""
    layout = FeatureLayout() if head is None else layout_of(head)
    table.handle((1, session), Open(tuple(prompt), sampling, PLAN, VOCABULARY, 64, features=layout))
    if head is not None:
        table.handle((1, session), event_of(head, [min(token, NAN) for token in prompt], 0, len(prompt) - 1))


def answers(table: SessionTable, expansions: int = 1 << 30) -> dict[int, list[Answer]]:
    """By session: everything that is told until all rest."""
    told: dict[int, list[Answer]] = {}
    while expansions and table.expand():
        expansions -= 1
        for session, answer in table.outgoing().get(1, ()):
            told.setdefault(session, []).append(answer)
    for session, answer in table.outgoing().get(1, ()):
        told.setdefault(session, []).append(answer)
    return told


def grown(told: Sequence[Answer]) -> Grow:
    return Grow.merge([answer for answer in told if isinstance(answer, Grow)])


def ended(told: Sequence[Answer]) -> SpecsplitError:
    (error,) = (answer for answer in told if isinstance(answer, SpecsplitError))
    assert told[-1] is error
    return error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("token", "words"), [(NAN, "NaN or infinite"), (NOWHERE, "IndexError")])
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_a_session_that_breaks_ends_alone(kind: str, token: int, words: str, sampling: Sampling) -> None:
    proposer, head = KINDS[kind]()
    table, alone = table_of(proposer), table_of(KINDS[kind]()[0])
    for other in (table, alone):
        opened(other, head, 1, [1, 2, 3, 4], sampling)
        opened(other, head, 3, [5, 6], sampling)
    opened(table, head, 2, [1, 2, token, 4], sampling)
    told, expected = answers(table), answers(alone)
    error = ended(told[2])
    assert code_of(error).name == "INTERNAL"
    assert words in str(error)
    for session in (1, 3):
        ours, theirs = grown(told[session]), grown(expected[session])
        assert ours.ids
        assert (ours.tokens, ours.parents) == (theirs.tokens, theirs.parents)
        assert_same_log_probabilities(ours.edges, theirs.edges, VOCABULARY.size)
        table.handle((1, session), Commit(1, 0, (7,)))
    assert table.num_sessions == 2
    if head is None:
        assert {session: grown(events).commits for session, events in answers(table).items()} == {1: 1, 3: 1}
    table.close_stream(1)
    assert proposer.pages.used == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_token_that_breaks_ends_its_session_alone(kind: str) -> None:
    proposer, head = KINDS[kind]()
    table = table_of(proposer)
    opened(table, head, 1, [1, 2, 3], Sampling())
    opened(table, head, 2, [1, 2, 3], Sampling())
    answers(table)
    for session, bonus in ((1, 7), (2, NAN)):
        table.handle((1, session), Commit(1, 0, (bonus,)))
        if head is not None:
            table.handle((1, session), event_of(head, [1, 2, 3, bonus], 2, 1))
    told = answers(table)
    assert "NaN or infinite" in str(ended(told[2]))
    assert grown(told[1]).commits == 1
    assert grown(told[1]).ids


@pytest.mark.parametrize("kind", ["standalone", "eagle3"])
def test_what_breaks_for_all_of_several_sessions_is_the_drafters_end(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    proposer, head = KINDS[kind]()
    table = table_of(proposer)
    for session in (1, 2):
        opened(table, head, session, [1, NOWHERE, 3], Sampling())
    with pytest.raises(IndexError):
        table.expand()
    assert "an expansion of 2 sessions failed, trying each by itself" in caplog.text


def test_what_breaks_for_one_session_after_another_is_the_drafters_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    table = table_of(standalone()[0])
    for session in range(1, MOST_FAULTS):
        opened(table, None, session, [1, NOWHERE], Sampling())
        ended(answers(table)[session])
    opened(table, None, 50, [1, 2], Sampling())
    assert grown(answers(table)[50]).ids, "and what comes between makes it begin again"
    table.close_stream(1)
    for session in range(101, 100 + MOST_FAULTS):
        opened(table, None, session, [1, NOWHERE], Sampling())
        ended(answers(table)[session])
    opened(table, None, 200, [1, NOWHERE], Sampling())
    with pytest.raises(IndexError):
        table.expand()


class Mangling(TableProposer):
    """For one session it finds one row of children too few."""

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[Children | None]:
        """Lose a row."""
        found = super().expand(frontier, levels)
        return [
            Children(each.tokens[:-1], each.log_probabilities[:-1]) if each and part.session == (1, 2) else each
            for part, each in zip(frontier, found, strict=True)
        ]


def test_a_session_whose_expansion_is_no_tree_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    proposer = Mangling(lambda _: {0: 0.5})
    table = table_of(proposer)
    for session in (1, 2, 3):
        table.handle((1, session), open_event([1, 2]))
    told = answers(table)
    assert code_of(ended(told[2])).name == "INTERNAL"
    assert "session 2 of stream 1: what it drafted is no tree" in caplog.text
    assert grown(told[1]).ids and grown(told[3]).ids == grown(told[1]).ids
    assert list(proposer.sessions) == [(1, 1), (1, 3)]


def test_an_event_that_fails_in_a_way_nobody_thought_of_ends_its_own_session(caplog: pytest.LogCaptureFixture) -> None:
    """An open without tokens: the wire lets none through."""
    proposer = TableProposer(lambda _: {0: 0.5})
    table = table_of(proposer)
    table.handle((1, 1), open_event([1, 2]))
    table.handle((1, 2), open_event([]))
    told = answers(table)
    assert "IndexError" in str(ended(told[2]))
    assert "session 2 of stream 1: an event of it failed" in caplog.text
    assert grown(told[1]).ids
    assert list(proposer.sessions) == [(1, 1)]
