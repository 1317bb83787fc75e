"""Other weights for a model that is served: the calls of operators, and of a coordinator that passes them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from specsplit.engine import MemberUpdated, Updated, UpdateWeights
from specsplit.errors import InvalidRequest, shortened
from specsplit.v1 import common_pb2, drafter_pb2, verifier_pb2
from specsplit.v1 import coordinator_pb2 as pb
from specsplit.values import DrafterKind
from specsplit.wire import common
from specsplit.wire.checks import check
from specsplit.wire.coordinator import refuse_unknown
from specsplit.wire.limits import MAX_SENTENCE

UpdateMessage: TypeAlias = pb.UpdateWeightsRequest
UpdatedMessage: TypeAlias = pb.UpdateWeightsResponse


def verifier_update_to_wire(wanted: UpdateWeights) -> verifier_pb2.VerifierServiceUpdateWeightsRequest:
    return verifier_pb2.VerifierServiceUpdateWeightsRequest(update=_update_to_wire(wanted))


def verifier_update_from_wire(message: verifier_pb2.VerifierServiceUpdateWeightsRequest) -> UpdateWeights:
    """Raises InvalidRequest for an unknown field, a name that is none, or a time out of range."""
    check(message)
    refuse_unknown(message)
    return _update_from_wire(message.update)


def verifier_updated_to_wire(updated: Updated) -> verifier_pb2.VerifierServiceUpdateWeightsResponse:
    message = shortened(updated.message, MAX_SENTENCE)
    return verifier_pb2.VerifierServiceUpdateWeightsResponse(version=updated.version, message=message)


def verifier_updated_from_wire(message: verifier_pb2.VerifierServiceUpdateWeightsResponse) -> Updated:
    """Raises InvalidRequest for what is too long, Incompatible if it is no answer at all."""
    check(message)
    return Updated(message.version, message.message)


def drafter_update_to_wire(wanted: UpdateWeights) -> drafter_pb2.DrafterServiceUpdateWeightsRequest:
    return drafter_pb2.DrafterServiceUpdateWeightsRequest(update=_update_to_wire(wanted))


def drafter_update_from_wire(message: drafter_pb2.DrafterServiceUpdateWeightsRequest) -> UpdateWeights:
    """Raises InvalidRequest as `verifier_update_from_wire` does."""
    check(message)
    refuse_unknown(message)
    return _update_from_wire(message.update)


def drafter_updated_to_wire(updated: Updated) -> drafter_pb2.DrafterServiceUpdateWeightsResponse:
    message = shortened(updated.message, MAX_SENTENCE)
    return drafter_pb2.DrafterServiceUpdateWeightsResponse(version=updated.version, message=message)


def drafter_updated_from_wire(message: drafter_pb2.DrafterServiceUpdateWeightsResponse) -> Updated:
    """Raises InvalidRequest for what is too long, Incompatible if it is no answer at all."""
    check(message)
    return Updated(message.version, message.message)


def update_to_wire(wanted: UpdateWeights, member_id: str, drafters: DrafterKind | None) -> pb.UpdateWeightsRequest:
    kind = common.kind_to_wire(drafters) if drafters else None
    return pb.UpdateWeightsRequest(update=_update_to_wire(wanted), member_id=member_id, drafters=kind)


def update_from_wire(message: pb.UpdateWeightsRequest) -> tuple[UpdateWeights, str, DrafterKind | None]:
    """What is wanted, and the member id of whom, empty: of all verifiers, or of all drafters of the kind if there is one.

    Raises InvalidRequest for an unknown field, a name that is none, a time out of range, or a member and a kind together.
    """
    check(message)
    refuse_unknown(message)
    kind = common.kind_from_wire(message.drafters, "drafters") if message.drafters else None
    if kind and message.member_id:
        raise InvalidRequest("drafters", f"is {kind}, and member_id is {message.member_id!r}: expected one of them")
    return _update_from_wire(message.update), message.member_id, kind


def updated_to_wire(answers: Sequence[MemberUpdated]) -> pb.UpdateWeightsResponse:
    members = [
        pb.UpdatedMember(member_id=each.member_id, version=each.version, message=shortened(each.message, MAX_SENTENCE))
        for each in answers
    ]
    return pb.UpdateWeightsResponse(members=members)


def updated_from_wire(message: pb.UpdateWeightsResponse) -> tuple[MemberUpdated, ...]:
    """Raises InvalidRequest for what is too long, Incompatible if it is no answer at all."""
    check(message)
    return tuple(MemberUpdated(each.version, each.message, each.member_id) for each in message.members)


def _update_to_wire(wanted: UpdateWeights) -> common_pb2.WeightsUpdate:
    return common_pb2.WeightsUpdate(folder=wanted.folder, restart=wanted.restart, timeout_s=wanted.timeout_s)


def _update_from_wire(message: common_pb2.WeightsUpdate) -> UpdateWeights:
    if not message.folder:
        raise InvalidRequest("update.folder", "is empty, expected the name of a folder in weights_dir of the service")
    return UpdateWeights(message.folder, message.restart, message.timeout_s)
