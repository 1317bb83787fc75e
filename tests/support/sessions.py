"""Sessions of a verifier, and drafters at them, without an engine around them."""

from __future__ import annotations

from specsplit.model.pages.pool import PagePool, PageTable
from specsplit.sessions import DecodeRequest
from specsplit.speculation import Mirror
from specsplit.values import Plan
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.session import Session, StopRule
from specsplit_verifier.sessions.wait_policy import WaitPolicy


def session_of(
    number: int = 1,
    request: DecodeRequest | None = None,
    plan: Plan | None = None,
    *,
    tokens: int = 1,
    read: int = 0,
    most: int = 50,
) -> Session:
    """A session of so many tokens, all of them 1, of which the target has read some, with pages of its own; `most` may be generated."""
    text = [1] * tokens
    request = request or DecodeRequest("r", tuple(text))
    return Session(number, request, plan or Plan(), StopRule(most), PageTable(PagePool(8, 16)), text, read)


def drafting_for(number: int = 1, root: int = 0, address: str = "drafter") -> DraftSession:
    """A drafter that has grown nothing yet for a session whose root has position `root`."""
    return DraftSession(address, Mirror(number, 1, root, 50, 100), WaitPolicy())
