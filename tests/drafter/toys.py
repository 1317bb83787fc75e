"""Small stand-ins with which a drafter can be tested by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from specsplit.draft_events import Close, FeaturesRead, Open
from specsplit.features import FeatureLayout
from specsplit.model import CausalLM
from specsplit.model.attention.interface import NAME
from specsplit.speculation import Commit, Grow, Mirror, Original
from specsplit.tree import ROOT, TokenTree
from specsplit.values import DrafterInfo, DrafterKind, Host, ModelInfo, Plan, Sampling, Vocabulary
from specsplit_drafter.drafts.proposer import (
    AppliedCommit,
    Children,
    ExpansionOutcome,
    FrontierPart,
    Proposer,
    ProposerDefaults,
    ProposerPages,
    SessionKey,
)
from specsplit_drafter.engine.session_table import SessionTable, TableLimits
from specsplit_drafter.growth.cost_benefit import DEFAULT_ACCEPT_LENGTH, DEFAULT_STEP_S
from specsplit_drafter.growth.level_cost import LevelCost
from tests.support.ticking import TickingClock
from tests.support.trees import NewNode, grow_nodes

THE, CAT, SAT, IS, ON, IN, A, MAT, RUG = range(9)
WORDS = Vocabulary(9)

Distribution = Mapping[int, float]
"""Token -> probability, of those that may follow."""


def children(distribution: Distribution) -> Children:
    """Candidates with these raw probabilities."""
    return children_of([distribution])


def children_of(distributions: Sequence[Distribution]) -> Children:
    """Candidates of several nodes."""
    ranked = [sorted(distribution.items(), key=lambda item: -item[1]) for distribution in distributions]
    return Children.of([[(token, math.log(probability)) for token, probability in row] for row in ranked])


class Asked(NamedTuple):
    """A node that a proposer was asked for."""

    session: SessionKey
    token: int
    position: int


class TableProposer(ProposerDefaults):
    """Proposes what a function of the whole sequence says, and notes every batch it was given."""

    def __init__(self, table: Callable[[Sequence[int]], Distribution], vocabulary: Vocabulary = WORDS) -> None:
        self.info = DrafterInfo(DrafterKind.STANDALONE, "table", vocabulary, 10_000)
        self.pages = ProposerPages(0, 0)
        self.free_kv_slots = 1 << 30
        self.batches: list[list[Asked]] = []
        self.sessions: dict[SessionKey, list[int]] = {}
        self.scopes: dict[SessionKey, bytes] = {}
        self._trees: dict[SessionKey, TokenTree] = {}
        self._table = table

    def open(self, session: SessionKey, tree: TokenTree, opened: Open) -> None:
        """Keep the tokens, and whose they are."""
        self.sessions[session], self._trees[session] = list(opened.tokens), tree
        self.scopes[session] = opened.scope

    def commit(self, session: SessionKey, applied: AppliedCommit) -> None:
        """Keep the tokens."""
        self.sessions[session] += applied.tokens

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[Children | None]:
        """Look each node's sequence up."""
        self.batches.append([])
        return [children_of([self._look_up(part.session, slot) for slot in part.slots.tolist()]) for part in frontier]

    def pending(self, session: SessionKey) -> int:
        """Nothing: there is nothing to read."""
        return 0

    def close(self, session: SessionKey) -> None:
        """Forget."""
        del self.sessions[session]

    def _look_up(self, session: SessionKey, slot: int) -> Distribution:
        tree = self._trees[session]
        self.batches[-1].append(Asked(session, tree.token_of(slot), int(tree.positions[slot])))
        sequence = [*self.sessions[session], *(tree.token_of(above) for above in tree.path(slot))]
        assert sequence[-1] == tree.token_of(slot)
        assert len(sequence) - 1 == tree.positions[slot]
        return self._table(sequence)


class Handled:
    """One session of a proposer, driven by hand: a tree grown, expanded and committed node by node, by ids from 1."""

    def __init__(
        self, proposer: Proposer, tokens: Sequence[int], key: SessionKey = (1, 1), sampling: Sampling | None = None
    ) -> None:
        self.key = key
        self.tokens = list(tokens)
        self.original = Original(key[1], tokens[-1], len(tokens) - 1, 64)
        self._proposer = proposer
        proposer.open(key, self.original.tree, Open(tokens, sampling or Sampling(), Plan(), WORDS, 64))

    def grow(self, *nodes: tuple[int, int]) -> None:
        """Hang nodes, each below a parent's id, with a token."""
        for parent, token in nodes:
            grow_nodes(self.original, [NewNode(parent, token, -1.0)])

    def frontier(self, *ids: int) -> FrontierPart:
        """Nodes that are to be expanded; the root if there are none."""
        slots = [self.original.tree.slot(node_id) for node_id in ids] or [ROOT]
        return FrontierPart(self.key, np.array(slots, dtype=np.int64))

    def expand(self, *ids: int) -> ExpansionOutcome:
        """Expand nodes, or the root, in a batch of their own."""
        (found,) = self._proposer.expand([self.frontier(*ids)])
        return found

    def commit(self, deepest: int, *tokens: int) -> None:
        """Accept the path down to a node (0: none), and a bonus behind it."""
        commit = Commit(self.original.commits + 1, deepest, tokens)
        path = self.original.path_of(commit)
        self._proposer.commit(self.key, AppliedCommit(tokens, path, self.original.commit(commit).new_slots))
        self.tokens += tokens


class Verifier:
    """One session of a scripted verifier over a table, with nothing in between: the target is a function of the sequence."""

    def __init__(
        self,
        table: SessionTable,
        session: SessionKey,
        prompt: Sequence[int],
        target: Callable[[Sequence[int]], int],
        *,
        plan: Plan | None = None,
        sampling: Sampling | None = None,
        max_nodes: int = 64,
        vocabulary: Vocabulary = WORDS,
        features: FeatureLayout | None = None,
        prompt_tokens: int = 0,
    ) -> None:
        self.plan = plan or Plan()
        self.committed = list(prompt)
        self.mirror = Mirror(session[1], prompt[-1], len(prompt) - 1, max_nodes, vocabulary.size)
        self.verified: list[tuple[float, bool]] = []
        """(predicted survival, accepted) of every verified node."""
        self.hits: list[bool] = []
        self.grows: list[Grow] = []
        self.read: list[int] = []
        """Positions up to which features were said to be read."""
        self._table, self._session, self._target = table, session, target
        layout = features or FeatureLayout()
        opened = Open(
            tuple(prompt), sampling or Sampling(), self.plan, vocabulary, max_nodes,
            features=layout, prompt_tokens=prompt_tokens,
        )  # fmt: skip
        table.handle(session, opened)

    def receive(self, events: Sequence[tuple[int, object]]) -> None:
        """What the table sent for this stream; a refusal is raised."""
        for session, event in events:
            if session != self._session[1]:
                continue
            match event:
                case Grow():
                    self.grows.append(event)
                    self.mirror.grow(event)
                case FeaturesRead():
                    self.read.append(event.position)
                case _:
                    raise AssertionError(event)

    def step(self) -> None:
        """Take, walk, commit."""
        plan = self.plan
        draft = self.mirror.take(plan.num_draft_tokens, plan.topk, plan.num_steps)
        sequences: list[list[int]] = []
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            sequences.append([*sequences[parent], token] if parent >= 0 else list(self.committed))
        picks = [self._target(sequence) for sequence in sequences]
        path = draft.accept(picks)
        self.verified += [(draft.log_survivals[i], i in path) for i in range(1, len(draft.ids))]
        commit, hit = self.mirror.commit(draft, path, picks[path[-1]])
        self.hits.append(hit)
        self.committed += commit.tokens
        self._table.handle(self._session, commit)

    def close(self) -> None:
        """End the session."""
        self._table.handle(self._session, Close())


def run_until_all_rest(table: SessionTable, *verifiers: Verifier) -> int:
    """Expand and deliver until nothing is left to do; how many expansions it took."""
    expansions = 0
    while True:
        count = table.expand()
        deliver(table, *verifiers)
        if not count:
            return expansions
        expansions += 1


def deliver(table: SessionTable, *verifiers: Verifier) -> None:
    """Everything the table has to say, to whom it concerns (one stream)."""
    for events in table.outgoing().values():
        for verifier in verifiers:
            verifier.receive(events)


class Always(LevelCost):
    """Draws as many levels as there may be, whatever they cost."""

    def choose(self, most: int, alone_s: float, step_s: float) -> int:
        return most


def table_of(
    proposer: Proposer,
    *,
    width: int = 64,
    survival: float = 0.002,
    max_sessions: int = 8,
    levels: int = 1,
    host: Host | None = None,
) -> SessionTable:
    """A table with these limits, whose expansions draw so many levels."""
    limits = TableLimits(max_sessions, width, price_s(survival) * 1e6, levels, host or Host())
    table = SessionTable(proposer, limits, TickingClock())
    table.expansion_cost.level_cost = Always()
    return table


def price_s(survival: float) -> float:
    """At this price a session that has committed nothing yet has this floor of survival."""
    return survival * DEFAULT_STEP_S / DEFAULT_ACCEPT_LENGTH


_TINY: Final[dict[str, Any]] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "initializer_range": 0.3,  # large weights make every token of the context matter
}


def tiny_config(max_context: int = 128) -> LlamaConfig:
    """A Llama that a test can afford."""
    return LlamaConfig(max_position_embeddings=max_context, **_TINY)


def windowed_config(window: int, max_context: int = 128) -> MistralConfig:
    """A Mistral of which a token sees `window` tokens."""
    return MistralConfig(max_position_embeddings=max_context, sliding_window=window, **_TINY)


def plain_model(config: LlamaConfig | MistralConfig) -> LlamaForCausalLM | MistralForCausalLM:
    """With random weights, always the same."""
    torch.manual_seed(20)
    made = LlamaForCausalLM(config) if isinstance(config, LlamaConfig) else MistralForCausalLM(config)
    return made.eval()


def tiny_lm(num_slots: int = 2048, max_context: int = 128, device: str = "cpu", window: int | None = None) -> CausalLM:
    """The plain model served from slots of one token."""
    config = tiny_config(max_context) if window is None else windowed_config(window, max_context)
    with torch.device(device):
        model = plain_model(config)
    model.load_state_dict(plain_model(config).state_dict())
    model.config._attn_implementation = NAME  # pyright: ignore[reportPrivateUsage]
    info = ModelInfo("tiny", Vocabulary(config.vocab_size), max_context)
    return CausalLM(model, info, num_pages=num_slots, page_size=1)


def open_event(
    tokens: Sequence[int],
    *,
    vocabulary: Vocabulary = WORDS,
    max_nodes: int = 64,
    plan: Plan | None = None,
    features: FeatureLayout | None = None,
) -> Open:
    """A greedy session."""
    layout = features or FeatureLayout()
    return Open(tuple(tokens), Sampling(), plan or Plan(), vocabulary, max_nodes, features=layout)
