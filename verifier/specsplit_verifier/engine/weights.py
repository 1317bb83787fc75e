"""How an engine goes on with other weights, between two steps."""

from __future__ import annotations

import logging

from specsplit.errors import Unavailable
from specsplit.observe import fields
from specsplit_verifier.engine.core import EngineCore
from specsplit_verifier.records.events import TakeWeights
from specsplit_verifier.target.runner import TargetRunner

_log = logging.getLogger(__name__)


def take_weights(event: TakeWeights, core: EngineCore, runner: TargetRunner) -> None:
    """Take other weights, if no session has begun or they restart, and say how many have. No step is in flight.

    Raises whatever leaves the target between two revisions: nobody may step it then.
    """
    if not event.answered.set_running_or_notify_cancel():
        return
    begun = core.begun
    if event.restart or not begun:
        try:
            core.start_over(heads_rest=event.heads_rest)
            runner.take(event.revision)
            core.adopt(runner.target.info)
        except BaseException as error:
            event.answered.set_exception(Unavailable(f"this verifier ends, since its weights are broken: {error}"))
            raise
        facts = fields(version=runner.weights_version, folder=event.revision.name, restarted=begun)
        _log.info("the target has other weights", extra=facts)
    event.answered.set_result(begun)
