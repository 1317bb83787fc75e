"""Whether drafters work, and whether that is on trial."""

from __future__ import annotations

from enum import StrEnum


class Arm(StrEnum):
    """What the drafters of a verifier do in a step: what is in force, or for a while the other thing, to see which is better."""

    __hash__ = str.__hash__  # Enum's own is Python, and seconds are counted in every step

    WORK = "work"
    """They work, and that is in force."""
    REST = "rest"
    """They rest, having been told to, and that is in force."""
    WORK_TRIED = "work_tried"
    """They work for a while, where resting is in force."""
    REST_TRIED = "rest_tried"
    """They rest for a while, where working is in force."""
