"""Checks that the members of a cluster are compatible: their vocabularies, and the adapters and controllers of verifiers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from specsplit.errors import Incompatible
from specsplit.values import Adapter, Control, DrafterInfo, ModelInfo, Vocabulary
from specsplit_coordinator.members.member_state import MemberState


def compatible_info(member: MemberState, target: Vocabulary) -> DrafterInfo | None:
    """The info of the drafter `member`; None if its vocabulary does not fit that of the target."""
    info = member.who.role
    if not isinstance(info, DrafterInfo) or (info.vocabulary is not None and not info.vocabulary.fits(target)):
        return None
    return info


def check_vocabulary(member_id: str, model: ModelInfo, own: Vocabulary, verifiers: Sequence[MemberState]) -> None:
    """Raise Incompatible if a verifier that registers serves another vocabulary than the coordinator or the verifiers that are there."""
    mine = f"verifier {member_id} serves {model.model} with {model.vocabulary}"
    if not model.vocabulary.fits(own):
        raise Incompatible(f"vocabulary mismatch: {mine}; the coordinator's tokenizer has {own}")
    for member in verifiers:
        other = member.who.role
        if isinstance(other, ModelInfo) and not model.vocabulary.fits(other.vocabulary):
            theirs = f"verifier {member.member_id} serves {other.model} with {other.vocabulary}"
            raise Incompatible(f"vocabulary mismatch in one cluster: {mine}; {theirs}")


def different_adapters(verifiers: Sequence[MemberState]) -> str:
    """Which two verifiers have different adapters of one name, in words; empty if none have."""
    named: dict[str, tuple[Adapter, MemberState]] = {}
    for verifier in verifiers:
        for adapter in verifier.adapters:
            known, other = named.setdefault(adapter.name, (adapter, verifier))
            if known != adapter:
                return f"verifiers {other.member_id} and {verifier.member_id} have different adapters {adapter.name}"
    return ""


def having(verifiers: Sequence[MemberState], adapter: Adapter | None) -> Sequence[MemberState]:
    """Find the verifiers that have this very adapter; None: all of them are meant."""
    if adapter is None:
        return verifiers
    return [each for each in verifiers if adapter in each.adapters]


def check_controller(control: Control, verifiers: Sequence[MemberState]) -> None:
    """Raise Incompatible, naming the verifier, if one of them does not have this controller."""
    for member in verifiers:
        if not member.knows(control):
            known = ", ".join(member.who.controllers) or "none"
            raise Incompatible(
                f"verifier {member.member_id} runs a build that cannot be told to use {control.wanted} (it knows: {known}); "
                "update it, or choose a controller that every verifier knows"
            )
