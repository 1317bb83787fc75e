"""Counts are told of once: what was taken is whole and stays as it is, and everything begins anew."""

from __future__ import annotations

from dataclasses import fields

import pytest

from specsplit.records import Counters, DraftCounters, KVCounters


@pytest.mark.parametrize("kind", [DraftCounters, KVCounters])
def test_all_counts_are_taken_and_begin_anew(kind: type[Counters]) -> None:
    counters = kind()
    for number, field in enumerate(fields(counters), start=1):
        setattr(counters, field.name, [float(number)] if field.type == "list[float]" else number)
    taken = counters.take()
    assert all(getattr(taken, field.name) != getattr(kind(), field.name) for field in fields(taken))
    assert counters == kind()


def test_what_was_taken_does_not_grow_any_more() -> None:
    counters = DraftCounters(late_nodes=2, round_trips_s=[0.25])
    taken = counters.take()
    counters.round_trips_s.append(0.5)
    counters.late_nodes += 1
    assert taken == DraftCounters(late_nodes=2, round_trips_s=[0.25])
    assert counters.take() == DraftCounters(late_nodes=1, round_trips_s=[0.5])
