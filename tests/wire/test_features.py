"""Features on the wire: what a drafter needs, how it is laid out, the rows, and how far they have been read."""

from __future__ import annotations

import pytest
from hypothesis import given

from specsplit.draft_events import FeaturesRead, Open
from specsplit.errors import InvalidRequest
from specsplit.features import LAST, FeatureFormat, FeatureLayout, FeatureNeed, Features
from specsplit.v1 import common_pb2, drafter_pb2, verifier_pb2
from specsplit.values import DrafterInfo, DrafterKind, Endpoint, Plan, Sampling, Vocabulary
from specsplit.wire import common, drafter, verifier
from tests.wire.strategies import features, layouts, needs, reads

EAGLE3 = FeatureNeed((2, 3, LAST), 256, FeatureFormat.BFLOAT16, "ab" * 32, 128)
ROWS = Features(3, 2, bytes(range(16)), bytes(8))


def asked(message: drafter_pb2.DraftRequestEvent) -> object:
    """What a drafter makes of one event."""
    data = drafter_pb2.DraftRequest(events=[message]).SerializeToString()
    ((_, event),) = drafter.draft_request_events(drafter_pb2.DraftRequest.FromString(data))
    return event


@given(needs)
def test_a_need_survives_wherever_it_stands(need: FeatureNeed) -> None:
    message = common_pb2.FeatureNeed.FromString(common.need_to_wire(need).SerializeToString())
    assert common.need_from_wire(message) == need
    info = DrafterInfo(DrafterKind.EAGLE, "head", None, 512, need)
    assert common.drafter_from_wire(common.drafter_to_wire(info)) == info
    endpoint = Endpoint("d1", "host:1", need)
    assert verifier.endpoint_from_wire(verifier.endpoint_to_wire(endpoint)) == endpoint


@given(layouts)
def test_a_layout_survives_alone_and_in_an_open(layout: FeatureLayout) -> None:
    message = common_pb2.FeatureLayout.FromString(common.layout_to_wire(layout).SerializeToString())
    assert common.layout_from_wire(message) == layout
    event = Open((1,), Sampling(), Plan(), Vocabulary(9), 4, features=layout)
    assert asked(drafter_pb2.DraftRequestEvent(open=drafter.open_to_wire(event))) == event


@given(features(), reads)
def test_rows_and_how_far_they_are_read_survive(rows: Features, read: FeaturesRead) -> None:
    assert drafter.features_from_wire(drafter.features_to_wire(rows)) == rows
    data = drafter.draft_response([(7, read)]).SerializeToString()
    assert list(drafter.draft_response_events(drafter_pb2.DraftResponse.FromString(data))) == [(7, read)]


def test_what_needs_nothing_says_nothing() -> None:
    ngram = DrafterInfo(DrafterKind.NGRAM, "", None, 512)
    assert not common.drafter_to_wire(ngram).HasField("features")
    assert not verifier.endpoint_to_wire(Endpoint("d1", "host:1")).HasField("features")
    assert not drafter.open_to_wire(Open((1,), Sampling(), Plan(), Vocabulary(9), 4)).HasField("features")
    assert common.need_from_wire(common_pb2.FeatureNeed()) == FeatureNeed()


def test_a_need_on_the_wire_is_what_the_proto_says() -> None:
    assert common.need_to_wire(EAGLE3) == common_pb2.FeatureNeed(
        layers=[2, 3, -1],
        hidden_size=256,
        format=common_pb2.FEATURE_FORMAT_BFLOAT16,
        projection="ab" * 32,
        projected_size=128,
    )
    plain = common.need_to_wire(FeatureNeed((LAST,), 256))
    assert plain.format == common_pb2.FEATURE_FORMAT_UNSPECIFIED


@pytest.mark.parametrize("kind", DrafterKind)
def test_every_kind_has_a_number_of_its_own(kind: DrafterKind) -> None:
    message = common.drafter_to_wire(DrafterInfo(kind, "", None, 512))
    assert common_pb2.DrafterKind.Name(message.kind) == f"DRAFTER_KIND_{kind.name}"


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ({"layers": [2, -2], "hidden_size": 8}, "features.layers[1]"),
        ({"layers": [1]}, "features.hidden_size"),
        ({"layers": [1], "hidden_size": 8, "projection": "ab"}, "features.projected_size"),
        ({"layers": [1], "hidden_size": 8, "format": 99}, "features.format"),
    ],
)
def test_a_need_that_cannot_be_is_refused_by_name_wherever_it_stands(broken: dict[str, object], field: str) -> None:
    need = common_pb2.FeatureNeed(**broken)  # pyright: ignore[reportArgumentType]
    info = common_pb2.DrafterInfo(kind=common_pb2.DRAFTER_KIND_EAGLE3, features=need)
    address = verifier_pb2.DrafterAddress(member_id="d1", address="host:1", features=need)
    for read in (lambda: common.drafter_from_wire(info), lambda: verifier.endpoint_from_wire(address)):
        with pytest.raises(InvalidRequest) as caught:
            read()
        assert caught.value.field == field


@pytest.mark.parametrize("form", [common_pb2.FEATURE_FORMAT_UNSPECIFIED, 99])
def test_a_layout_says_its_format(form: common_pb2.FeatureFormat) -> None:
    event = drafter_pb2.OpenEvent(
        token_ids=[1], vocabulary={"size": 9}, max_nodes=4, features={"width": 8, "format": form}
    )
    refused = asked(drafter_pb2.DraftRequestEvent(open=event))
    assert isinstance(refused, InvalidRequest) and refused.field == "features.format"


@pytest.mark.parametrize("count", [0, 65_537])
def test_features_of_no_tokens_or_of_endlessly_many_are_refused_and_end_their_own_session_alone(count: int) -> None:
    message = drafter_pb2.DraftRequest(
        events=[
            drafter_pb2.DraftRequestEvent(session_id=1, features=drafter_pb2.FeaturesEvent(count=count)),
            drafter_pb2.DraftRequestEvent(session_id=2, features=drafter.features_to_wire(ROWS)),
        ]
    )
    (_, first), (_, second) = drafter.draft_request_events(message)
    assert isinstance(first, InvalidRequest) and first.field == "features.count"
    assert second == ROWS


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        (Features(3, 2, bytes(15), bytes(8)), "features.data"),
        (Features(3, 3, bytes(16), bytes(8)), "features.data"),
        (Features(3, 2, bytes(16), bytes(4)), "features.scales"),
        (Features(3, 2, bytes(16)), "features.scales"),
    ],
)
def test_rows_that_are_not_laid_out_as_the_open_said_are_refused_with_the_numbers(rows: Features, field: str) -> None:
    layout = FeatureLayout(8, FeatureFormat.FP8_E4M3)
    layout.check(ROWS)
    with pytest.raises(InvalidRequest) as caught:
        layout.check(rows)
    assert caught.value.field == field


def test_scales_where_the_format_has_none_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"features\.scales: has 8 bytes, expected 0"):
        FeatureLayout(4, FeatureFormat.BFLOAT16).check(ROWS)
