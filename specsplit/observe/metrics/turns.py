"""Turns of a rank group, as each of its ranks counts them."""

from __future__ import annotations

from specsplit.observe import metric_table as table
from specsplit.observe.instruments import Instruments
from specsplit.records import TurnCosts


class Turns:
    """Counts what forwards were to a rank of a group."""

    def __init__(self, made: Instruments) -> None:
        self._idle = made.counter(table.IDLE_TURNS)
        self._waves = made.counter(table.WAVES)
        self._imbalance = made.histogram(table.TURN_IMBALANCE)
        self._wake_time = made.histogram(table.WAKE_TIME)

    def count(self, turn: TurnCosts, *, idle: bool) -> None:
        """Count one turn in which there was a forward; `idle`: this rank had no rows."""
        self._idle.add(idle)
        self._waves.stand_at(turn.wave)
        self._imbalance.observe(turn.imbalance)
        if turn.woke_s is not None:
            self._wake_time.observe(turn.woke_s)
