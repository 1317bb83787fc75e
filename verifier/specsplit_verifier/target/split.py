"""A target that is split over several processes (`tp_size`): the part of this process, and the whole life of a follower.

Only the leader is a verifier, or a rank of a group of them. A follower listens nowhere, has no sessions, and ends with its leader.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from specsplit.errors import Incompatible, LoadError, RankLost, SpecsplitError
from specsplit.features import LAST
from specsplit.interpreter import freeze_heap
from specsplit.model.graphs import Buckets
from specsplit.model.heads.config import usual_layers
from specsplit.model.lm.causal_lm import CausalLM
from specsplit.model.lm.split_lm import SplitLM, follow
from specsplit.model.pages.room import kv_room
from specsplit.model.ranks.split import weight_bytes
from specsplit.model.ranks.tensor_group import TensorGroup
from specsplit.model.tensors.device import check_device
from specsplit.observe import announce, fields, set_up
from specsplit.ranks.environment import RankEnvironment
from specsplit.settings import VerifierSettings

_log = logging.getLogger(__name__)


@contextmanager
def blaming(group: TensorGroup) -> Iterator[None]:
    """End the group if loading a part fails in here; all processes say why. Raises SpecsplitError."""
    try:
        yield
    except Exception as error:
        known = error if isinstance(error, SpecsplitError) else LoadError(f"{type(error).__name__}: {error}")
        raise group.blamed(known) from error


def load_part(settings: VerifierSettings, group: TensorGroup) -> SplitLM:
    """Load this process's part of the target, and capture it with the others. Raises LoadError if it cannot be served, and RankLost."""
    part = SplitLM.load(
        settings.model,
        mesh=group,
        split=group.processes,
        num_pages=kv_room(settings, settings.page_size),
        page_size=settings.page_size,
        dtype=settings.dtype,
        device=settings.device,
        backend=settings.attention,
        kv_cache_dtype=settings.kv_cache_dtype,
        max_context=settings.max_context,
        latent_cache=settings.latent_cache == "auto",
    )
    if part.states is not None:
        raise LoadError(
            f"model folder {settings.model} cannot be split: it has recurrent layers, which are served by one process; set tp_size = 1"
        )
    layers = captured_layers(settings.cuda_graph_layers, part)
    with group.together():
        part.capture_graphs(Buckets.of(settings), layers)
    held = {"weight_bytes": weight_bytes(part.model), "kv_bytes": part.kv.nbytes}
    _log.info("loaded a part of the target", extra=fields(rank=group.number, of=group.count, **held))
    return part


def meet(settings: VerifierSettings, number: int) -> TensorGroup:
    """Wait for the processes that the target is split over, of all ranks. Raises RankLost."""
    if settings.device.startswith("cuda"):
        torch.cuda.set_device(settings.device)  # else torch takes the first for what it makes for all of them
    _, count = settings.started_together
    return TensorGroup(number, count, settings.rank_timeout_s, split=settings.tp_size, device=settings.device)


def run_follower(settings: VerifierSettings, environment: RankEnvironment) -> int:
    """Follow in this process until the leader leaves -> exit status, 1 if a process is lost. Raises SpecsplitError if it cannot start."""
    set_up("verifier", settings.log_level, settings.log_format)
    announce("verifier", settings)
    check_device(settings.device)
    torch.set_num_threads(settings.threads)
    group = meet(settings, environment.number)
    with blaming(group):
        part = load_part(settings, group)
    freeze_heap()
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # the leader gets these too, and drains; until that is over it needs this process
        signal.signal(number, signal.SIG_IGN)
    try:
        follow(part, group)
    except RankLost as error:
        _log.error("this process ends: %s", error)
        return 1
    group.close()
    return environment.status(dismissed=True)


def captured_layers(setting: str, target: CausalLM) -> frozenset[int]:
    """Find the layers that `cuda_graph_layers` names. Raises LoadError for one that the target does not have.

    With `auto` those that heads read whose files do not say otherwise: EAGLE and multi-token prediction the last behind the norm, EAGLE-3
    three of those below. They are captured before any head has come, since a capture takes as long as several steps.
    """
    if setting == "none":
        return frozenset()
    if setting == "auto":
        usual = (*usual_layers(target.model.config.num_hidden_layers), LAST)
        return frozenset(filter(target.capture.has, usual))
    layers = frozenset(map(int, setting.split(",")))
    try:
        target.capture.check(layers)
    except Incompatible as error:
        raise LoadError(f"cuda_graph_layers is {setting}: {error}") from error
    return layers
