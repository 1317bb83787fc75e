"""Recomputing takes what real prefill leaves, little of it beside others, and nobody waits for a drafter that lacks features."""

from __future__ import annotations

from specsplit.features import FeatureLayout, Features
from specsplit.model.pages.pool import PagePool, PageTable
from specsplit.sessions import DecodeRequest
from specsplit.speculation import Mirror
from specsplit.values import Plan
from specsplit_verifier.policy.planner import RECOMPUTE_TOKENS, Pause, Planner, Schedule
from specsplit_verifier.records.feed import Feed, FeedLimits, Recipe
from specsplit_verifier.records.step import Accepted
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.no_drafter import NoDrafter
from specsplit_verifier.sessions.session import Session, StopRule
from specsplit_verifier.sessions.wait_policy import WaitPolicy

BUDGET = 100
WAITING = Plan(draft_ahead=False, wait_budget_us=1_000_000)


def drafting(session: int, root: int, feed: Feed | None = None) -> DraftSession:
    """A drafter that begins at a session whose root has position `root`."""
    drafter = DraftSession("drafter", Mirror(session, 1, root, 8, 16), WaitPolicy(), feed)
    drafter.begin(root, now=0.0)
    return drafter


class World:
    """A planner, and sessions that run as they are."""

    def __init__(self) -> None:
        self.pool = PagePool(256, 16)
        self.planner = Planner(WAITING, BUDGET)
        self.running: list[Session] = []

    def session(self, tokens: int, *, read: int, gap: int = 0) -> Session:
        """A session of so many tokens, of which the target has read some; its drafter lacks the features of the first `gap`."""
        number = len(self.running) + 1
        prompt = (1,) * tokens
        table = PageTable(self.pool)
        session = Session(number, DecodeRequest("r", prompt), WAITING, StopRule(50), table, list(prompt), read)
        feed = Feed(Recipe((1,), "", FeatureLayout(2)), gap, FeedLimits(1000, 1000, 1000)) if gap else None
        session.drafter = drafting(number, tokens - 1, feed)
        self.running.append(session)
        return session

    def choose(self) -> Schedule:
        batch = self.planner.schedule(self.running, 0.0)
        assert isinstance(batch, Schedule)
        return batch

    def pauses(self) -> bool:
        return isinstance(self.planner.schedule(self.running, 0.0), Pause)


def stepping(batch: Schedule) -> list[Session]:
    return [session for session, _ in batch.decoding]


def test_a_session_alone_is_computed_again_at_full_budget_and_decodes_meanwhile() -> None:
    world = World()
    session = world.session(300, read=299, gap=250)
    batch = world.choose()
    assert stepping(batch) == [session], "its drafter is not waited for"
    assert batch.recomputing == [(session, range(BUDGET))]


def test_beside_a_session_that_lacks_nothing_it_is_a_few_tokens() -> None:
    world = World()
    session = world.session(300, read=299, gap=250)
    other = world.session(50, read=49)
    other.drafter = NoDrafter()
    batch = world.choose()
    assert stepping(batch) == [session, other]
    assert batch.recomputing == [(session, range(RECOMPUTE_TOKENS))]


def test_real_prefill_comes_first() -> None:
    world = World()
    lacking = world.session(300, read=299, gap=250)
    prompt = world.session(400, read=0)
    assert world.choose().recomputing == []
    prompt.kv_length = 399 - BUDGET + 10
    batch = world.choose()
    assert batch.prefilling == [(prompt, 90)]
    assert batch.recomputing == [(lacking, range(10))]


def test_several_share_the_budget_in_equal_parts_and_what_one_leaves_goes_to_the_others() -> None:
    world = World()
    long, short, other = (world.session(300, read=299, gap=gap) for gap in (250, 20, 200))
    assert world.choose().recomputing == [(short, range(20)), (other, range(40)), (long, range(40))]


def test_beside_a_session_that_lacks_nothing_each_gets_as_much_as_one_would() -> None:
    world = World()
    lacking = [world.session(300, read=299, gap=250) for _ in range(3)]
    world.session(50, read=49).drafter = NoDrafter()
    assert world.choose().recomputing == [(session, range(RECOMPUTE_TOKENS)) for session in lacking]


def test_a_drafter_that_still_catches_up_is_waited_for_before_its_first_commit_and_no_more() -> None:
    world = World()
    late = world.session(300, read=299)
    feed = Feed(Recipe((1,), "", FeatureLayout(2)), 0, FeedLimits(1000, 1000, 10_000))
    feed.add(Features(0, 299, bytes(299 * 8)))
    late.drafter = drafting(late.id, 299, feed)
    assert feed.complete and feed.catching_up
    assert world.pauses()
    late.commit(late.take(late.tree_limits), Accepted([0], bonus=1), now=0.0)
    assert stepping(world.choose()) == [late]
    feed.acknowledge(299)
    assert world.pauses()


def test_of_prompts_the_shortest_remainder_is_read_first_and_the_oldest_is_sure_of_a_part() -> None:
    world = World()
    oldest, middle, short = world.session(1000, read=0), world.session(500, read=0), world.session(21, read=0)
    assert world.choose().prefilling == [(oldest, 25), (middle, 55), (short, 20)]
    short.kv_length, middle.kv_length = 20, 480
    assert world.choose().prefilling == [(oldest, 81), (middle, 19)]


def test_a_prompt_behind_much_longer_ones_is_read_at_once() -> None:
    world = World()
    for _ in range(3):
        world.session(2000, read=0)
    short = world.session(21, read=0)
    assert (short, 20) in world.choose().prefilling
