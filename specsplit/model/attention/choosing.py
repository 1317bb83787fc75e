"""Which backend attends where nobody says it: on a GPU the faster of those with kernels for it, on a CPU kernels in C or torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import torch

from specsplit.errors import LoadError
from specsplit.model.attention.backends import BACKENDS, obstacle_over, require_backend
from specsplit.model.attention.interface import AttentionBackend, DevicePlanner
from specsplit.model.pages.kv import KVCache

_log = logging.getLogger(__name__)

ON_A_GPU: Final = ("flashinfer", "triton")
ELSEWHERE: Final = ("native", "torch")
"""The one that is taken where they are not compared comes first."""
Seconds = Callable[[AttentionBackend], float | None]
"""How long a backend takes for a step; None: that cannot be measured."""


def backend_over(
    name: str, kv: KVCache, page_size: int, seconds: Seconds | None = None
) -> tuple[str, AttentionBackend]:
    """The backend called `name` over this KV, set up, and its name; `auto`: the best that can be had.

    `seconds`: by which those that can be had on a GPU are compared; None: the first is taken, as where ranks are to choose alike.

    Raises LoadError as `require_backend` does, for one that cannot be set up, and on a GPU for which there is none but torch.
    """
    if name == "auto":
        return fastest(kv, page_size, candidates(kv.device), seconds if kv.device.type == "cuda" else None)
    require_backend(name, kv)
    return name, BACKENDS[name](kv, page_size)


def planner_on_device(backend: AttentionBackend, kv: KVCache, page_size: int) -> DevicePlanner | None:
    """Who lays out what only the device knows: the backend itself or, beside one that plans on the host, Triton's kernels.

    None: neither can, which the log says. On a GPU it is never torch, unless that was asked for.
    """
    if isinstance(backend, DevicePlanner):
        return backend
    found = _set_up("triton", kv, page_size)
    if isinstance(found, DevicePlanner):
        return found
    _log.warning(
        "levels of a tree are drawn one by one: only triton attends to what the device draws itself: %s", found
    )
    return None


def candidates(device: torch.device) -> Sequence[str]:
    """What `auto` may take on a device. torch is none of a GPU's: it is many times slower there than kernels, and has to be asked for."""
    return ON_A_GPU if device.type == "cuda" else ELSEWHERE


def fastest(kv: KVCache, page_size: int, names: Sequence[str], seconds: Seconds | None) -> tuple[str, AttentionBackend]:
    """Set up what can be had of these, and take the one that takes the least time. Raises LoadError if nothing can be had.

    `seconds`: None: the first that can be had is taken.
    """
    made, missing = dict[str, AttentionBackend](), dict[str, str]()
    for name in names:
        found = _set_up(name, kv, page_size)
        if isinstance(found, str):
            missing[name] = found
            continue
        made[name] = found
        if seconds is None:
            break
    if not made:
        whys = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise LoadError(
            f"no attention kernels can be had for {kv.device}: {whys}; attention = torch does without, and is many times slower"
        )
    chosen = _least(made, seconds) if len(made) > 1 and seconds is not None else next(iter(made))
    level = logging.DEBUG if chosen in ELSEWHERE else logging.WARNING  # torch will do on a CPU
    for name, why in missing.items():
        _log.log(level, "attention = auto takes %s, and not %s: %s", chosen, name, why)
    return chosen, made[chosen]


def _set_up(name: str, kv: KVCache, page_size: int) -> AttentionBackend | str:
    """The backend called `name`, or why it cannot be had."""
    why = obstacle_over(name, kv)
    if why is not None:
        return why
    try:
        return BACKENDS[name](kv, page_size)
    except LoadError as error:
        return str(error)


def _least(made: dict[str, AttentionBackend], seconds: Seconds) -> str:
    taken = {name: took for name, backend in made.items() if (took := seconds(backend)) is not None}
    if len(taken) < len(made):
        return next(iter(made))
    chosen = min(taken, key=taken.__getitem__)
    told = ", ".join(f"{name} {1e3 * took:.3f} ms" for name, took in taken.items())
    _log.info("attention = auto takes %s: attention of a step takes %s", chosen, told)
    return chosen
