"""One request of a caller, held against the text that it should bring."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Final

from benchmarks.fire.answer import Answer, ends, stops
from benchmarks.fire.mix import Asked, Manner
from benchmarks.fire.outcomes import Outcome, Stillness
from benchmarks.known import Known
from specsplit.client import AsyncClient, Delta, TokenPrompt, make_request
from specsplit.errors import DeadlineExceeded, Exhausted, SpecsplitError, Unavailable
from specsplit.requests import GenerateEvent, GenerateRequest

HANG_S: Final = 60.0
"""A request that is not over so long after it was sent hangs. The coordinator's `failover_s` is half of it."""
GIVE_UP_S: Final = 120.0
"""A caller who sends again what ended with UNAVAILABLE does so for no longer."""
REPEAT_S: Final = 0.1
_SLOW_S: Final = 5.0
"""A slow reader pauses for so long in all."""


class Asking:
    """One request on its way."""

    def __init__(self, known: Known, asked: Asked, stillness: Stillness, hang_s: float = HANG_S) -> None:
        self.asked = asked
        self.sent = 0
        """How many times the request was sent."""
        self.answers: list[Answer] = []
        """What came of every choice, so far."""
        self.moved_at = 0.0
        """When something came last, by time.monotonic(); 0: nothing has."""
        self.drafted_at = 0.0
        """When an accepted draft came last; 0: none has."""
        self.over = False
        self._known = known
        self._stillness = stillness
        self._hang_s = hang_s
        self._began = time.monotonic()

    @property
    def received(self) -> int:
        """Tokens of all choices, so far."""
        return sum(len(each.tokens) for each in self.answers)

    async def outcome(self, client: AsyncClient) -> tuple[Outcome, str]:
        """How it ended, and what was wrong."""
        while True:
            outcome, why = await self._sent(client)
            if strays := "; ".join(filter(None, (each.strays for each in self.answers))):
                outcome, why = Outcome.DIFFERENT, strays
            if outcome is not Outcome.UNAVAILABLE or not self.asked.resumes or self._age_s > GIVE_UP_S:
                self.over = True
                return outcome, f"{self.asked}, after {self._age_s:.1f} s and {self.received} tokens: {why}"
            await asyncio.sleep(REPEAT_S)

    async def _sent(self, client: AsyncClient) -> tuple[Outcome, str]:
        self.sent += 1
        try:
            async with asyncio.timeout(self._hang_s):
                return await self._answered(client)
        except TimeoutError:
            return Outcome.HUNG, f"not over {self._hang_s:g} s after it was sent"
        except SpecsplitError as error:
            return self._ended(error), f"{type(error).__name__}: {error}"

    async def _answered(self, client: AsyncClient) -> tuple[Outcome, str]:
        patience = asyncio.timeout(self.asked.patience_s if self.asked.manner is Manner.CANCEL else None)
        try:
            async with patience, aclosing(client.send(self._request(), self._deadline_s)) as events:
                slept_s = 0.0
                async for event in events:
                    self._take(event)
                    if self.asked.manner is Manner.SLOW and slept_s < _SLOW_S:
                        slept_s += self.asked.patience_s
                        await asyncio.sleep(self.asked.patience_s)
        except TimeoutError:
            if not patience.expired():
                raise
            return Outcome.CANCELLED, ""
        wrong = "; ".join(filter(None, (each.wrong for each in self.answers)))
        return (Outcome.DIFFERENT, wrong) if wrong else (Outcome.SAME, "")

    def _request(self) -> GenerateRequest:
        """The request, for the rest if there is something already; of several choices for all, anew."""
        asked, known = self.asked, self._known
        if asked.n > 1 or not self.received:
            self.answers = [Answer(each, asked.logprobs) for each in ends(known, asked)]
        else:
            self.answers[0].again()
        return make_request(
            TokenPrompt(known.prompt), **known.options, max_tokens=asked.new, n=asked.n, ignore_eos=True, stop=stops(known, asked),
            logprobs=asked.logprobs, drafter=asked.drafter, plan=asked.plan,
            resume_from=tuple(self.answers[0].tokens) if asked.n == 1 else (),
        )  # fmt: skip

    @property
    def _deadline_s(self) -> float | None:
        return self.asked.patience_s if self.asked.manner is Manner.DEADLINE else None

    @property
    def _age_s(self) -> float:
        return time.monotonic() - self._began

    def _take(self, event: GenerateEvent) -> None:
        self.moved_at = time.monotonic()
        self._stillness.mark()
        if isinstance(event, Delta):
            self.answers[event.index].take(event)
            if event.num_correct_drafts:
                self.drafted_at = self.moved_at
        else:
            self.answers[event.index].done.append(event)

    def _ended(self, error: SpecsplitError) -> Outcome:
        """Which outcome a status is: one that the protocol allows for, or a failure."""
        match error:
            case Unavailable() if "without its last message" not in str(error):
                return Outcome.UNAVAILABLE
            case Exhausted():
                return Outcome.EXHAUSTED
            case DeadlineExceeded() if self.asked.manner is Manner.DEADLINE:
                return Outcome.LATE
            case _:
                return Outcome.FAILED
