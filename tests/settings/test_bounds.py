"""Every number in the settings has an upper bound, and what carries the number can hold it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import grpc
import pytest
from pydantic import TypeAdapter, ValidationError

from specsplit.rpc.options import channel_options, server_options
from specsplit.settings import ClientSettings, CoordinatorSettings, DrafterSettings, Settings, VerifierSettings
from specsplit.v1 import cluster_pb2
from specsplit.values import Plan
from specsplit.values.bounds import INT32_MAX, MOST_SECONDS

CLASSES: tuple[type[Settings], ...] = (ClientSettings, CoordinatorSettings, DrafterSettings, VerifierSettings)
OF_PLAN = {field.name for field in fields(Plan)}
"""Settings that Plan bounds, in a validator of the whole."""


def numbers() -> Iterator[tuple[type[Settings], str, dict[str, Any]]]:
    """All settings that are numbers, with their JSON schema."""
    for cls in CLASSES:
        for name, schema in cls.model_json_schema()["properties"].items():
            for kind in schema.get("anyOf", [schema]):
                if kind.get("type") in ("integer", "number") and name not in OF_PLAN:
                    yield cls, name, kind


NUMBERS = [pytest.param(*each, id=f"{each[0].__name__}.{each[1]}") for each in numbers()]


@pytest.mark.parametrize(("cls", "name", "kind"), NUMBERS)
def test_a_number_is_taken_up_to_its_bound_and_refused_beyond(
    cls: type[Settings], name: str, kind: dict[str, Any]
) -> None:
    assert "maximum" in kind, f"{name} has no upper bound: give it a type of specsplit/settings/units.py"
    adapter: TypeAdapter[Any] = TypeAdapter(cls.model_fields[name].rebuild_annotation())
    most = kind["maximum"]
    assert adapter.validate_python(most) == most
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python(most + 1)
    (problem,) = caught.value.errors()
    assert problem["msg"].endswith(f" or equal to {int(most)}")


def test_a_channel_takes_the_longest_times_and_largest_messages() -> None:
    settings = ClientSettings(keepalive_s=MOST_SECONDS, connect_timeout_s=MOST_SECONDS, max_message_bytes=INT32_MAX)
    for options in (channel_options(settings), server_options(settings)):
        assert all(isinstance(value, int) and abs(value) <= INT32_MAX for _, value in options)
        grpc.insecure_channel("127.0.0.1:1", options=options).close()


def test_a_message_holds_the_longest_heartbeat() -> None:
    assert cluster_pb2.RegisteredDirective(heartbeat_interval_ms=INT32_MAX).heartbeat_interval_ms == INT32_MAX
