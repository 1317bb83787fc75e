from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch

from specsplit.draft_events import Open
from specsplit.errors import Exhausted, Incompatible
from specsplit.tree import Ints, TokenTree
from specsplit.values import Plan, Sampling
from specsplit_drafter.drafts.proposer import (
    AppliedCommit,
    Children,
    DrawnLevel,
    ExpansionOutcome,
    FrontierPart,
    SessionKey,
)
from specsplit_drafter.kinds.model_proposer import ModelProposer
from specsplit_drafter.kinds.standalone import StandaloneModel
from tests.drafter.toys import (
    Distribution,
    Handled,
    TableProposer,
    Verifier,
    deliver,
    open_event,
    plain_model,
    run_until_all_rest,
    table_of,
    tiny_config,
    tiny_lm,
    windowed_config,
)
from tests.support.rounding import assert_same_log_probabilities
from tests.support.sampling import expected
from tests.support.trees import Seen

CHILDREN = 6
SAMPLED = Sampling(temperature=1.0, top_k=20, seed=11)
PENALISED = replace(
    SAMPLED,
    logit_bias=((3, 0.5), (7, -100.0)),
    repetition_penalty=1.2,
    frequency_penalty=0.2,
    presence_penalty=0.3,
)
GIVEN = 1
"""Tokens of every session that were not generated: the drafter comes in the middle of a session."""
KEY = (1, 1)


WINDOW = 6


@cache
def plain_logits_of(window: int | None) -> Callable[[Sequence[int]], torch.Tensor]:
    """Logits [1, V] behind a sequence, by transformers alone; of it a token sees `window` tokens, or all."""
    model = plain_model(tiny_config() if window is None else windowed_config(window))

    @cache
    def logits(sequence: tuple[int, ...]) -> torch.Tensor:
        with torch.inference_mode():
            return model(torch.tensor([sequence])).logits[:, -1].float()

    return lambda sequence: logits(tuple(sequence))


class Checked(ModelProposer):
    """Compares all children with the plain model's on the path, whatever has happened to the tree meanwhile."""

    def __init__(
        self,
        plain_logits: Callable[[Sequence[int]], torch.Tensor],
        sampling: Sampling,
        budget: int = 512,
        window: int | None = None,
    ) -> None:
        super().__init__(StandaloneModel(tiny_lm(window=window)), CHILDREN, budget)
        self.compared = self.drawn = 0
        self.levels: dict[SessionKey, Sequence[DrawnLevel]] = {}
        self.other = TableProposer(lambda sequence: self._table(plain_logits(sequence), sampling, sequence))

    @staticmethod
    def _table(logits: torch.Tensor, sampling: Sampling, sequence: Sequence[int]) -> Distribution:
        with torch.inference_mode():
            found = expected(logits, sampling, sequence, GIVEN).log_softmax(-1)[0].double().exp()
        return {token: float(found[token]) for token in range(len(found)) if found[token] > 0}

    def open(self, session: SessionKey, tree: TokenTree, opened: Open) -> None:
        super().open(session, tree, opened)
        self.other.open(session, tree, opened)

    def commit(self, session: SessionKey, applied: AppliedCommit) -> None:
        super().commit(session, applied)
        self.other.commit(session, applied)

    def close(self, session: SessionKey) -> None:
        super().close(session)
        self.other.close(session)

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[ExpansionOutcome]:
        found = super().expand(frontier, levels)
        read = [(part, children) for part, children in zip(frontier, found, strict=True) if children is not None]
        for part, ours in read:
            assert isinstance(ours, Children)
            self.compare(part, ours)
            self.levels[part.session] = ours.levels
        return found

    def assign_levels(self, session: SessionKey, slots: Sequence[Ints]) -> None:
        super().assign_levels(session, slots)
        for level, nodes in zip(self.levels[session], slots, strict=False):
            rows = (nodes >= 0).nonzero()[0]
            self.drawn += len(rows)
            self.compare(FrontierPart(session, nodes.take(rows)), level.children.at(rows))

    def compare(self, part: FrontierPart, ours: Children) -> None:
        (theirs,) = self.other.expand([part])
        assert isinstance(theirs, Children)
        self.compared += len(ours.tokens)
        count = ours.tokens.shape[1]
        assert_same_log_probabilities(
            ours.log_probabilities, theirs.log_probabilities[:, :count], tiny_config().vocab_size
        )
        assert ours.tokens.tolist() == theirs.tokens[:, :count].tolist()


def target_of(
    plain_logits: Callable[[Sequence[int]], torch.Tensor], sampling: Sampling
) -> Callable[[Sequence[int]], int]:
    """Usually picks what the draft model would, so that there are hits and misses."""

    def target(sequence: Sequence[int]) -> int:
        fate = random.Random(repr(tuple(sequence[-3:])))
        if fate.random() < 0.15:
            return fate.randrange(32)
        return int(expected(plain_logits(sequence), sampling, sequence, GIVEN).argmax())

    return target


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), SAMPLED, PENALISED, replace(PENALISED, temperature=0.0)],
    ids=["greedy", "sampled", "sampled with penalties", "greedy with penalties"],
)
@pytest.mark.parametrize(
    ("budget", "levels", "window"),
    [(512, 1, None), (3, 1, None), (512, 4, None), (3, 2, None), (512, 4, WINDOW), (3, 2, WINDOW)],
)
def test_children_are_those_of_the_plain_model_on_every_path_after_hits_and_misses(
    sampling: Sampling, budget: int, levels: int, window: int | None
) -> None:
    plain_logits = plain_logits_of(window)
    proposer = Checked(plain_logits, sampling, budget, window)
    table = table_of(proposer, width=12, survival=0.03, levels=levels)
    vocabulary = proposer.info.vocabulary
    assert vocabulary is not None
    verifiers = [
        Verifier(
            table, (1, number), list(range(1, length)), target_of(plain_logits, sampling),
            plan=Plan(num_steps=3, num_draft_tokens=6), sampling=sampling, vocabulary=vocabulary, prompt_tokens=GIVEN,
        )
        for number, length in ((1, 14), (2, 5), (3, 2))
    ]  # fmt: skip
    timing = random.Random(1)
    for _ in range(16):
        for _ in range(timing.randrange(9)):
            table.expand()
        deliver(table, *verifiers)
        for verifier in verifiers:
            if timing.random() < 0.7:
                verifier.step()
    run_until_all_rest(table, *verifiers)
    hits = [hit for verifier in verifiers for hit in verifier.hits]
    assert any(hits)
    assert not all(hits)
    assert max(len(verifier.committed) for verifier in verifiers) > 20
    assert proposer.compared > 100
    assert (proposer.drawn > 50) == (levels > 1 and not sampling.penalised)
    for verifier in verifiers:
        verifier.close()
    assert proposer.pages.used == 0


def test_every_slot_is_freed_by_close_and_by_commit() -> None:
    proposer = ModelProposer(StandaloneModel(tiny_lm()), CHILDREN)
    session = Handled(proposer, [1, 2, 3])
    assert proposer.pages.used == 3
    session.grow((0, 4), (0, 5), (1, 6))
    session.expand()
    session.expand(1, 2)
    session.expand(3)
    assert proposer.pages.used == 6
    session.commit(0, 4)  # node 2 is dead, node 1 the root
    assert proposer.pages.used == 5
    session.commit(3, 6, 9)  # node 3 accepted, a bonus that was no node
    assert proposer.pages.used == 6
    proposer.close(KEY)
    assert proposer.pages.used == 0


def test_a_session_holds_the_slots_of_its_window_from_its_first_commit_on() -> None:
    proposer = ModelProposer(StandaloneModel(tiny_lm(num_slots=40, window=WINDOW)), CHILDREN)
    session = Handled(proposer, [*range(1, 31)])
    session.expand()
    assert proposer.pages.used == 30
    for token in range(60):
        session.commit(0, token % 32)
        assert proposer.pages.used == WINDOW, "the root, which is not computed yet, and the five before it"
        session.expand()
    proposer.close(KEY)
    assert proposer.pages.used == 0


def test_accepted_nodes_are_not_computed_again() -> None:
    lm = tiny_lm()
    session = Handled(ModelProposer(StandaloneModel(lm), CHILDREN), [1, 2, 3])
    session.grow((0, 4))
    session.expand()
    session.expand(1)
    before = lm.kv.data.clone()
    session.commit(1, 4, 9)
    session.expand()
    changed = (lm.kv.data != before).any(dim=4).any(dim=3).any(dim=1).any(dim=0)
    assert int(changed.sum()) == 1


def test_the_device_is_waited_for_also_where_a_prompt_is_read_and_nothing_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = list[torch.device]()
    monkeypatch.setattr("specsplit_drafter.kinds.model_proposer.wait_for", waits.append)
    session = Handled(ModelProposer(StandaloneModel(tiny_lm()), CHILDREN, context_budget=4), list(range(1, 11)))
    assert [session.expand() is None for _ in range(3)] == [True, True, False]
    assert len(waits) == 2, "the third one ends with a copy to the host"


def test_a_session_whose_commit_does_not_fit_is_refused_and_the_others_go_on() -> None:
    proposer = ModelProposer(StandaloneModel(tiny_lm(num_slots=64)), CHILDREN)
    table = table_of(proposer, survival=0.3)
    vocabulary = proposer.info.vocabulary
    assert vocabulary is not None
    verifiers = [Verifier(table, (1, n), [1] * 20, lambda seen: len(seen) % 32, vocabulary=vocabulary) for n in (1, 2)]
    ended: list[object] = []
    for _ in range(40):
        table.expand()
        for session, event in table.outgoing().get(1, []):
            if isinstance(event, Exhausted):
                ended.append(session)
            elif session not in ended:
                verifiers[session - 1].receive([(session, event)])
        for number, verifier in enumerate(verifiers, start=1):
            if number not in ended:
                verifier.step()
        if ended:
            break
    assert len(ended) == 1
    assert table.num_sessions == 1
    assert proposer.pages.used < 40


def test_a_session_that_the_drafters_context_cannot_hold_is_handed_back_for_another_drafter_to_take() -> None:
    proposer = ModelProposer(StandaloneModel(tiny_lm(max_context=16)), CHILDREN)
    table = table_of(proposer)
    vocabulary = proposer.info.vocabulary
    assert vocabulary is not None
    verifier = Verifier(table, KEY, [1] * 12, lambda _: 3, plan=Plan(num_steps=2), vocabulary=vocabulary)
    while table.num_sessions:
        run_until_all_rest(table, verifier)
        assert all(node.position < 16 for node in Seen(verifier.mirror.tree).nodes.values())
        verifier.step()
    ((_, refusal),) = table.outgoing()[1]
    assert isinstance(refusal, Incompatible)  # room that there is none of now would be asked for again
    assert "context of 16" in str(refusal)
    assert proposer.pages.used == 0
    table.handle((1, 2), open_event([1] * 17, vocabulary=vocabulary))
    ((_, refusal),) = table.outgoing()[1]
    assert isinstance(refusal, Incompatible)
    assert "has 17 tokens" in str(refusal)
