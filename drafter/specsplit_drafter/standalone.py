"""The drafter with a small language model of the target's vocabulary.

Every token of a session has a KV slot of its own (pages of one), so that a tree costs no copying: an expanded node keeps its slot for
life; if it is accepted, the slot is appended to the context's table, and if it dies, the slot goes back to the pool.

    context   the committed tokens, root included; `computed` of them, from the front, have their KV
    tree      expanded nodes below the root, all of which have their KV

A node has its KV only if its parent has. So of an accepted path the expanded part comes first and is taken over, and the rest (the
bonus at the latest) is *pending* and computed with the next forward: that is draft extend. A prompt is pending in the same way, and
is read in chunks so that it does not keep other sessions waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from specsplit.model.batch import Mask, Row
from specsplit.model.causal_lm import CausalLM
from specsplit.model.pages import PageTable
from specsplit.sampling import NoiseCache, perturb
from specsplit.values import DrafterInfo, DrafterKind, Sampling
from specsplit_drafter.proposer import Advance, Children, FrontierNode, ProposerPages, SessionKey

CONTEXT_BUDGET = 512
"""Pending tokens in one forward at most, all sessions together."""
CONTEXT_RESERVE = 8
"""Slots per session that nodes leave free for committed tokens."""
NOISE_BYTES = 64 * 2**20
"""Rows of noise kept: nodes of one depth share theirs, from one expansion to the next."""


@dataclass(slots=True)
class _Node:
    slot: int
    parent: int
    index: int
    """Place among the tree's nodes, in order of expansion."""
    lineage: int
    """Bit i is set if the node at place i is this one or above it."""


@dataclass(slots=True)
class _Session:
    tokens: list[int]
    """Committed, the root last."""
    sampling: Sampling
    table: PageTable
    """Slots of `tokens`."""
    computed: int = 0
    root: int = 0
    tree: dict[int, _Node] = field(default_factory=dict[int, _Node])
    """By id, in order of expansion: parents before children."""

    @property
    def pending(self) -> int:
        """Committed tokens whose KV is missing; 0 once the root is expanded."""
        return len(self.tokens) - self.computed

    def add(self, node: FrontierNode, slot: int) -> None:
        """An expanded node; its parent is the root or in the tree."""
        index = len(self.tree)
        above = 0 if node.parent in (0, self.root) else self.tree[node.parent].lineage
        self.tree[node.node] = _Node(slot, node.parent, index, above | 1 << index)

    def keep(self, survivors: Iterable[tuple[int, _Node]]) -> None:
        """Let only these nodes, in order of expansion, live on: their places move up."""
        self.tree = {}
        for index, (node_id, node) in enumerate(survivors):
            parent = self.tree.get(node.parent)
            lineage = (parent.lineage if parent else 0) | 1 << index
            self.tree[node_id] = _Node(node.slot, node.parent, index, lineage)


@dataclass(frozen=True, slots=True)
class _Work:
    """One session's part of a forward."""

    row: Row
    wanted: list[int]
    """Indices in the frontier, in the order of the row's logits."""


class StandaloneProposer:
    """Proposer of kind standalone. The model's pool must have pages of one slot, and be nobody else's."""

    def __init__(self, model: CausalLM, children: int, context_budget: int = CONTEXT_BUDGET) -> None:
        if model.pool.page_size != 1:
            raise ValueError(f"the drafter's KV pool has pages of {model.pool.page_size} slots, expected 1")
        self._model = model
        self._pool = model.pool
        self._children = min(children, model.info.vocabulary.size)
        self._budget = context_budget
        self._sessions: dict[SessionKey, _Session] = {}
        self._noise = NoiseCache(NOISE_BYTES)
        facts = model.info
        self._info = DrafterInfo(DrafterKind.STANDALONE, facts.model, facts.vocabulary, facts.max_context)

    @property
    def info(self) -> DrafterInfo:
        """What it says of itself."""
        return self._info

    @property
    def pages(self) -> ProposerPages:
        """KV slots in use."""
        return ProposerPages(self._pool.total_pages - self._pool.free_pages, self._pool.total_pages)

    @property
    def room(self) -> int:
        """Free slots, less a few that committed tokens will need: a tree must never end drafting for its own session."""
        return max(0, self._pool.free_pages - CONTEXT_RESERVE * len(self._sessions))

    def open(self, session: SessionKey, tokens: Sequence[int], sampling: Sampling) -> None:
        """Take slots for the committed tokens; their KV is computed later. Raises OutOfPages."""
        table = PageTable(self._pool)
        table.reserve(len(tokens))
        self._sessions[session] = _Session(list(tokens), sampling, table)

    def commit(self, session: SessionKey, advance: Advance) -> None:
        """Take over the slots of accepted nodes, free those of the dead, take new ones for the rest. Raises OutOfPages."""
        state = self._sessions[session]
        path = [*advance.accepted, advance.root] if advance.root else advance.accepted
        taken_over = [state.tree.pop(node).slot for node in path if node in state.tree]
        state.table.adopt(np.array(taken_over, dtype=np.int64))
        self._release(node.slot for node_id, node in state.tree.items() if node_id not in advance.survivors)
        state.keep([entry for entry in state.tree.items() if entry[0] in advance.survivors])
        state.tokens.extend(advance.tokens)
        state.computed += len(taken_over)
        state.root = advance.root
        state.table.reserve(len(state.tokens))

    def expand(self, frontier: Sequence[FrontierNode]) -> list[Children | None]:
        """One forward over all nodes, and over as much pending context as the budget allows."""
        work = self._work(frontier)
        logits = self._model.forward([part.row for part in work])
        wanted = [i for part in work for i in part.wanted]
        found: list[Children | None] = [None] * len(frontier)
        if wanted:
            for i, children in zip(wanted, self._rank(logits, [frontier[i] for i in wanted]), strict=True):
                found[i] = children
        return found

    def close(self, session: SessionKey) -> None:
        """Free every slot."""
        state = self._sessions.pop(session)
        state.table.release()
        self._release(node.slot for node in state.tree.values())

    def _work(self, frontier: Sequence[FrontierNode]) -> list[_Work]:
        """Rows by session. Pending contexts share the budget, the shortest first: a bonus must not wait for a prompt."""
        by_session: dict[SessionKey, list[int]] = {}
        for i, node in enumerate(frontier):
            by_session.setdefault(node.session, []).append(i)
        budget = self._budget
        work: list[_Work] = []
        for key in sorted(by_session, key=lambda key: self._sessions[key].pending):
            state = self._sessions[key]
            if not state.pending:
                work.append(self._tree_work(state, frontier, by_session[key]))
            elif budget > 0:
                count = min(state.pending, budget)
                budget -= count
                work.append(_context_work(state, count, by_session[key]))
        return work

    def _tree_work(self, state: _Session, frontier: Sequence[FrontierNode], wanted: list[int]) -> _Work:
        nodes = [frontier[i] for i in wanted]
        slots = self._pool.allocate(len(nodes))
        for node, slot in zip(nodes, slots.tolist(), strict=True):
            state.add(node, slot)
        tree_slots = np.fromiter((node.slot for node in state.tree.values()), np.int64, len(state.tree))
        row = Row(
            tokens=[node.token for node in nodes],
            positions=np.array([node.position for node in nodes], dtype=np.int64),
            write_slots=slots,
            kv_slots=np.concatenate([state.table.slots(0, len(state.tokens)), tree_slots]),
            tail_mask=_lineage_mask([state.tree[node.node].lineage for node in nodes], len(state.tree)),
            logits_at=range(len(nodes)),
        )
        return _Work(row, wanted)

    def _rank(self, logits: Tensor, nodes: Sequence[FrontierNode]) -> list[Children]:
        """logits [n, V] of nodes [n] -> their likeliest children under the session's own noise."""
        with torch.inference_mode():
            samplings = [self._sessions[node.session].sampling for node in nodes]
            perturbed = perturb(logits, samplings, [node.position + 1 for node in nodes], self._noise)
            values, tokens = perturbed.topk(self._children, dim=-1)
            log_probabilities = values.double() - perturbed.logsumexp(dim=-1, keepdim=True).double()
        columns = zip(tokens.cpu().numpy(), log_probabilities.cpu().numpy(), strict=True)
        return [Children(of_node, raw) for of_node, raw in columns]

    def _release(self, slots: Iterable[int]) -> None:
        self._pool.release(np.fromiter(slots, np.int64))


def _context_work(state: _Session, count: int, wanted: list[int]) -> _Work:
    """The next `count` pending tokens; logits only if the root is one of them."""
    done = state.computed + count
    complete = done == len(state.tokens)
    row = Row.chunk(state.tokens[state.computed : done], state.table.slots(0, done), [count - 1] if complete else [])
    state.computed = done
    return _Work(row, wanted if complete else [])


def _lineage_mask(lineages: Sequence[int], width: int) -> Mask:
    """Bits of each lineage as bool [n, width]."""
    num_bytes = (width + 7) // 8
    packed = np.frombuffer(b"".join(lineage.to_bytes(num_bytes, "little") for lineage in lineages), dtype=np.uint8)
    bits = np.unpackbits(packed.reshape(len(lineages), num_bytes), axis=1, count=width, bitorder="little")
    return bits.view(np.bool_)
