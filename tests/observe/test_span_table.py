"""The table of spans agrees with itself, and docs/traces.md is what it gives."""

from __future__ import annotations

import pytest

from scripts.print_spans import PAGE, page
from specsplit.observe.span_table import SPANS, SpanRow, problems_of, row, rows_at
from specsplit.values import SERVICES, DrafterKind

BY_PLACE = {each.place: each for each in SPANS}


def test_the_page_is_what_the_table_gives() -> None:
    assert PAGE.read_text() == page(), "run .venv/bin/python -m scripts.print_spans"


def test_every_place_is_there_once_and_at_a_service() -> None:
    assert len(BY_PLACE) == len(SPANS)
    assert {each.service for each in SPANS} == set(SERVICES)


@pytest.mark.parametrize("span", SPANS, ids=lambda span: span.place)
def test_what_a_span_hangs_below_is_made_wherever_it_is(span: SpanRow) -> None:
    parent = BY_PLACE[span.parent] if span.parent else None
    assert parent is None or (parent.level <= span.level and parent.drafters >= span.drafters)


@pytest.mark.parametrize("span", [each for each in SPANS if each.link], ids=lambda span: span.place)
def test_what_a_span_links_to_is_a_root_of_its_service_that_is_made_wherever_it_is(span: SpanRow) -> None:
    batch = BY_PLACE[str(span.link)]
    assert (batch.parent, batch.service) == (None, span.service)
    assert batch.level <= span.level and batch.drafters >= span.drafters


def test_attributes_are_named_once() -> None:
    for span in SPANS:
        names = [each.name for each in span.attributes]
        assert len(set(names)) == len(names)


def test_a_drafter_without_a_model_reads_nothing() -> None:
    ngram = {each.name for each in rows_at(3, DrafterKind.NGRAM)}
    eagle = {each.name for each in rows_at(3, DrafterKind.EAGLE3)}
    assert eagle - ngram == {"spec_draft_extend"}
    assert {each.service for each in rows_at(3)} == {"coordinator", "verifier"}


def test_the_first_level_is_the_stages_of_a_request() -> None:
    internal = [each.name for each in rows_at(1, DrafterKind.STANDALONE) if each.kind == "internal"]
    assert internal == ["generate", "tokenize", "queue", "session", "session", "prefill", "decode"]


def test_what_is_wrong_with_attributes_is_named() -> None:
    chunk = row("verifier", "prefill_chunk")
    assert problems_of(chunk, {"first": 0, "tokens": 3}.items()) == []
    problems = problems_of(chunk, {"first": 0.0, "token": 3}.items())
    assert problems == [
        "prefill_chunk: tokens is missing",
        "prefill_chunk: token is not in the table",
        "prefill_chunk: first is 0.0, expected int",
    ]
    with pytest.raises(KeyError, match="verifier internal nothing"):
        row("verifier", "nothing")
