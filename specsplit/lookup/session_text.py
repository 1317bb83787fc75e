"""The text of one session, in which it is looked up what follows, and the outputs that it shares with others."""

from __future__ import annotations

from collections.abc import Sequence

from specsplit.lookup.continuations import DEEPEST, MATCHES, MOST_NODES, DrawnTree, continuations, draw
from specsplit.lookup.shared_texts import SharedTexts
from specsplit.lookup.token_text import TokenText
from specsplit.values import Vocabulary


class SessionText:
    """Committed tokens of one session, prompt included."""

    def __init__(
        self, tokens: Sequence[int], prompt_tokens: int, shared: SharedTexts, scope: bytes, vocabulary: Vocabulary
    ) -> None:
        """`shared`: outputs of sessions that are over. `scope`: whose this session is; empty: it is like no other."""
        self._text = TokenText(tokens)
        self._prompt_tokens = prompt_tokens
        self._shared = shared
        self._whose = shared.whose(scope, vocabulary)

    def __len__(self) -> int:
        return len(self._text)

    @property
    def last(self) -> int:
        """The last token, behind which is drawn."""
        return int(self._text.ending[-1])

    def append(self, tokens: Sequence[int]) -> None:
        """Append tokens that were committed."""
        self._text.append(tokens)

    def draw(self, children: int, floor: float = 0.0, *, depth: int = DEEPEST, nodes: int = MOST_NODES) -> DrawnTree:
        """Draw the tree of what may follow, within these bounds (see `continuations.draw`)."""
        ending = self._text.ending
        texts = [text for text in (self._text, self._shared.of(self._whose)) if len(text)]
        found = [each for text in texts for each in continuations(text, text.matches(ending, MATCHES))]
        return draw(found, children, floor, depth=depth, nodes=nodes)

    def close(self) -> None:
        """Keep the output for others of the scope."""
        self._shared.add(self._whose, self._text.tokens[self._prompt_tokens :].tolist())
