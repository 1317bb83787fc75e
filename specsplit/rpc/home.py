"""Which of its coordinators a member calls its home. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256


def home_of(member_id: str, coordinators: Iterable[str]) -> str:
    """The coordinator of a member that places most of its sessions; empty if there are none.

    It is the one whose hash with the member's name is the highest (D. Thaler, C. Ravishankar: Using Name-Based Mappings to Increase Hit
    Rates, 1998): coordinators are the homes of about as many members each, and when one comes or goes only its members move.
    """
    return max(coordinators, key=lambda each: sha256(f"{member_id} {each}".encode()).digest(), default="")
