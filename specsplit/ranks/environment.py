"""Which process of its group this one is, as torchrun says in the environment.

A rank may be several processes, `tp_size` of them: those with numbers k * tp_size to k * tp_size + tp_size - 1 are rank k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from specsplit.errors import InvalidRequest, quoted
from specsplit.settings.engine import EngineSettings

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PORTS = ("listen", "advertise", "metrics_listen")
_DIGITS = 9
"""Digits of a number of torchrun's, at most."""
S = TypeVar("S", bound=EngineSettings)


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """Where a process stands in its group."""

    number: int
    local: int
    """The process's number among those on this machine."""
    size: int = 1
    """Ranks of its group; 1: it is alone."""
    agents: int = 1
    """torchrun processes that started them: of several pods each has one."""
    split: int = 1
    """Processes of its rank."""

    @property
    def rank(self) -> int:
        """Which rank it is, or is of."""
        return self.number // self.split

    @property
    def follows(self) -> bool:
        """True if another process leads its rank: the first of it."""
        return self.number % self.split != 0

    @classmethod
    def of(cls, settings: EngineSettings, environ: Mapping[str, str]) -> Self:
        """Raises InvalidRequest unless settings and environment fit together."""
        _check(settings, environ)
        number = _number(environ, "RANK", 0)
        local, agents = _number(environ, "LOCAL_RANK", number), _number(environ, "GROUP_WORLD_SIZE", 1)
        _, count = settings.started_together
        return cls(number, local, settings.dp_size, agents, count // settings.dp_size)

    def status(self, *, dismissed: bool) -> int:
        """Exit status of one that leaves in good order; `dismissed`: the coordinator told it to, and so tells all ranks of its group.

        Of a group 0 means that all ranks leave for good. Its agent starts one that leaves with 1 again, and the others with it.
        That has to be so if nobody has told the others, and if there are several agents: of these only those that were told to stop
        do so by themselves, and each of the others would wait for them, for 300 s, and then forbid the group to meet again
        (`_exit_barrier` and `launch_agent` in torch.distributed). An agent that was told to stop heeds no status. The leader of a split
        target that is no rank of a group is alone in this, since it tells its followers itself.
        """
        return 0 if (dismissed or self.size == 1) and self.agents == 1 else 1

    def settings(self, shared: S) -> S:
        """The settings of this rank, of those that the whole group is given."""
        own: dict[str, object] = {}
        if shared.dp_size > 1:
            own |= {name: self._address(vars(shared)[name]) for name in _PORTS}
            own |= {"member_id": f"{shared.member_id}-{self.rank}"} if shared.member_id else {}
        if shared.device == "cuda" and shared.started_together[1] > 1:
            own["device"] = f"cuda:{self.local}"
        return shared.model_copy(update=own) if own else shared

    def _address(self, address: str) -> str:
        host, _, port = address.rpartition(":")
        return address if port in ("", "0") else f"{host}:{int(port) + self.local}"


ALONE: Final = RankEnvironment(0, 0)


def _check(settings: EngineSettings, environ: Mapping[str, str]) -> None:
    (field, size), world = settings.started_together, environ.get("WORLD_SIZE", "")
    missing = [name for name in _VARIABLES if not environ.get(name)]
    if size > 1 and missing:
        raise InvalidRequest(
            field,
            f"is {size}, but the environment has no {' and no '.join(missing)}; start the ranks with torchrun --nproc-per-node {size}",
        )
    if world and world != str(size):
        raise InvalidRequest(field, f"is {size}, but WORLD_SIZE in the environment is {world}; make them equal")
    if settings.dp_size > 1 and not settings.coordinator:
        raise InvalidRequest(field, f"is {size}, but no coordinator is set, which requests of a group go through")
    if _number(environ, "GROUP_WORLD_SIZE", 1) > 1 and environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise InvalidRequest(
            field,
            f"is {size}, over several torchrun, of which one that is started anew would not meet the others in the store that they keep; "
            "start each with --rdzv-backend c10d and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment",
        )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "") or str(default)
    if not text.isdecimal() or len(text) > _DIGITS:
        raise InvalidRequest(
            name, f"in the environment is {quoted(text)}, expected a number of at most {_DIGITS} digits"
        )
    return int(text)
