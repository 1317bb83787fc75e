"""Which backend attends where nobody says it: on a GPU the fastest of those that can be set up there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from specsplit.errors import LoadError
from specsplit.model.attention.backends import BACKENDS, choose_backend, obstacle_over
from specsplit.model.attention.flashinfer.workspace import WORKSPACES
from specsplit.model.attention.interface import AttentionBackend
from specsplit.model.pages.kv import KVCache

_log = logging.getLogger(__name__)

ON_A_GPU: Final = ("flashinfer", "triton")
"""The one that is taken where they are not compared comes first."""
Seconds = Callable[[AttentionBackend], float | None]
"""How long a backend takes for a step; None: that cannot be measured."""


def backend_over(
    name: str, kv: KVCache, page_size: int, seconds: Seconds | None = None
) -> tuple[str, AttentionBackend]:
    """The backend called `name` over this KV, set up, and its name; `auto`: the best that can be had.

    `seconds`: by which those that can be had on a GPU are compared; None: the first is taken, as where ranks are to choose alike.

    Raises LoadError as `choose_backend` does, for one that cannot be set up, and on a GPU for which there is none but torch.
    """
    if name == "auto" and kv.device.type == "cuda":
        return fastest(kv, page_size, ON_A_GPU, seconds)
    chosen = choose_backend(name, kv)
    return chosen, BACKENDS[chosen](kv, page_size)


def fastest(kv: KVCache, page_size: int, names: Sequence[str], seconds: Seconds | None) -> tuple[str, AttentionBackend]:
    """Set up what can be had of these, and take the one that takes the least time. Raises LoadError if nothing can be had."""
    made, missing = dict[str, AttentionBackend](), dict[str, str]()
    for name in names:
        why = obstacle_over(name, kv)
        if why is None:
            try:
                made[name] = BACKENDS[name](kv, page_size)
            except LoadError as error:
                why = str(error)
        if why is not None:
            missing[name] = why
    if not made:
        whys = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise LoadError(
            f"no attention kernels can be had for {kv.device}: {whys}; attention = torch does without, and is many times slower"
        )
    chosen = _least(made, seconds) if len(made) > 1 and seconds is not None else next(iter(made))
    for name, why in missing.items():
        _log.warning("attention = auto takes %s, and not %s: %s", chosen, name, why)
    if chosen != "flashinfer":
        WORKSPACES.forget(kv.device)
    return chosen, made[chosen]


def _least(made: dict[str, AttentionBackend], seconds: Seconds) -> str:
    taken = {name: took for name, backend in made.items() if (took := seconds(backend)) is not None}
    if len(taken) < len(made):
        return next(iter(made))
    chosen = min(taken, key=taken.__getitem__)
    told = ", ".join(f"{name} {1e3 * took:.3f} ms" for name, took in taken.items())
    _log.info("attention = auto takes %s: attention of a step takes %s", chosen, told)
    return chosen
