"""Calls that stream their answers, and end when their caller may not make them any more.

Such a call may last as long as its peers run, so that who is struck out of the files of callers would stay. The files are looked at again
while calls run, and callers by their names: whose token or certificate has been replaced goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc

from specsplit.errors import SpecsplitError
from specsplit.identity import CallerRole, Identity
from specsplit.observe.record import fields
from specsplit.rpc.callers import Callers, caller
from specsplit.rpc.edge import Context, abort

_log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
"""Time between two looks at the files."""
_TOLD_S: Final = 1.0
"""Longest time for the status of a call that ends to be on its way: its caller may read nothing."""


@dataclass(eq=False, slots=True)
class _Call:
    """One that runs."""

    method: str
    context: Context
    port: frozenset[CallerRole]
    identity: Identity
    task: asyncio.Task[Any]


class OngoingCalls:
    """The streams that a server has now, on all of its ports. On the event loop."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._calls = set[_Call]()
        self._known: Mapping[str, frozenset[CallerRole]] | None = None
        """Roles by name, as the calls were let in or looked at last."""
        self._timer: asyncio.TimerHandle | None = None
        self._ending = set[asyncio.Task[None]]()

    @contextmanager
    def lasts(self, port: frozenset[CallerRole], method: str, context: Context) -> Generator[None]:
        """The running task serves a call of "/service/Method" in this block, for the caller that was let in."""
        identity, task = caller(), asyncio.current_task()
        if not identity.name or task is None:  # nobody is asked who he is, or is nobody in particular
            yield
            return
        call = _Call(method, context, port, identity, task)
        self._calls.add(call)
        self._look_later()
        try:
            yield
        finally:
            self._calls.discard(call)

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        """End the calls whose callers may not make them any more."""
        self._timer = None
        known = self._callers.roles
        if known is not self._known:
            self._known = known
            for call in [each for each in self._calls if not each.task.done()]:
                self._check(call)
        if self._calls:
            self._look_later()

    def _check(self, call: _Call) -> None:
        try:
            self._callers.check_still(call.method, call.identity.name, call.port)
        except SpecsplitError as error:
            self._calls.discard(call)
            ending = asyncio.create_task(_end(call, error))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


async def _end(call: _Call, error: SpecsplitError) -> None:
    """End a call as its caller's leaving does, with a status that says why."""
    extra = fields(caller=call.identity.name, method=call.method.rpartition("/")[2], why=str(error))
    _log.warning("a call ends, since its caller may not make it any more", extra=extra)
    with suppress(grpc.aio.BaseError, TimeoutError):  # it raises one in any case
        async with asyncio.timeout(_TOLD_S):
            await abort(call.context, error)
    call.task.cancel()
