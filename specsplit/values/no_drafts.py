"""Why steps verified no drafts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NoDraftsCause(StrEnum):
    """What kept drafts out of a step of a session."""

    __hash__ = str.__hash__  # Enum's own is Python, and causes are counted in every step

    REQUEST = "request"
    """The request wants none: no drafter, or a plan without drafts."""
    PLAN = "plan"
    """The plan in force has none."""
    NO_DRAFTER = "no_drafter"
    """There is no drafter for the session: none that fits is in the cluster, or its own was lost a moment ago."""
    REFUSED = "refused"
    """Its drafter has refused it, or was given up for it."""
    RESTING = "resting"
    """Its drafter rests: many steps in a row took nothing of what it had, or more tokens a second are committed without it."""
    EMPTY = "empty"
    """Its drafter has said that it has nothing for the step."""
    LATE = "late"
    """Its drafter had not answered yet, and nobody waited for it any longer."""
    PRICE = "price"
    """There were nodes, and none was worth the time that it adds to the step."""
    ROOM = "room"
    """The step had no room for a node: the answer was about to end, or the KV pool was full."""
    MEMORY = "memory"
    """There were nodes, and likelier ones of other sessions took all the memory for states of recurrent layers."""


_CLAUSES = {
    NoDraftsCause.REQUEST: "the request asks for none",
    NoDraftsCause.PLAN: "the plan in force has none",
    NoDraftsCause.NO_DRAFTER: "no drafter that fits is in the cluster, or the session's own was just lost",
    NoDraftsCause.REFUSED: "the drafter refused the session or failed on it; the verifier's log says why",
    NoDraftsCause.RESTING: "the drafter was told to rest, since what it brings was not worth what it takes",
    NoDraftsCause.EMPTY: "the drafter has nothing to propose",
    NoDraftsCause.LATE: "the drafter answers later than is worth waiting for",
    NoDraftsCause.PRICE: "none is worth the time that it adds to a step",
    NoDraftsCause.ROOM: "there is no room for them, since the answer is about to end or the KV pool is full",
    NoDraftsCause.MEMORY: "likelier ones of other sessions take all the memory for states of recurrent layers (step_states_bytes)",
}
"""Each stands behind "no drafts:", or behind "hardly any drafts: in most steps"."""


@dataclass(frozen=True)
class NoDrafts:
    """Why all steps of a session, or of a verifier lately, had no drafts, or all but a few: what most of them had none for.

    The numbers are known for PRICE alone, and not always. They are of a session in a step, the mean where a step has several.
    """

    cause: NoDraftsCause
    nodes: int = 0
    """Nodes that the plan of the settings would verify; 0: the numbers are not known."""
    cost_ratio: float = 0.0
    """Seconds of the step with them, over those of the step without."""
    tokens: float = 0.0
    """Tokens that the step is expected to commit with them, bonus included; without them it is 1."""
    rarely: bool = False
    """True: a few steps had drafts. False: none had."""

    @property
    def sentence(self) -> str:
        """The reason in words, without a full stop."""
        what = "hardly any drafts" if self.rarely else "no drafts"
        if not self.nodes:
            return f"{what}: {'in most steps ' if self.rarely else ''}{_CLAUSES[self.cause]}"
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        return (
            f"{what}: a step with {nodes} costs {self.cost_ratio:.1f} times one without, "
            f"and {self.tokens:.1f} tokens are expected"
        )
