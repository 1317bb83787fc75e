"""One process's part of a model that is split over several: the leader's forwards are its followers' too."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from specsplit.model.graphs import OnLaunch, unwatched
from specsplit.model.layers.capture import Hidden
from specsplit.model.layers.sharded import ShardedBlocks
from specsplit.model.lm.causal_lm import CausalLM
from specsplit.model.pages.batch import Row
from specsplit.model.pages.tables import Slots
from specsplit.model.ranks.commands import Command, Forward, Leave, Move, Trial, Turn, unpacked
from specsplit.model.ranks.followers import Followers
from specsplit.model.ranks.tensor_group import TensorGroup
from specsplit.ranks.demand import EAGER, Demand


class SplitLM(CausalLM):
    """A CausalLM with the attention heads and the KV of this process alone. Once it leads, followers do whatever it does.

    It is loaded with a `split`, and captured within `TensorGroup.together`, by all processes at the same time, before one of them leads.

    If this rank is one of a group, its MLPs are sharded over the ranks too: each process shares its part with those processes of the other
    ranks that have the same part.
    """

    _followers: Followers | None = None

    @property
    def _together(self) -> ShardedBlocks:
        """Always the blocks: the processes of a split model capture together, whether they share MLPs with other ranks or not."""
        return self.blocks

    def lead(self, group: TensorGroup) -> None:
        """From now on the other processes of this rank `follow`."""
        self._followers = Followers(group, self.pool.tables)

    @contextmanager
    def turn(self, rows: Sequence[int], demand: Demand) -> Iterator[None]:
        """Have the followers take part in the turn, even if it has no rows of this rank."""
        with super().turn(rows, demand):
            if self._followers is None or not any(rows):
                yield
            else:
                with self._followers.turn(Turn(rows, demand)):
                    yield

    def forward_capturing(
        self, rows: Sequence[Row], layers: Collection[int], on_launch: OnLaunch = unwatched
    ) -> tuple[Tensor, Hidden]:
        """Have the followers run the rows too. Hidden states are whole on this process, and followers have no use for theirs."""
        if self._followers is None or not rows:
            return super().forward_capturing(rows, layers, on_launch)
        self.capture.check(layers)
        if self._followers.due is None:  # it takes no turns with other ranks
            with self.turn([sum(row.num_tokens for row in rows)], self.demand(rows, layers)):
                return self.forward_capturing(rows, layers, on_launch)
        with self._followers.forward(rows, self._followers.due):
            return super().forward_capturing(rows, layers, on_launch)

    def trial(self) -> None:
        if self._followers is None:
            return super().trial()
        if self._followers.due is None:  # it takes no turns with other ranks
            with self.turn([1], EAGER):
                return self.trial()
        with self._followers.trial(self._followers.due):
            return super().trial()

    def move(self, source: Slots, target: Slots) -> None:
        if self._followers is not None:
            self._followers.move(source, target)
        super().move(source, target)


def follow(lm: SplitLM, group: TensorGroup) -> None:
    """Do what the leader tells, until it leaves. Raises RankLost."""
    while not isinstance(command := unpacked(group.hear()), Leave):
        with group.together():
            _obey(lm, group, command)


def _obey(lm: SplitLM, group: TensorGroup, command: Command) -> None:
    """Carry out one command. What fails in a turn ends the group, before the turn would go on without the rest of its forward."""
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
