"""What sessions of a drafter are held to, so that what it draws is what the target may pick.

A constraint is compiled on a thread of its own, and until that is done its session is drafted for as if there were none. Masks are worked
out on another, while a forward runs. Drafts are drafts: where a constraint cannot be compiled, or gets too complex, the session is
drafted for without, and the verifier holds its output to it all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from specsplit.draft_events import Open
from specsplit.errors import SpecsplitError
from specsplit.tree import Ints
from specsplit.values import Constraint, ModelInfo, Vocabulary
from specsplit_drafter.drafts.proposer import SessionKey

if TYPE_CHECKING:  # llguidance need not be installed
    from specsplit.grammar import Grammars, GrammarState
    from specsplit.grammar.state import Words

_log = logging.getLogger(__name__)
_Path: TypeAlias = tuple[int, ...]


class Masks(NamedTuple):
    """What may be drafted in some rows of a ranking."""

    rows: Ints
    """[R]"""
    words: Words
    """[R, W] a bit for every token, the lowest of a word first."""


class DraftGrammars:
    """The constraints of all sessions. On the engine's thread."""

    def __init__(self, folder: Path | None = None, vocab_size: int = 0) -> None:
        """`folder`: of a model with the target's tokenizer, whose logits are `vocab_size` wide; None: nothing is ever held to anything."""
        self._folder = folder
        self._vocab_size = vocab_size
        self._grammars: Grammars | None = None
        self._compiling = ThreadPoolExecutor(1, "constraint")
        self._held: dict[SessionKey, _Held] = {}
        self._beside = ThreadPoolExecutor(1, "grammar")
        self._silent = False
        """True once the log has said why sessions are drafted for without their constraints."""

    def read(self) -> DraftGrammars:
        """Read the tokenizer now, so that no expansion waits for it later; what stands in the way is said when a constraint comes."""
        with suppress(SpecsplitError, ImportError):
            self._made().read()
        return self

    def open(self, session: SessionKey, opened: Open) -> None:
        """Begin to compile the constraint of a session, if it has one."""
        if opened.constraint is None:
            return
        if self._folder is None:
            self._say("it has no tokenizer")
            return
        output = opened.tokens[opened.prompt_tokens or len(opened.tokens) :]
        begun = self._compiling.submit(self._begin, opened.constraint, tuple(opened.ends), output)
        self._held[session] = _Held(begun)

    def commit(self, session: SessionKey, tokens: Sequence[int]) -> None:
        """Follow what was committed."""
        if session in self._held:
            self._held[session].commit(tokens)

    def close(self, session: SessionKey) -> None:
        """Forget a session."""
        held = self._held.pop(session, None)
        if held is not None:
            held.begun.cancel()

    def settle(self) -> None:
        """Take in what was compiled, and what cannot be: before an expansion, during which it stays as it is."""
        for session, held in [*self._held.items()]:
            if held.begun.done() and (problem := held.problem()) is not None:
                self._say(problem)
                del self._held[session]
            else:
                held.ready = held.begun.done()

    def holds(self, session: SessionKey) -> bool:
        """Tell whether what is drawn for a session is held to anything by now."""
        return session in self._held and self._held[session].ready

    def begin(self, sessions: Sequence[SessionKey], paths: Sequence[Sequence[int]]) -> Future[Masks] | None:
        """Begin to work out what may be drafted behind nodes of these sessions, given the path of each; None: all may be."""
        if not self._held:
            return None
        rows: dict[SessionKey, list[int]] = {}
        for row, session in enumerate(sessions):
            rows.setdefault(session, []).append(row)
        held = {session: of_it for session, of_it in rows.items() if self.holds(session)}
        if not held:
            return None
        asked = [(self._held[session], of_it, [(*paths[row],) for row in of_it]) for session, of_it in held.items()]
        return self._beside.submit(_masks, asked)

    def _begin(self, constraint: Constraint, ends: Sequence[int], output: Sequence[int]) -> GrammarState:
        """Compile, on the thread beside. Raises SpecsplitError if it cannot be, and ImportError without llguidance."""
        return self._made().begin(constraint, ends, output)

    def _made(self) -> Grammars:
        """Make what compiles, once. Raises ImportError without llguidance."""
        if self._grammars is None:
            from specsplit.grammar import Grammars  # noqa: PLC0415 (a drafter may run without llguidance)

            assert self._folder is not None
            self._grammars = Grammars(self._folder, ModelInfo("", Vocabulary(self._vocab_size, ""), 0))
        return self._grammars

    def _say(self, problem: str) -> None:
        if not self._silent:
            _log.warning("sessions with a constraint are drafted for as if they had none: %s", problem)
        self._silent = True


class _Held:
    """What one session is held to."""

    def __init__(self, begun: Future[GrammarState]) -> None:
        self.begun: Final = begun
        self.ready = False
        self._later: list[int] = []
        """Committed since it was begun, and not followed yet."""
        self._rows: dict[_Path, Words] = {}
        """What may follow the nodes that were asked for, by their paths from the root."""

    def problem(self) -> str | None:
        """Why nothing can be said of the session any more; None: something can. It was begun."""
        failure = self.begun.exception()
        if failure is None:
            return "a constraint has got too complex" if self.begun.result().broken else None
        if isinstance(failure, ImportError):
            return "llguidance is not installed (pip install specsplit[engine])"
        return str(failure) if isinstance(failure, SpecsplitError) else f"{type(failure).__name__}: {failure}"

    def commit(self, tokens: Sequence[int]) -> None:
        """Note what was committed."""
        self._later += tokens
        taken = (*tokens,)
        self._rows = {path[len(taken) :]: row for path, row in self._rows.items() if path[: len(taken)] == taken}

    def masks(self, paths: Sequence[_Path]) -> Words:
        """What may be drafted behind each of these paths [n, W]."""
        state = self.begun.result()
        if self._later:
            state.advance(self._later)
            self._later.clear()
        new = [path for path in dict.fromkeys(paths) if path not in self._rows]
        self._rows |= zip(new, state.draftable(new), strict=True)
        return np.stack([self._rows[path] for path in paths])


def _masks(asked: Sequence[tuple[_Held, Sequence[int], Sequence[_Path]]]) -> Masks:
    rows = np.array([row for _, of_it, _ in asked for row in of_it])
    return Masks(rows, np.concatenate([held.masks(paths) for held, _, paths in asked]))
