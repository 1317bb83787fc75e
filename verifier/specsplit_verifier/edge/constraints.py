"""Constraints of requests, compiled on threads of their own: a large one takes seconds, and steps go on meanwhile."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from specsplit.errors import SpecsplitError
from specsplit.grammar import Grammars, GrammarState
from specsplit.sessions import DecodeRequest
from specsplit.values import ModelInfo

COMPILED_AT_ONCE: Final = 2
"""Constraints; others wait."""


class Constraints:
    """Compiles the constraints of requests. On the event loop."""

    def __init__(self, folder: Path, info: ModelInfo) -> None:
        """`folder`: of the target, for its tokenizer."""
        self._info = info
        self._grammars = Grammars(folder, info)
        with suppress(SpecsplitError):  # whoever sends a constraint is told
            self._grammars.read()  # now, since no step gets on meanwhile
        self._threads = ThreadPoolExecutor(COMPILED_AT_ONCE, "constraint")

    async def state(self, request: DecodeRequest) -> GrammarState | None:
        """Begin the output of a request, behind what of it was generated earlier; None: it is held to nothing.

        Raises InvalidRequest, with the place, for a constraint that cannot be compiled or that earlier output breaks; Unsupported if the
        target's tokenizer cannot be read.
        """
        if request.constraint is None:
            return None
        ends, earlier = request.stopping.ends(self._info.eos_token_ids), request.tokens[request.prompt_tokens :]
        begin = partial(self._grammars.begin, request.constraint, ends, earlier)
        return await asyncio.get_running_loop().run_in_executor(self._threads, begin)

    def close(self) -> None:
        """End the threads, which finish what they have begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)
