"""The honest client: it asks all the while, and holds every text against what the target writes by itself."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.fire.fuzz.ground import Ground
from benchmarks.known import Known
from specsplit.client import AsyncClient
from specsplit.errors import SpecsplitError
from specsplit.values import PlanChanges

BOUND_S: Final = 30.0
"""A request that is not over by then hangs."""
_PLAN: Final = PlanChanges(num_steps=5, topk=4, num_draft_tokens=16, wait_budget_us=5_000, draft_ahead=True)
"""All of it, so that what a hostile operator sets means nothing to these requests."""
_LONGEST: Final = 64


@dataclass
class Honest:
    """What became of its requests."""

    seconds: list[float] = field(default_factory=list[float])
    """Seconds of each request that was right, from when it was sent to its last token."""
    failed: list[str] = field(default_factory=list[str])
    hung: list[str] = field(default_factory=list[str])
    different: list[str] = field(default_factory=list[str])
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    """Set it, and who asks comes to the end of the current request and asks for no more."""

    async def ask(
        self, ground: Ground, known: Sequence[Known], drafters: list[str | None], chance: random.Random
    ) -> None:
        """Ask for one known text after the other until it is enough. Returns within BOUND_S of that."""
        number = 0
        async with AsyncClient(ground.public, ground.transport("honest")) as client:
            while not self.enough.is_set():
                text, count, drafter = chance.choice(known), chance.randint(1, _LONGEST), chance.choice(drafters)
                number += 1
                await self._asked(client, text, count, drafter, f"recorded-{number % 4}")
                await asyncio.sleep(chance.uniform(0, 0.05))

    async def _asked(self, client: AsyncClient, text: Known, count: int, drafter: str | None, request_id: str) -> None:
        what, began = f"{count} tokens behind a prompt of {len(text.prompt)}, drafter {drafter}", time.monotonic()
        try:
            async with asyncio.timeout(BOUND_S):
                result = await client.generate(
                    text.prompt, max_tokens=count, **text.options, ignore_eos=True, drafter=drafter,
                    plan=_PLAN, request_id=request_id,
                )  # fmt: skip
        except TimeoutError:
            self.hung.append(f"{what}: not over after {BOUND_S:g} s")
        except SpecsplitError as error:
            self.failed.append(f"{what}: {type(error).__name__}: {error}")
        else:
            self.seconds.append(time.monotonic() - began)
            if not text.begins_with(result.tokens, count):
                self.different.append(f"{what}: {result.tokens} in the place of {text.tokens[:count]}")
