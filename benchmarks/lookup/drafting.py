"""How a drafter without a model comes along a text that is known: what each step would have committed, were it a step of a verifier.

The n-gram drafter is the product's own: its session table, its messages and the verifier's mirror, from which the best nodes are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from benchmarks.lab.clock import VirtualClock
from benchmarks.lookup.turn import Turn
from specsplit.draft_events import Close, Open
from specsplit.lookup import SharedTexts
from specsplit.speculation import Draft, Grow, Mirror
from specsplit.values import Plan, Sampling, Vocabulary
from specsplit_drafter.engine.session_table import SessionTable, TableLimits
from specsplit_drafter.kinds.ngram import NgramProposer

MOST_TOKENS = 1 << 20
"""Above every token id, and more tokens than any client here was answered."""
VOCABULARY = Vocabulary(MOST_TOKENS)
CHILDREN = 8
"""Candidates of one node, and of these as many as may be verified."""
MAX_NODES = 256
KEY = (1, 1)


class Drafting(Protocol):
    """A drafter that is led along texts, one after the other."""

    def follow(self, turn: Turn) -> Iterator[int]:
        """Tell of each step how many tokens of the output it commits: those that were drafted right, and one more."""
        ...


class Ngram:
    """The n-gram drafter."""

    def __init__(self, nodes: int, scope: bytes = b"") -> None:
        """`nodes` of a step, the root not counted. `scope`: of all turns; empty: they share nothing."""
        shared = SharedTexts(MOST_TOKENS, scopes=1)
        self._table = SessionTable(NgramProposer(CHILDREN, shared=shared), TableLimits(), VirtualClock())
        self._nodes = nodes
        self._scope = scope
        self._plan = Plan(num_steps=nodes, topk=CHILDREN, num_draft_tokens=nodes + 1)

    def follow(self, turn: Turn) -> Iterator[int]:
        prompt, left = turn.prompt, turn.output
        mirror = Mirror(KEY[1], prompt[-1], len(prompt) - 1, MAX_NODES, MOST_TOKENS)
        self._table.handle(KEY, Open(prompt, Sampling(), self._plan, VOCABULARY, MAX_NODES, scope=self._scope))
        while left:
            self._draw(mirror)
            draft = mirror.take(self._nodes + 1, CHILDREN, self._nodes)
            path = accepted(draft, left)
            commit, _ = mirror.commit(draft, path, left[len(path) - 1])
            self._table.handle(KEY, commit)
            yield len(path)
            left = left[len(path) :]
        self._table.handle(KEY, Close())

    def _draw(self, mirror: Mirror) -> None:
        """Have all drawn that is drawn before the next commit, and tell the mirror."""
        while self._table.expand():
            pass
        for _, answer in self._table.outgoing().get(KEY[0], []):
            if not isinstance(answer, Grow):
                raise TypeError(f"the drafter said {answer!r}, expected a Grow")
            mirror.grow(answer)


class PromptLookup:
    """What transformers does where `generate` is given `prompt_lookup_num_tokens`: its own class is asked."""

    def __init__(self, tokens: int, ngram: int = 2) -> None:
        """`tokens` drafted in a step, behind the first place that the last `ngram` tokens, or else fewer, have stood at before."""
        self._generator = PromptLookupCandidateGenerator(
            num_output_tokens=tokens, max_matching_ngram_size=ngram, max_length=MOST_TOKENS
        )

    def follow(self, turn: Turn) -> Iterator[int]:
        text, left = turn.prompt, turn.output
        while left:
            candidates, _ = self._generator.get_candidates(torch.LongTensor([text]))
            right = 0
            for drafted, token in zip(candidates[0, len(text) :].tolist(), left[:-1], strict=False):
                if drafted != token:
                    break
                right += 1
            yield right + 1
            text, left = text + left[: right + 1], left[right + 1 :]


def accepted(draft: Draft, text: Sequence[int]) -> list[int]:
    """Find the nodes (indices into a draft, the root first) that a text goes along; its last token is left for the bonus."""
    below = {pair: index for index, pair in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    path = [0]
    for token in text[:-1]:
        found = below.get((path[-1], token))
        if found is None:
            break
        path.append(found)
    return path
