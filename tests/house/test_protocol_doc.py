"""docs/protocol.md is what the code gives."""

from __future__ import annotations

from scripts.print_protocol import PAGE, attribute_docstrings, page
from specsplit.speculation import TRANSITIONS, Event, State


def test_the_protocol_page_is_what_the_code_gives() -> None:
    assert PAGE.read_text() == page(), "run .venv/bin/python -m scripts.print_protocol"


def test_every_state_and_event_has_a_sentence() -> None:
    assert set(attribute_docstrings(State)) == {state.name for state in State}
    assert set(attribute_docstrings(Event)) == {event.name for event in Event}


def test_the_diagrams_have_an_arrow_for_every_transition() -> None:
    lines = page().splitlines()
    for (_, before, event), after in TRANSITIONS.items():
        arrows = [line for line in lines if line.startswith(f"    {before.value} --> {after.value}: ")]
        assert any(event.value in line.partition(": ")[2].split(", ") for line in arrows)
