"""What operators may have a verifier do: empty its prefix cache, and profile its steps."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from specsplit.engine import FlushCache, Operation, Outcome, StartProfile, StopProfile
from specsplit.errors import SpecsplitError, Unavailable, Unsupported
from specsplit.observe import fields
from specsplit.rpc import caller
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.events import BeginProfile, EndProfile, FlushPages, Inbound

_log = logging.getLogger(__name__)
_AGAIN_S: Final = 0.1
"""Time after which pages that were in use are looked at again."""
T = TypeVar("T")


class Operations:
    """Has the engine of one verifier do what operators ask for."""

    def __init__(self, profile_dir: Path | None) -> None:
        """`profile_dir`: where profiles are written; None: none are made."""
        self._folder = profile_dir

    async def operate(self, verifier: Verifier, operation: Operation) -> Outcome:
        """Do it.

        Raises Unsupported for a profile if there is no folder for it, Exhausted if one was begun already, NotFound if none was.
        """
        match operation:
            case FlushCache():
                outcome = await self._flush(verifier, operation.timeout_s)
            case StartProfile():
                outcome = await self._start(verifier, operation)
            case StopProfile():
                outcome = await self._stop(verifier)
        _log.info(
            "an operator's call: %s", outcome.message, extra=fields(call=type(operation).__name__, by=caller().name)
        )
        return outcome

    async def _flush(self, verifier: Verifier, timeout_s: float) -> Outcome:
        """Free what no session has; again and again while there is time, and sessions have some."""
        deadline, freed = asyncio.get_running_loop().time() + timeout_s, 0
        while True:
            more, kept = await asked(verifier, FlushPages)
            freed += more
            if not kept or asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(_AGAIN_S)
        stay = f"; {kept:,} that sessions use stay" if kept else ""
        return Outcome(not kept, f"{freed:,} cached pages were dropped{stay}")

    async def _start(self, verifier: Verifier, wanted: StartProfile) -> Outcome:
        folder = self._profiles("StartProfile")
        try:
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        except OSError as error:
            raise SpecsplitError(f"profile_dir cannot be made: {error}") from error
        await asked(verifier, partial(BeginProfile, wanted))
        return Outcome(True, f"a profile has begun, which StopProfile writes to {folder}")

    async def _stop(self, verifier: Verifier) -> Outcome:
        path = self._profiles("StopProfile") / f"{socket.gethostname()}_{os.getpid()}.{time.time_ns()}.pt.trace.json.gz"
        profile = await asked(verifier, EndProfile)
        try:
            await asyncio.to_thread(profile.export_chrome_trace, str(path))
        except OSError as error:
            raise SpecsplitError(f"the profile cannot be written: {error}") from error
        return Outcome(True, f"the profile was written to {path}")

    def _profiles(self, call: str) -> Path:
        if self._folder is None:
            raise Unsupported(call, "is not supported here: profile_dir of the verifier is not set")
        return self._folder


async def asked(verifier: Verifier, ask: Callable[[Future[T]], Inbound]) -> T:
    """Hand the engine an event that is answered, and wait for that. Raises what is answered, and Unavailable if the engine is dead."""
    waiting: Future[Any] = Future()
    verifier.engine.post(ask(waiting))
    answer, dead = asyncio.wrap_future(waiting), asyncio.ensure_future(verifier.failed.wait())
    try:
        await asyncio.wait({answer, dead}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise Unavailable("the engine of this verifier is dead; its log says why")
    finally:
        answer.cancel()
        dead.cancel()
