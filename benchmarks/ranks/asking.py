"""One request of a soak, held against the text that it should bring."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Final

from benchmarks.known import Known
from benchmarks.ranks.arrivals import Asked
from benchmarks.ranks.tally import Outcome
from specsplit.client import AsyncClient, Delta
from specsplit.errors import SpecsplitError, Unavailable

HANG_S: Final = 240.0
"""A request that is not over by then hangs: a group is whole again a minute after it was killed, or two if it was killed twice."""
REPEAT_S: Final = 0.5
_REFUSED: Final = re.compile("no verifier has joined|no verifier takes sessions|every verifier is draining")


class Asking:
    """One request on its way."""

    def __init__(self, known: Known, asked: Asked) -> None:
        self.sent = time.time()
        self.first_s: float | None = None
        self.tokens: list[int] = []
        self.refused = 0
        self._known = known
        self._asked = asked

    async def outcome(self, client: AsyncClient) -> tuple[Outcome, str]:
        """How it ended, and what was wrong."""
        try:
            async with asyncio.timeout(HANG_S):
                while not await self._answered(client):
                    await asyncio.sleep(REPEAT_S)
        except TimeoutError:
            return Outcome.HUNG, f"{len(self.tokens)} of {self._asked.new} tokens"
        except SpecsplitError as error:
            return Outcome.LOST, f"behind {len(self.tokens)} of {self._asked.new} tokens: {error}"
        if not self._known.begins_with(self.tokens, self._asked.new):
            return Outcome.DIFFERENT, f"{self.tokens} in the place of {self._known.tokens[: self._asked.new]}"
        return Outcome.SAME, ""

    async def _answered(self, client: AsyncClient) -> bool:
        """False if there was no verifier for it: its caller is told at once, and asks again."""
        known, asked = self._known, self._asked
        try:
            async for event in client.stream(
                known.prompt, max_tokens=asked.new, **known.options, ignore_eos=True,
                drafter=asked.drafter,
            ):  # fmt: skip
                if isinstance(event, Delta):
                    self.first_s = self.first_s or time.time() - self.sent
                    self.tokens += event.tokens
        except Unavailable as error:
            if self.tokens or not _REFUSED.search(str(error)):
                raise
            self.refused += 1
            return False
        return True
