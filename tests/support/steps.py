"""Random steps of a verifier: trees of several sessions beside chunks, with all that may be asked of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import strategies as st

from specsplit.features import LAST, FeatureNeed
from specsplit.grammar import Grammars
from specsplit.model import CausalLM, PageTable, RowPages
from specsplit.speculation import Draft
from specsplit.values import Sampling
from specsplit_verifier.records.step import ChunkInput, EndFloor, StepInput, TreeInput
from specsplit_verifier.target.extraction import Extractor
from tests.support.grammars import LETTERS, grammars, states, write_letters
from tests.support.kernels import samplings, trees
from tests.support.sampling import counted

FIRST = 7
"""Where the roots of `trees` stand."""


def floors(vocab_size: int) -> st.SearchStrategy[EndFloor]:
    """Ends that may be picked at the roots of `trees` already, or only deeper."""
    return st.builds(EndFloor, st.integers(FIRST, FIRST + 4), st.lists(st.integers(0, vocab_size - 1), max_size=9))


@cache
def letters(vocab_size: int) -> Grammars:
    """Grammars over a model whose tokens are letters."""
    return grammars(write_letters(Path(mkdtemp()), vocab_size), vocab_size)


@st.composite
def steps(draw: st.DrawFn, target: CausalLM, tables: list[PageTable]) -> StepInput:
    """Up to three trees and two chunks over pages of their own, whose tables are added to `tables`."""

    def pages(length: int) -> RowPages:
        tables.append(PageTable(target.pool))
        tables[-1].reserve(length)
        return tables[-1].upto(length)

    extractor, vocab_size = Extractor(target), target.info.vocabulary.size
    needs = [FeatureNeed((LAST,), target.hidden_size), FeatureNeed((0, 1), target.hidden_size)]
    recipes = st.none() | st.sampled_from([extractor.recipe(need) for need in needs])
    made: list[TreeInput] = []
    for session in range(draw(st.integers(0, 3))):
        draft, sampling = draw(trees(vocab_size, 6)), draw(samplings)
        made.append(
            TreeInput.tree(
                draft.tokens,
                draft.parents,
                pages(FIRST + len(draft.tokens)),
                session=session,
                draft=draft,
                sampling=sampling,
                recipe=draw(recipes),
                logprobs=draw(st.none() | st.sampled_from([0, 3, 20])),
                counts=counted([1, 2, 3], 2) if sampling.penalised else None,
                floor=draw(st.none() | floors(vocab_size)),
                grammar=draw(st.none() | states(letters(vocab_size), LETTERS, vocab_size)),
            )
        )
    chunks: list[ChunkInput] = []
    for session in range(draw(st.integers(0 if made else 1, 2))):
        length = draw(st.integers(1, 9))
        chunks.append(ChunkInput.chunk([3] * length, pages(length), session=session, first=0, recipe=draw(recipes)))
    return StepInput(made, chunks)


DRAFT = Draft((0, 1, 2), (3, 4, 5), (-1, 0, 0), (7, 8, 8), (0.0,) * 3)
SAMPLED = Sampling(0.8, top_k=5, min_p=0.01, seed=3)


def drafted(target: CausalLM, tables: list[PageTable], sessions: int, length: int = 10) -> StepInput:
    """Trees of three tokens that want all that may be wanted but penalties: filters, log-probabilities and features."""
    recipe = Extractor(target).recipe(FeatureNeed((LAST,), target.hidden_size))
    trees: list[TreeInput] = []
    for session in range(sessions):
        tables.append(PageTable(target.pool))
        tables[-1].reserve(length)
        told = {"session": session, "draft": DRAFT, "sampling": SAMPLED, "recipe": recipe, "logprobs": 2}
        trees.append(TreeInput.tree(DRAFT.tokens, DRAFT.parents, tables[-1].upto(length), **told))
    return StepInput(trees)
