"""Every option of a request is carried up to its bound, and refused by its name beyond: protobuf's own complaint names no field."""

from __future__ import annotations

from typing import Any, get_type_hints

import grpc
import pytest

from specsplit.client import ChatMessage, ChatPrompt, Options
from specsplit.client.options import check_timeout, make_request
from specsplit.errors import InvalidRequest
from specsplit.values import PlanChanges
from specsplit.values.bounds import MOST_SECONDS, UINT32_MAX, UINT64_MAX
from specsplit.values.sampling import MAX_REPETITION_PENALTY, MAX_TEMPERATURE
from specsplit.wire.coordinator import generate_from_wire, generate_to_wire

EDGES: dict[str, tuple[Any, Any]] = {
    "max_tokens": (UINT32_MAX, UINT32_MAX + 1),
    "temperature": (MAX_TEMPERATURE, MAX_TEMPERATURE + 1),
    "top_k": (UINT32_MAX, UINT32_MAX + 1),
    "top_p": (1.0, 1.1),
    "min_p": (1.0, 1.1),
    "seed": (UINT64_MAX, UINT64_MAX + 1),
    "logit_bias": ({UINT32_MAX: 1.0}, {UINT32_MAX + 1: 1.0}),
    "repetition_penalty": (MAX_REPETITION_PENALTY, MAX_REPETITION_PENALTY + 1),
    "frequency_penalty": (2.0, 2.1),
    "presence_penalty": (2.0, 2.1),
    "stop_token_ids": ([UINT32_MAX], [UINT32_MAX + 1]),
    "min_tokens": (UINT32_MAX, UINT32_MAX + 1),
    "n": (16, 17),
    "logprobs": (20, 21),
    "prompt_logprobs": (20, 21),
    "resume_from": ([UINT32_MAX], [UINT32_MAX + 1]),
    "priority": (9, 10),
    "stream_interval": (1024, 1025),
}
"""Every option that holds numbers: its largest value, and one beyond."""
BESIDE: dict[str, dict[str, Any]] = {"resume_from": {"seed": 1}}


def carried(**options: Any) -> None:
    """Send a request there and back again."""
    request = make_request(options.pop("prompt", "x"), **options)
    assert generate_from_wire(generate_to_wire(request)) == request


def test_the_table_has_every_option_that_holds_numbers() -> None:
    hints = get_type_hints(Options)
    assert set(EDGES) == {name for name, hint in hints.items() if "int" in repr(hint) or "float" in repr(hint)}


@pytest.mark.parametrize("name", EDGES)
def test_an_option_is_carried_up_to_its_bound_and_refused_beyond(name: str) -> None:
    largest, beyond = EDGES[name]
    carried(**{name: largest}, **BESIDE.get(name, {}))
    with pytest.raises(InvalidRequest) as caught:
        carried(**{name: beyond}, **BESIDE.get(name, {}))
    assert name in caught.value.field


@pytest.mark.parametrize("token", [UINT32_MAX + 1, 10**30])
@pytest.mark.parametrize("field", ["prompt", "stop_token_ids", "resume_from", "logit_bias"])
def test_a_token_that_the_wire_cannot_carry_is_told_with_its_field(field: str, token: int) -> None:
    value: Any = {token: 1.0} if field == "logit_bias" else [token]
    with pytest.raises(InvalidRequest, match=f"^{field}: has {token}, expected whole numbers from 0 to 4,294,967,295"):
        carried(**{field: value}, **BESIDE.get(field, {}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", "a\ud800"),
        ("prompt", ChatPrompt((ChatMessage("user", "a\udc00"),))),
        ("stop", ["\ud800"]),
    ],
)
def test_a_text_that_utf8_cannot_carry_is_told_with_its_field(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: has half a surrogate pair"):
        carried(**{field: value})


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\ud800", "x" * 257])
@pytest.mark.parametrize("field", ["request_id", "drafter"])
def test_a_name_that_cannot_be_shown_in_one_line_is_told_with_its_field(field: str, name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        carried(**{field: name})
    assert caught.value.field == field


def test_a_plan_is_bounded_too() -> None:
    largest: dict[str, Any] = {"num_steps": 64, "topk": 64, "num_draft_tokens": 256, "wait_budget_us": 60_000_000}
    carried(plan=PlanChanges(**largest))
    for name, most in largest.items():
        with pytest.raises(InvalidRequest, match=f"plan.{name}: is {most + 1}"):
            PlanChanges(**{name: most + 1})


@pytest.mark.parametrize("timeout_s", [MOST_SECONDS + 1, 1e308, float("inf"), float("nan")])
def test_a_timeout_beyond_what_is_carried_is_refused(timeout_s: float) -> None:
    with pytest.raises(InvalidRequest, match=r"timeout_s: is .*expected seconds, 0 to 2,147,483"):
        check_timeout(timeout_s)


def test_the_longest_timeout_is_one_that_grpc_takes() -> None:
    with grpc.insecure_channel("127.0.0.1:1") as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/x/y")(b"", timeout=check_timeout(MOST_SECONDS))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # pyright: ignore[reportAttributeAccessIssue]
