"""Room for the states of recurrent layers: those of all sessions, and of the drafts of a step."""

from __future__ import annotations

import logging
from typing import Final

import torch

from specsplit.errors import LoadError
from specsplit.model.attention.support import refusing
from specsplit.model.pages.states import RecurrentStates
from specsplit.model.tensors.device import free_bytes
from specsplit.observe import fields
from specsplit.settings import VerifierSettings

_log = logging.getLogger(__name__)

_GPU_SHARE: Final = 4
"""One part in so many of what is free of a GPU is for the drafts of a step, unless a setting says how much is."""
_CPU_BYTES: Final = 1 << 30


def make_room(states: RecurrentStates, settings: VerifierSettings) -> None:
    """Take the memory for the states of all sessions now, and tell how much those of a step's drafts may take.

    Raises LoadError, saying what to set, if there is too little.
    """
    each, sessions = states.session_bytes, settings.max_sessions
    with refusing(
        f"there is no memory for the states of recurrent layers, {each} bytes of each of max_sessions = {sessions}; set that lower"
    ):
        states.reserve(sessions + 1)  # one more page table may be that of what is computed again
    wanted = settings.step_states_bytes
    limit = states.step_bytes = _share(states.device) if wanted is None else wanted
    if limit < each:
        unset = "" if wanted is not None else f" of {states.device}, since it is unset"
        raise LoadError(
            f"step_states_bytes is {limit}{unset}, too few for one draft, behind which recurrent layers keep {each} bytes; set it to at "
            "least that, and max_sessions or kv_tokens lower if there is no memory for it"
        )
    held = {"session_bytes": each, "sessions_bytes": states.taken.sessions}
    _log.info("states of recurrent layers", extra=fields(**held, step_bytes=limit, step_nodes=limit // each))


def _share(device: torch.device) -> int:
    return free_bytes(device) // _GPU_SHARE if device.type == "cuda" else _CPU_BYTES
