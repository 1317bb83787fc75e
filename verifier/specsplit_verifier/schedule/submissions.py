"""Requests become sessions, and wait for room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specsplit.errors import InvalidRequest, SpecsplitError
from specsplit.grammar import GrammarState
from specsplit.sessions import DecodeRequest, Finished
from specsplit.values import PromptLogprobs
from specsplit_verifier.policy.planner import Planner
from specsplit_verifier.records.events import Output
from specsplit_verifier.schedule.scheduler import Scheduler
from specsplit_verifier.sessions.no_drafter import NoDrafter
from specsplit_verifier.sessions.session import Session, StopRule
from specsplit_verifier.sessions.used_adapter import UsedAdapter


class Submissions:
    """Makes of a request what the scheduler queues, under the plan that the planner has for it."""

    def __init__(self, scheduler: Scheduler, planner: Planner) -> None:
        self._scheduler: Final = scheduler
        self._planner: Final = planner

    def submit(self, request: DecodeRequest, grammar: GrammarState | None = None) -> Sequence[Output]:
        """Queue a session -> what its caller is told at once: why there is none, or what is known without a step."""
        try:
            session = self._session(request, grammar)
            if session.ended is not None:
                return [_end(session)]
            self._scheduler.submit(session)
        except SpecsplitError as error:
            return [error]
        if not session.telling or session.prompt_length > 1:
            return []
        session.counters.told = 1  # no token stands before it, so nothing has to be computed
        return [PromptLogprobs(0, session.tokens[:1], ())]

    def _session(self, request: DecodeRequest, grammar: GrammarState | None) -> Session:
        """Raises InvalidRequest if prompt and output exceed the context, or there is no such adapter."""
        info = self._scheduler.info
        adapter = UsedAdapter.of(info, request.adapter)
        plan, stopping = self._planner.plan_of(request.plan), request.stopping
        stops = StopRule(
            self._scheduler.max_tokens_of(request.prompt_tokens, stopping.max_tokens, plan.num_draft_tokens),
            stopping.ends(info.eos_token_ids),
            stopping.min_tokens,
        )
        drafter = NoDrafter(needed=request.takes_drafter)
        table, tokens = self._scheduler.kv.table(), list(request.tokens)
        return Session(
            request.session, request, plan, stops, table, tokens, 0, drafter, grammar=grammar, adapter=adapter
        )


def _end(session: Session) -> Finished:
    """The end of a session of which nothing is left to be generated. Raises InvalidRequest if its prompt was to be told."""
    if session.telling:
        problem = "is set, but nothing is computed: all tokens are there, or the constraint allows none; leave it out"
        raise InvalidRequest("prompt_logprobs", problem)
    assert session.ended is not None
    return Finished(session.ended, None, session.usage, session.counters.totals)
