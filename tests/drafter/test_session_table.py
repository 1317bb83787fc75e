from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from specsplit.draft_events import Close
from specsplit.errors import Exhausted, IllegalEvent, Incompatible, InvalidRequest, SpecsplitError, Unavailable
from specsplit.speculation import Commit, Grow
from specsplit.values import Plan, Vocabulary
from specsplit_drafter.engine.session_table import SessionEvent, SessionTable
from specsplit_drafter.kinds.ngram import NgramProposer
from tests.drafter.toys import (
    CAT,
    IN,
    IS,
    MAT,
    ON,
    RUG,
    SAT,
    THE,
    A,
    Distribution,
    TableProposer,
    Verifier,
    deliver,
    open_event,
    run_until_all_rest,
    table_of,
)
from tests.support.trees import Seen

EXAMPLE: dict[tuple[int, ...], Distribution] = {
    (THE, CAT): {SAT: 0.6, IS: 0.38},
    (THE, CAT, SAT): {ON: 0.8, IN: 0.2},
    (THE, CAT, IS): {A: 0.3},
    (THE, CAT, SAT, ON): {THE: 0.78},
    (THE, CAT, SAT, ON, THE): {MAT: 0.25, RUG: 0.1},
}


def example_table(sequence: Sequence[int]) -> Distribution:
    return EXAMPLE.get(tuple(sequence), {})


def refusals(table: SessionTable) -> dict[tuple[int, int], SpecsplitError]:
    out = table.outgoing()
    return {(stream, s): e for stream, events in out.items() for s, e in events if isinstance(e, SpecsplitError)}


def test_the_worked_example_is_grown_and_its_commit_is_a_hit() -> None:
    table = table_of(TableProposer(example_table), survival=0.05)
    story = [THE, CAT, SAT, ON, THE, MAT]
    verifier = Verifier(table, (1, 7), [THE, CAT], lambda seen: story[len(seen)] if len(seen) < 6 else RUG)
    run_until_all_rest(table, verifier)
    tokens = {node.token for node in Seen(verifier.mirror.tree).nodes.values()}
    assert tokens == {SAT, IS, ON, IN, THE, A, MAT}
    assert verifier.mirror.preview(5, 4, 5).tokens == [CAT, SAT, ON, IS, THE]
    verifier.plan = Plan(num_draft_tokens=5)
    verifier.step()
    assert verifier.hits == [True]
    assert verifier.committed == story
    assert Seen(table.growth_of((1, 7)).original.tree).root.token == MAT


def test_one_expansion_serves_every_session_and_each_stream_gets_one_message() -> None:
    proposer = TableProposer(lambda _: {0: 0.5, 1: 0.3})
    table = table_of(proposer)
    for stream in (1, 2):
        for session in (1, 2):
            table.handle((stream, session), open_event([THE, CAT]))
    assert table.expand() == 4
    assert {node.session for node in proposer.batches[0]} == {(1, 1), (1, 2), (2, 1), (2, 2)}
    out = table.outgoing()
    assert {stream: [session for session, _ in events] for stream, events in out.items()} == {1: [1, 2], 2: [1, 2]}


def test_an_expansion_is_no_wider_than_its_limit() -> None:
    proposer = TableProposer(lambda _: dict.fromkeys(range(5), 0.2))
    table = table_of(proposer, width=4)
    verifier = Verifier(table, (1, 1), [THE], lambda _: 0)
    run_until_all_rest(table, verifier)
    assert max(len(batch) for batch in proposer.batches) == 4


@pytest.mark.parametrize(
    ("event", "error", "words"),
    [
        (Commit(2, 0, (SAT,)), IllegalEvent, "number is 2, expected 1"),
        (Commit(1, 99, (SAT,)), IllegalEvent, "deepest node 99 is not live"),
        (Commit(1, 0, (SAT, ON)), IllegalEvent, "are not the path"),
        (Commit(1, 0, (9,)), InvalidRequest, "outside the vocabulary of 9"),
        (open_event([THE]), IllegalEvent, "open already"),
        (InvalidRequest("commit.token_ids", "is empty"), InvalidRequest, "is empty"),
    ],
)
def test_a_wrong_event_ends_its_own_session_and_no_other(
    event: SessionEvent, error: type[SpecsplitError], words: str
) -> None:
    table = table_of(TableProposer(lambda _: {0: 0.5}))
    for session in (1, 2):
        table.handle((1, session), open_event([THE, CAT]))
    table.expand()
    table.outgoing()
    table.handle((1, 1), event)
    found = refusals(table)
    assert list(found) == [(1, 1)]
    assert type(found[1, 1]) is error
    assert words in str(found[1, 1])
    assert table.num_sessions == 1
    table.handle((1, 1), Commit(1, 0, (SAT,)))  # on its way when the session ended
    table.handle((1, 1), Close())
    assert refusals(table) == {}


def test_a_commit_of_a_session_never_opened_is_refused() -> None:
    table = table_of(TableProposer(lambda _: {}))
    table.handle((1, 5), Commit(1, 0, (SAT,)))
    assert isinstance(refusals(table)[1, 5], IllegalEvent)


def test_a_vocabulary_that_does_not_fit_is_refused_naming_both_sides() -> None:
    table = table_of(TableProposer(lambda _: {}, Vocabulary(9, "ab" * 32)))
    table.handle((1, 1), open_event([THE], vocabulary=Vocabulary(9, "cd" * 32)))
    error = refusals(table)[1, 1]
    assert isinstance(error, Incompatible)
    assert "abababab" in str(error)
    assert "cdcdcdcd" in str(error)
    assert table.num_sessions == 0


def test_an_ngram_drafter_fits_any_vocabulary() -> None:
    table = table_of(NgramProposer(children=4))
    table.handle((1, 1), open_event([1, 2, 3, 1], vocabulary=Vocabulary(12345, "cd" * 32)))
    table.expand()
    ((_, grow),) = table.outgoing()[1]
    assert isinstance(grow, Grow)
    assert list(grow.tokens[:2]) == [2, 3]


def test_the_proposer_hears_whose_each_session_is() -> None:
    table = table_of(proposer := TableProposer(example_table))
    for session, scope in enumerate((b"alice", b"", b"bob", b"alice")):
        table.handle((1, session), replace(open_event([THE, CAT]), scope=scope))
    assert [proposer.scopes[1, session] for session in range(4)] == [b"alice", b"", b"bob", b"alice"]


def test_no_more_sessions_are_taken_than_the_limit_nor_while_draining() -> None:
    table = table_of(TableProposer(lambda _: {}), max_sessions=1)
    table.handle((1, 1), open_event([THE]))
    table.handle((1, 2), open_event([THE]))
    assert isinstance(refusals(table)[1, 2], Exhausted)
    table.draining = True
    table.handle((1, 1), Close())
    table.handle((1, 3), open_event([THE]))
    assert isinstance(refusals(table)[1, 3], Unavailable)


def test_a_lost_stream_takes_its_sessions_and_leaves_those_of_others() -> None:
    proposer = TableProposer(lambda _: {0: 0.5})
    table = table_of(proposer)
    for key in ((1, 1), (1, 2), (2, 1)):
        table.handle(key, open_event([THE]))
    table.close_stream(1)
    assert table.num_sessions == 1
    assert list(proposer.sessions) == [(2, 1)]
    assert list(table.outgoing()) in ([], [2])


@pytest.mark.parametrize("draft_ahead", [True, False])
def test_scores_agree_with_what_is_accepted_over_a_run(draft_ahead: bool) -> None:
    """The draft is overconfident: it gives its first choice 0.9 where the target takes it 0.6 of the time, after any two tokens."""
    noise = random.Random(5)
    follow = {(a, b): noise.sample(range(9), 4) for a in range(9) for b in range(9)}

    def draft(sequence: Sequence[int]) -> Distribution:
        first, second, third, _ = follow[sequence[-2], sequence[-1]]
        return {first: 0.9, second: 0.06, third: 0.03}

    def target(sequence: Sequence[int]) -> int:
        choice = random.Random(repr((len(sequence), *sequence[-4:]))).choices(range(4), [0.6, 0.2, 0.15, 0.05])[0]
        return follow[sequence[-2], sequence[-1]][choice]

    table = table_of(TableProposer(draft))
    plan = Plan(num_steps=3, num_draft_tokens=12, draft_ahead=draft_ahead)
    verifier = Verifier(table, (1, 1), [THE, CAT], target, plan=plan, max_nodes=128)
    for _ in range(400):
        run_until_all_rest(table, verifier)
        verifier.step()
    late = verifier.verified[len(verifier.verified) // 2 :]
    for low, high in ((-9.0, -1.6), (-1.6, -0.7), (-0.7, 0.0)):
        edge = [(pow(2.718281828, s), a) for s, a in late if low < s <= high]
        if len(edge) > 100:
            predicted, observed = sum(p for p, _ in edge) / len(edge), sum(a for _, a in edge) / len(edge)
            assert observed > 0
            assert predicted == pytest.approx(observed, abs=0.1)


def test_hits_are_common_when_breadth_is_drafted_ahead() -> None:
    def draft(sequence: Sequence[int]) -> Distribution:
        first = (sequence[-1] + 1) % 9
        return {first: 0.5, (first + 1) % 9: 0.3, (first + 2) % 9: 0.2}

    choices = random.Random(3)
    table = table_of(TableProposer(draft))
    verifier = Verifier(table, (1, 1), [THE], lambda seen: (seen[-1] + choices.choice([1, 1, 2, 3])) % 9, max_nodes=256)
    for _ in range(60):
        for _ in range(4):  # expansions that fit in a step
            table.expand()
            deliver(table, verifier)
        verifier.step()
    assert sum(verifier.hits) / len(verifier.hits) > 0.75


def test_expansions_that_cost_next_to_nothing_are_told_of_together() -> None:
    table = table_of(TableProposer(lambda sequence: {(sequence[-1] + 1) % 9: 0.9}))
    table.handle((1, 1), open_event([1]))
    assert table.expansions_per_message == 1, "nothing is known yet"
    table.expand()
    table.expansion_cost.observe(0.0001)
    assert table.expansions_per_message == 10
    for _ in range(table.expansions_per_message):
        table.expand()
    ((_, grow),) = table.outgoing()[1]
    assert isinstance(grow, Grow)
    assert list(grow.tokens[:5]) == [2, 3, 4, 5, 6]


def test_what_is_read_of_a_context_counts_as_rows_of_an_expansion() -> None:
    proposer = TableProposer(lambda _: {0: 0.5})
    unread = {True: 7, False: 0}
    proposer.pending = lambda session: unread[not proposer.batches]
    table = table_of(proposer)
    table.handle((1, 1), open_event([THE, CAT]))
    assert table.expand() == 1
    assert table.expansion_cost.rows == 8


def test_a_chain_of_sixteen_is_reached_in_two_messages_where_an_expansion_costs_a_tenth_of_a_millisecond() -> None:
    table = table_of(TableProposer(lambda sequence: {(sequence[-1] + 1) % 9: 0.9}), survival=1e-9)
    table.handle((1, 1), open_event([1], plan=Plan(num_steps=16), max_nodes=1000))
    table.expand()
    table.expansion_cost.observe(0.0001)
    for _ in range(2):
        for _ in range(table.expansions_per_message):
            table.expand()
        assert table.outgoing()
    tree = table.growth_of((1, 1)).original.tree
    assert tree.positions.max() - tree.root_position >= 16
