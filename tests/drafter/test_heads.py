from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest
import torch

from specsplit.draft_events import Close, FeaturesRead, Open
from specsplit.errors import IllegalEvent, Incompatible, InvalidRequest, SpecsplitError
from specsplit.features import FeatureFormat, FeatureLayout, FeatureNeed, Features
from specsplit.model import OutOfPages
from specsplit.model.graphs import Buckets
from specsplit.model.heads import Head
from specsplit.model.tensors.feature_codec import encode
from specsplit.records import Eager
from specsplit.speculation import Commit, Grow
from specsplit.tree import ROOT, Ints, Scores, TokenTree
from specsplit.values import Plan, Sampling
from specsplit_drafter.drafts.proposer import (
    AppliedCommit,
    Children,
    DrawnLevel,
    ExpansionOutcome,
    FrontierPart,
    SessionKey,
)
from specsplit_drafter.engine.session_table import Answer, SessionTable
from specsplit_drafter.kinds.heads import HeadModel
from specsplit_drafter.kinds.model_proposer import CONTEXT_BUDGET, ModelProposer
from specsplit_drafter.kinds.ngram import NgramProposer
from specsplit_drafter.kinds.standalone import StandaloneModel
from tests.drafter.head_toys import (
    HEADS,
    VOCABULARY,
    HeadVerifier,
    Known,
    event_of,
    features_of,
    head_of,
    layout_of,
    reference_of,
    run_four,
)
from tests.drafter.toys import Handled, open_event, run_until_all_rest, table_of, tiny_lm
from tests.support.graphs import RecordingCapturer, TorchStatic
from tests.support.rounding import assert_same_log_probabilities
from tests.support.sampling import expected as perturbed

CHILDREN = 6
SAMPLED = Sampling(temperature=1.0, top_k=20, seed=11)
PENALISED = replace(
    SAMPLED, logit_bias=((3, 0.5),), repetition_penalty=1.2, frequency_penalty=0.4, presence_penalty=0.3
)
KEY = (1, 1)
PROMPT = list(range(1, 12))
PLAN = Plan(num_steps=2, num_draft_tokens=4)


class Checked(ModelProposer):
    """Compares all children with the reference's on the path, whatever has happened to the tree meanwhile."""

    def __init__(self, name: str, budget: int = 512, num_slots: int = 2048) -> None:
        self.model = HeadModel(head_of(name), num_slots)
        super().__init__(self.model, CHILDREN, budget)
        self.reference = reference_of(name)
        self.known: dict[SessionKey, Known] = {}
        self.samplings: dict[SessionKey, tuple[Sampling, int]] = {}
        """How a session picks, and how many tokens it began with."""
        self.compared = self.drawn = 0
        self.levels: dict[SessionKey, Sequence[DrawnLevel]] = {}

    def open(self, session: SessionKey, tree: TokenTree, opened: Open) -> None:
        super().open(session, tree, opened)
        self.samplings[session] = opened.sampling, len(opened.tokens)
        self.known[session] = Known(tree, list(opened.tokens))

    def commit(self, session: SessionKey, applied: AppliedCommit) -> None:
        super().commit(session, applied)
        self.known[session].tokens += applied.tokens

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[ExpansionOutcome]:
        found = super().expand(frontier, levels)
        for part, children in zip(frontier, found, strict=True):
            if children is not None:
                assert isinstance(children, Children)
                self.levels[part.session] = children.levels
                self.compare_all(part.session, part.slots, children)
        return found

    def assign_levels(self, session: SessionKey, slots: Sequence[Ints]) -> None:
        super().assign_levels(session, slots)
        known, drawn = self.known[session], set[int]()
        before = dict(known.inputs)
        for level, nodes in zip(self.levels[session], slots, strict=False):
            rows = (nodes >= 0).nonzero()[0]
            self.drawn += len(rows)
            children = level.children.at(rows)
            for slot, *found in zip(
                nodes.take(rows).tolist(), children.tokens, children.log_probabilities, strict=True
            ):
                *above, node = known.path(slot)[0]
                # What is above the frontier's own node may be drawn anew below the root meanwhile: the device saw it as it was.
                own = takewhile(drawn.__contains__, reversed(above))
                after, known.inputs = known.inputs, before | {each: known.inputs[each] for each in own}
                self.compare(session, slot, *found)
                known.inputs = after | {node: known.inputs[node]}
                drawn.add(node)

    def compare_all(self, session: SessionKey, slots: Ints, children: Children) -> None:
        for slot, *found in zip(slots.tolist(), children.tokens, children.log_probabilities, strict=True):
            self.compare(session, slot, *found)

    def compare(self, session: SessionKey, slot: int, tokens: Ints, raw: Scores) -> None:
        known = self.known[session]
        with torch.inference_mode():
            logits = self.reference.logits(known, slot)
            sampling, given = self.samplings[session]
            text = [*known.tokens, *(known.tree.token_of(above) for above in known.tree.path(slot))]
            expected = perturbed(logits, sampling, text, given).log_softmax(-1)[0]
        assert_same_log_probabilities(raw, expected.topk(CHILDREN).values, VOCABULARY.size)
        assert_same_log_probabilities(raw, expected[tokens], VOCABULARY.size)
        self.compared += 1


def proposer_of(
    head: Head, num_slots: int, *, need: FeatureNeed | None = None, context_budget: int = CONTEXT_BUDGET
) -> ModelProposer:
    return ModelProposer(HeadModel(head, num_slots, need), CHILDREN, context_budget)


def run(
    proposer: ModelProposer,
    head: Head,
    *,
    sampling: Sampling | None = None,
    steps: int = 12,
    between: Callable[[int], None] = lambda _: None,
    levels: int = 1,
) -> list[HeadVerifier]:
    table = table_of(proposer, width=12, survival=0.006, levels=levels)
    return run_four(table, head, plan=PLAN, sampling=sampling, steps=steps, most_expansions=8, between=between)


@pytest.mark.parametrize(
    ("name", "sampling", "budget"),
    [
        *((name, Sampling(), 512) for name in HEADS),
        ("eagle3", SAMPLED, 512),
        ("eagle3", SAMPLED, 3),
        ("mimo", SAMPLED, 3),
        ("eagle3", PENALISED, 512),
        ("p-eagle", SAMPLED, 512),
        ("mimo", PENALISED, 3),
    ],
)
def test_children_are_those_of_the_reference_on_every_path_after_hits_and_misses(
    name: str, sampling: Sampling, budget: int
) -> None:
    proposer = Checked(name, budget)
    verifiers = run(proposer, head_of(name), sampling=sampling, steps=16)
    hits = [hit for verifier in verifiers for hit in verifier.hits]
    assert any(hits)
    assert not all(hits)
    assert max(len(verifier.committed) for verifier in verifiers) > 20
    assert proposer.compared > 100
    assert proposer.pages.used == 0


@pytest.mark.parametrize(
    ("name", "sampling", "budget", "levels"),
    [
        ("eagle", Sampling(), 512, 3),
        ("eagle3", SAMPLED, 3, 2),
        ("nextn", Sampling(), 512, 5),
        ("eagle3", Sampling(), 512, 4),
        ("p-eagle", Sampling(), 512, 4),
    ],
)
def test_nodes_that_were_drawn_in_one_go_are_those_of_the_reference_and_so_is_what_grows_below_them(
    name: str, sampling: Sampling, budget: int, levels: int
) -> None:
    proposer = Checked(name, budget)
    run(proposer, head_of(name), sampling=sampling, levels=levels)
    assert proposer.drawn > 50
    assert proposer.compared > proposer.drawn + 50
    assert proposer.pages.used == 0


@pytest.mark.parametrize(("name", "most_tokens"), [("eagle3", 12), ("p-eagle", 12), ("mimo", 8)])
def test_captured_forwards_propose_the_same(name: str, most_tokens: int) -> None:
    proposer, head, buckets = Checked(name), head_of(name), Buckets(most_tokens, 4)
    for step, runner in enumerate(proposer.model.runners):
        how = {"capturer": RecordingCapturer(), "attention": TorchStatic(runner)}
        runner.capture_graphs(buckets, proposer.model.states_of(step), **how)
    run(proposer, head)
    assert proposer.compared > 100
    found = proposer.graphs
    assert found.captured == len(proposer.model.runners) * len(buckets)
    assert found.replayed > 20 and found.eager.get(Eager.SIZE), "the context of some is too long for a bucket"


def begin(proposer: ModelProposer, head: Head, tokens: Sequence[int] = PROMPT, key: SessionKey = KEY) -> Handled:
    """A session with all of its features: its root is ready to be expanded."""
    session = Handled(proposer, tokens, key)
    if len(tokens) > 1:
        proposer.feed(key, event_of(head, tokens, 0, len(tokens) - 1), layout_of(head))
    return session


def follow(proposer: ModelProposer, head: Head, session: Handled, deepest: int, *tokens: int) -> None:
    """A commit and its features."""
    first = len(session.tokens) - 1
    session.commit(deepest, *tokens)
    proposer.feed(KEY, event_of(head, session.tokens, first, len(tokens)), layout_of(head))


@pytest.mark.parametrize("name", HEADS)
def test_survivors_of_a_commit_are_grown_on_as_deep_as_their_new_depth_allows(name: str) -> None:
    proposer, head = Checked(name), head_of(name)
    session = begin(proposer, head)
    session.grow((0, 20), (1, 21), (2, 22), (3, 23))
    session.expand()
    session.expand(1)
    if proposer.max_depth > 2:
        session.expand(2)
        follow(proposer, head, session, 0, 20)
        session.expand()
        session.expand(3)  # was too deep for three steps before
        follow(proposer, head, session, 2, 21, 22)
        session.expand()
        session.expand(4)
        assert proposer.compared == 7
    else:
        follow(proposer, head, session, 0, 20)
        session.expand()
        session.expand(2)
        assert proposer.compared == 4
    proposer.close(KEY)
    assert proposer.pages.used == 0


class RootsChecked(Checked):
    """Compares the children of roots alone."""

    def compare(self, session: SessionKey, slot: int, tokens: Ints, raw: Scores) -> None:
        if slot == ROOT:
            super().compare(session, slot, tokens, raw)


def test_a_head_of_two_layers_is_exact_below_true_features_and_until_they_change_above_a_node() -> None:
    """The second layer's rows of a node are made of what the first saw above it, and are made anew with the node alone."""
    proposer, head = Checked("stacked"), head_of("stacked")
    session = begin(proposer, head)
    session.grow((0, 20), (1, 21), (1, 22), (2, 23))
    for node in ((), (1,), (2, 3), (4,)):
        session.expand(*node)
    assert proposer.compared == 5
    follow(proposer, head, session, 2, 20, 21, 9)
    session.expand()
    assert proposer.compared == 6
    checked = RootsChecked("stacked")
    verifiers = run(checked, head, steps=16)
    assert checked.compared > 20
    assert any(hit for verifier in verifiers for hit in verifier.hits)
    assert checked.pages.used == 0


def test_two_commits_may_come_before_the_features_of_the_first() -> None:
    for name in HEADS:
        proposer, head = Checked(name), head_of(name)
        session = begin(proposer, head)
        session.grow((0, 20), (1, 21), (2, 22))
        session.expand()
        session.expand(1)
        session.commit(0, 20)
        session.commit(0, 21)
        assert proposer.stalled(KEY)
        proposer.feed(KEY, event_of(head, session.tokens, 10, 1), layout_of(head))
        assert session.expand() is None
        assert proposer.stalled(KEY)
        proposer.feed(KEY, event_of(head, session.tokens, 11, 1), layout_of(head))
        assert session.expand() is not None
        session.expand(3)
        assert proposer.compared == 4


@pytest.mark.parametrize("name", [name for name in HEADS if head_of(name).shape.num_steps != 2])
def test_a_root_and_nodes_far_below_it_are_expanded_together_as_soon_as_the_features_are_there(name: str) -> None:
    proposer, head = Checked(name), head_of(name)
    assert proposer.shares_root
    session = begin(proposer, head)
    session.grow((0, 20), (1, 21), (2, 22), (2, 23))
    session.expand()
    session.expand(1)
    session.expand(2)
    session.commit(0, 20)
    proposer.feed(KEY, event_of(head, session.tokens, 10, 1), layout_of(head))
    other = begin(proposer, head, PROMPT[:5], (1, 2))
    for found in proposer.expand([session.frontier(1, 3, 4), other.frontier()]):  # the root has the id it had as a node
        assert found is not None
    assert proposer.compared == 3 + 3 + 1
    proposer.close(KEY)
    proposer.close((1, 2))
    assert proposer.pages.used == 0


@pytest.mark.parametrize("name", [name for name in HEADS if head_of(name).shape.recurrent])
def test_nodes_beside_a_root_wait_with_it_for_features(name: str) -> None:
    proposer, head = Checked(name), head_of(name)
    session = begin(proposer, head)
    session.grow((0, 20), (1, 21), (2, 22), (3, 23))
    session.expand()
    for node in (1, 2, 3):
        session.expand(node)
    session.commit(1, 20, 21)
    proposer.feed(KEY, event_of(head, session.tokens, 10, 1), layout_of(head))
    assert session.expand(2, 4) is None, "one feature of two is there"
    proposer.feed(KEY, event_of(head, session.tokens, 11, 1), layout_of(head))
    compared = proposer.compared
    assert session.expand(2, 4) is not None
    assert proposer.compared == compared + 2


def changed_slots(model: HeadModel, change: Callable[[], object]) -> list[int]:
    """Slots of each step whose KV another value stands in afterwards."""
    before = [runner.kv.data.clone() for runner in model.runners]
    change()
    return [
        int((runner.kv.data != old).any(dim=4).any(dim=3).any(dim=1).any(dim=0).sum())
        for runner, old in zip(model.runners, before, strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "after_prompt", "after_node", "after_commit"),
    [
        # Of 11 tokens, row k is of the token at position k and later; two of the three committed tokens are expanded nodes.
        ("eagle", [10], [1], [3]),
        ("mimo", [10, 9, 8], [0, 1, 1], [3, 2, 1]),
    ],
)
def test_draft_extend_computes_what_is_guessed_or_missing_in_each_step_and_nothing_else(
    name: str, after_prompt: list[int], after_node: list[int], after_commit: list[int]
) -> None:
    head = head_of(name)
    model = HeadModel(head, 256)
    proposer = ModelProposer(model, CHILDREN)
    session = begin(proposer, head)
    session.grow((0, 20), (1, 21))
    assert changed_slots(model, session.expand) == after_prompt
    assert changed_slots(model, lambda: session.expand(1)) == after_node
    session.expand(2)
    used = proposer.pages.used
    follow(proposer, head, session, 2, 20, 21, 22)
    assert changed_slots(model, session.expand) == after_commit
    assert proposer.pages.used - used == (1 if name == "eagle" else 3 + 2 + 1)
    assert changed_slots(model, lambda: proposer.expand([])) == [0] * head.shape.num_steps


def test_an_expansion_of_nothing_does_nothing_twice_over() -> None:
    for name in HEADS:
        model = HeadModel(head_of(name), 64)
        proposer = ModelProposer(model, CHILDREN)
        assert proposer.expand([]) == []
        assert changed_slots(model, lambda of=proposer: of.expand([])) == [0] * len(model.runners)


class Swapped(Checked):
    """At some moment, two steps get each other's pool."""

    def swap_runners(self) -> None:
        runners = self.model.runners
        runners[0], runners[1] = runners[1], runners[0]

    def swap_kv(self) -> None:
        one, other = (runner.kv.data for runner in self.model.runners[:2])
        kept = one.clone()
        one.copy_(other)
        other.copy_(kept)

    def swap_states(self) -> None:
        states = self.model.states
        states[0], states[1] = states[1], states[0]


@pytest.mark.parametrize(
    ("swap", "when"),
    [(Swapped.swap_runners, 0), (Swapped.swap_runners, 5), (Swapped.swap_kv, 5), (Swapped.swap_states, 5)],
)
def test_pools_of_two_steps_that_are_swapped_are_noticed(swap: Callable[[Swapped], None], when: int) -> None:
    proposer = Swapped("mimo")

    def between(number: int) -> None:
        if number == when:
            swap(proposer)

    with pytest.raises(AssertionError, match="ulp of the largest number"):
        run(proposer, head_of("mimo"), between=between)


def answers(table: SessionTable) -> list[Answer]:
    """What the one session of a table is told."""
    return [answer for _, answer in table.outgoing().get(1, [])]


def test_a_session_without_features_rests_and_stirs_when_they_arrive() -> None:
    head = head_of("eagle")
    table = table_of(proposer_of(head, 256), survival=0.05)
    verifier = HeadVerifier(table, KEY, PROMPT, head, plan=Plan(num_steps=2))
    assert table.expand() == 0
    assert answers(table) == [Grow(0, resting=True)]
    verifier.feed(4)
    assert table.expand() == 1  # the first part of the prompt is read
    assert answers(table) == [FeaturesRead(4)]
    assert table.expand() == 0  # and nothing is tried again before more arrives
    assert answers(table) == []
    verifier.feed()
    assert table.expand() == 1
    read, grow = answers(table)
    assert read == FeaturesRead(10)
    assert isinstance(grow, Grow)
    assert grow.ids
    assert not grow.resting
    verifier.mirror.grow(grow)
    while table.expand():
        pass
    for answer in answers(table):
        assert isinstance(answer, Grow)
        verifier.mirror.grow(answer)
    assert verifier.mirror.resting
    verifier.step()  # its features are withheld
    assert table.expand() == 0
    (grow,) = answers(table)
    assert isinstance(grow, Grow)
    assert (grow.commits, grow.resting) == (1, True)
    verifier.feed()
    assert table.expand() == 1
    assert answers(table)[0] == FeaturesRead(len(verifier.committed) - 1)


@pytest.mark.parametrize("name", HEADS)
def test_a_prompt_of_one_token_is_drafted_for_after_the_first_commit(name: str) -> None:
    head = head_of(name)
    table = table_of(Checked(name), survival=0.05)
    verifier = HeadVerifier(table, KEY, [5], head, plan=PLAN)
    assert run_until_all_rest(table, verifier) == 0
    assert verifier.mirror.resting
    for _ in range(6):
        verifier.step()
        verifier.feed()
        assert run_until_all_rest(table, verifier) > 0
    assert len(verifier.mirror.tree) > 0


def test_a_long_prompt_does_not_keep_other_sessions_waiting_and_is_read_as_it_arrives() -> None:
    head = head_of("mimo")
    proposer = proposer_of(head, 256, context_budget=10)
    long, short = begin(proposer, head, list(range(1, 26)), (1, 1)), begin(proposer, head, [1, 2], (1, 2))
    waiting, done = proposer.expand([long.frontier(), short.frontier()])
    assert waiting is None
    assert done is not None
    assert dict(proposer.take_read()) == {(1, 1): 9, (1, 2): 1}
    assert long.expand() is None
    assert proposer.take_read() == (((1, 1), 19),)
    assert long.expand() is not None
    assert proposer.take_read() == (((1, 1), 24),)
    assert proposer.take_read() == ()


def event(first: int, count: int, *, width: int = 32, fill: float = 0.5) -> Features:
    layout = FeatureLayout(width)
    return Features(first, count, *encode(torch.full((count, width), fill), layout))


NAN = replace(event(0, 1), data=np.full(32, np.nan, dtype=np.float32).tobytes())


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ([event(1, 2)], "features.first: is 1, expected 0"),
        ([event(0, 3), event(2, 3)], "features.first: is 2, expected 3"),
        ([event(0, 3), event(4, 1)], "features.first: is 4, expected 3"),
        ([event(0, 11)], "features.count: is 11 from position 0 on, expected at most 10: the root is at position 10"),
        ([event(0, 3, width=31)], "features.data: has 372 bytes for 3 tokens, expected 128 each (32 x float32)"),
        ([replace(event(0, 1), scales=b"1234")], "features.scales: has 4 bytes, expected 0"),
        ([NAN], "features.data: holds NaN or infinity"),
    ],
)
def test_features_that_are_not_the_next_ones_end_their_session_and_no_other(
    features: Sequence[Features], words: str
) -> None:
    proposer = proposer_of(head_of("eagle"), 256)
    table = table_of(proposer)
    for session in (1, 2):
        table.handle((1, session), open_event(PROMPT, vocabulary=VOCABULARY, features=FeatureLayout(32)))
    table.outgoing()
    for each in features:
        table.handle(KEY, each)
        table.expand()
    told = [answer for answer in answers(table) if not isinstance(answer, FeaturesRead)]
    assert [type(answer) for answer in told] == [InvalidRequest]
    assert words in str(told[0])
    assert table.num_sessions == 1
    table.handle(KEY, event(0, 1))  # on its way when the session ended
    assert answers(table) == []
    table.handle((1, 2), Close())
    assert proposer.pages.used == 0


def refusal(table: SessionTable) -> SpecsplitError:
    (told,) = answers(table)
    assert isinstance(told, SpecsplitError)
    return told


def test_features_of_a_session_never_opened_or_for_a_drafter_that_reads_none_are_refused() -> None:
    table = table_of(NgramProposer(children=4))
    table.handle(KEY, event(0, 1))
    assert isinstance(refusal(table), IllegalEvent)
    table.handle((1, 2), open_event([1, 2, 1]))
    table.outgoing()
    table.handle((1, 2), event(0, 1))
    assert "reads none" in str(refusal(table))


@pytest.mark.parametrize(
    ("need", "offered", "words"),
    [
        (
            None,
            FeatureLayout(48),
            ["reads 96 numbers per token (layers 0, 1, last of a target of width 32)", "gives 48"],
        ),
        (None, FeatureLayout(), ["reads 96 numbers per token", "gives 0"]),
        (FeatureFormat.FP8_E4M3, FeatureLayout(96), ["reads fp8_e4m3", "gives float32"]),
    ],
)
def test_features_that_do_not_fit_are_refused_naming_both_sides(
    need: FeatureFormat | None, offered: FeatureLayout, words: Sequence[str]
) -> None:
    head = head_of("eagle3")
    table = table_of(proposer_of(head, 64, need=replace(head.shape.need, format=need) if need else head.shape.need))
    table.handle(KEY, open_event(PROMPT, vocabulary=VOCABULARY, features=offered))
    error = refusal(table)
    assert isinstance(error, Incompatible)
    assert all(word in str(error) for word in words), error
    table.handle((1, 2), open_event(PROMPT, features=layout_of(head)))
    assert "vocabulary mismatch" in str(refusal(table))
    table = table_of(NgramProposer(children=4))
    table.handle(KEY, open_event(PROMPT, features=FeatureLayout(48)))
    assert "reads 0 numbers per token (none)" in str(refusal(table))


def test_features_that_the_verifier_projected_are_not_fused_again() -> None:
    head = head_of("eagle3")
    need = replace(head.shape.need, projection="ab" * 32, projected_size=32)
    plain, spared = proposer_of(head, 64), proposer_of(head, 64, need=need)
    assert spared.info.features == need
    fused, other = Handled(spared, PROMPT), begin(plain, head)
    with torch.inference_mode():
        rows = head.fuse(features_of(PROMPT[:-1], head.shape.need.layers))
    layout = need.layout(32, FeatureFormat.FLOAT32)
    spared.feed(KEY, Features(0, len(rows), *encode(rows, layout)), layout)
    ours, theirs = fused.expand(), other.expand()
    assert isinstance(ours, Children)
    assert isinstance(theirs, Children)
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert_same_log_probabilities(ours.log_probabilities, theirs.log_probabilities, VOCABULARY.size)


@pytest.mark.parametrize("name", ["eagle", "mimo", "standalone"])
def test_a_context_that_does_not_fit_is_refused_and_takes_nothing(name: str) -> None:
    alone = name == "standalone"
    proposer = ModelProposer(StandaloneModel(tiny_lm(num_slots=64)), 6) if alone else proposer_of(head_of(name), 64)
    with pytest.raises(OutOfPages):
        Handled(proposer, [1] * 66)
    assert proposer.pages.used == 0


def test_a_full_pool_stops_growing_and_not_the_session() -> None:
    head = head_of("mimo")
    proposer = proposer_of(head, 64)
    table = table_of(proposer, survival=0.0001)
    verifier = HeadVerifier(table, KEY, [1] * 57, head, plan=Plan(num_steps=5), max_nodes=500)
    verifier.feed()
    run_until_all_rest(table, verifier)
    assert proposer.free_kv_slots == 0
    assert verifier.mirror.resting
    verifier.close()
    assert proposer.pages.used == 0


def test_a_head_says_what_it_needs() -> None:
    need = FeatureNeed((0, 1, -1), 32)
    assert proposer_of(head_of("eagle3"), 64).info.features == need
    assert proposer_of(head_of("mimo"), 64).max_depth == 3
    assert proposer_of(head_of("eagle"), 64).max_depth > 1000


def test_a_commit_of_a_session_that_fills_the_pool_is_refused_and_frees_everything() -> None:
    head = head_of("mimo")
    proposer = proposer_of(head, 64)
    table = table_of(proposer, survival=0.0001)
    table.handle(KEY, open_event([1] * 62, vocabulary=VOCABULARY, features=layout_of(head)))
    table.outgoing()
    for number in range(1, 9):
        table.handle(KEY, Commit(number, 0, (3,)))
    assert isinstance(answers(table)[-1], OutOfPages)
    assert proposer.pages.used == 0
