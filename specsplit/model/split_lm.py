"""One process's part of a model that is split over several: the leader's forwards are its followers' too."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from specsplit.model.batch import Row
from specsplit.model.capture import Hidden
from specsplit.model.causal_lm import CausalLM
from specsplit.model.commands import Command, Forward, Leave, Move, Trial, Turn, unpacked
from specsplit.model.followers import Followers
from specsplit.model.page_tables import Slots
from specsplit.model.sharded import ShardedBlocks
from specsplit.model.tensor_group import TensorGroup
from specsplit.ranks.demand import EAGER, Demand


class SplitLM(CausalLM):
    """A CausalLM with the attention heads and the KV of this process alone. Once it leads, followers do whatever it does.

    It is loaded with a `split`, and captured within `TensorGroup.together`, by all processes at the same time, before one of them leads.

    Of a rank of a group the MLPs are shared out over the ranks besides: each process shares its part of them with those of the other ranks
    that have the same part.
    """

    _followers: Followers | None = None

    @property
    def _together(self) -> ShardedBlocks:
        """Its processes have to capture the same, whether ranks share anything or not."""
        return self.blocks

    def lead(self, group: TensorGroup) -> None:
        """From now on the other processes of this rank `follow`."""
        self._followers = Followers(group, self.pool.tables)

    @contextmanager
    def turn(self, rows: Sequence[int], demand: Demand) -> Iterator[None]:
        """As CausalLM. Followers take part, whether there are rows of this rank or not."""
        with super().turn(rows, demand):
            if self._followers is None or not any(rows):
                yield
            else:
                with self._followers.turn(Turn(rows, demand)):
                    yield

    def forward_capturing(self, rows: Sequence[Row], layers: Collection[int]) -> tuple[Tensor, Hidden]:
        """As CausalLM. Hidden states are whole here, and of no use to followers."""
        if self._followers is None or not rows:
            return super().forward_capturing(rows, layers)
        self.capture.check(layers)
        if self._followers.due is None:  # it takes no turns with other ranks
            with self.turn([sum(row.num_tokens for row in rows)], self.demand(rows, layers)):
                return self.forward_capturing(rows, layers)
        with self._followers.forward(rows, self._followers.due):
            return super().forward_capturing(rows, layers)

    def trial(self) -> None:
        """As CausalLM."""
        if self._followers is None:
            return super().trial()
        if self._followers.due is None:  # as above
            with self.turn([1], EAGER):
                return self.trial()
        with self._followers.trial(self._followers.due):
            return super().trial()

    def move(self, source: Slots, target: Slots) -> None:
        """As ModelRunner."""
        if self._followers is not None:
            self._followers.move(source, target)
        super().move(source, target)


def follow(lm: SplitLM, group: TensorGroup) -> None:
    """Do what the leader tells, until it leaves. Raises RankLost."""
    while not isinstance(command := unpacked(group.hear()), Leave):
        with group.together():
            _obey(lm, group, command)


def _obey(lm: SplitLM, group: TensorGroup, command: Command) -> None:
    """What fails in a turn ends the group before the turn would go on without the rest of its forward."""
    match command:
        case Forward():
            with lm.turn(command.turn.rows, command.turn.demand), group.or_leave():
                lm.forward(command.rows)
        case Move():
            lm.move(command.source, command.target)
        case Trial():
            with lm.turn(command.turn.rows, command.turn.demand), group.or_leave():
                lm.trial()
        case Leave():
            pass
