"""What a caller is told of a request before any step: why it becomes no session, or what is known without one."""

from __future__ import annotations

import pytest

from specsplit.errors import ContextExceeded, Exhausted, InvalidRequest
from specsplit.model.pages.pool import PagePool
from specsplit.sessions import DecodeRequest, Finished
from specsplit.values import FinishReason, ModelInfo, Plan, PromptLogprobs, Stopping, Vocabulary
from specsplit_verifier.policy.planner import Planner
from specsplit_verifier.schedule.kv_cache_manager import KVCacheManager
from specsplit_verifier.schedule.scheduler import Scheduler
from specsplit_verifier.schedule.submissions import Submissions


@pytest.fixture
def scheduler() -> Scheduler:
    """Room for eight tokens, and one session that waits."""
    return Scheduler(ModelInfo("toy", Vocabulary(16), 12), KVCacheManager(PagePool(2, 4)), max_sessions=1)


@pytest.fixture
def submissions(scheduler: Scheduler) -> Submissions:
    return Submissions(scheduler, Planner(Plan(num_draft_tokens=1), 100))


def test_a_session_that_waits_is_told_nothing_but_a_prompt_of_one_token(
    submissions: Submissions, scheduler: Scheduler
) -> None:
    assert submissions.submit(DecodeRequest("r", (7,), session=1, prompt_logprobs=2)) == [PromptLogprobs(0, [7], ())]
    (session,) = scheduler.waiting
    assert not session.telling and session.stops.max_tokens == 6, "as many as the pool has room for, and a root"
    scheduler.waiting.clear()
    assert submissions.submit(DecodeRequest("r", (7, 8), session=2, prompt_logprobs=2)) == []
    assert scheduler.waiting[0].telling


def test_why_there_is_no_session_is_told(submissions: Submissions, scheduler: Scheduler) -> None:
    (too_long,) = submissions.submit(DecodeRequest("r", (1,) * 12))
    (too_much,) = submissions.submit(DecodeRequest("r", (1,) * 3, stopping=Stopping(8)))
    (no_adapter,) = submissions.submit(DecodeRequest("r", (1,), adapter="none"))
    assert [type(each) for each in (too_long, too_much, no_adapter)] == [
        ContextExceeded,
        ContextExceeded,
        InvalidRequest,
    ]
    assert not scheduler.waiting
    assert submissions.submit(DecodeRequest("r", (1,))) == []
    (full,) = submissions.submit(DecodeRequest("r", (1,)))
    assert isinstance(full, Exhausted) and len(scheduler.waiting) == 1


def test_a_session_of_which_nothing_is_left_to_be_generated_ends_at_once(
    submissions: Submissions, scheduler: Scheduler
) -> None:
    """It began where there was more room."""
    request = DecodeRequest("r", (1,) * 9, committed=5)
    (end,) = submissions.submit(request)
    assert isinstance(end, Finished) and end.reason is FinishReason.LENGTH
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (4, 5)
    assert not scheduler.waiting
