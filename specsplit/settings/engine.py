"""What a service that runs a model is told."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specsplit.settings.service import MemberSettings


class EngineSettings(MemberSettings):
    """How a model is held and run."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """Type of weights and KV; auto takes what the model folder says."""
    device: str = "cpu"
    """torch device: cpu, cuda, cuda:1, ..."""
    attention: Literal["auto", "torch", "flashinfer"] = "auto"
    """How attention is computed: torch (the reference, on any device), flashinfer (GPU kernels for float16 and bfloat16, out of the extra
    specsplit[gpu]) or auto: flashinfer where it can be had, else torch."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of one forward."""
    dp_size: int = Field(default=1, ge=1)
    """Ranks of the group that this process is one of, started by torchrun: they share the model's MLPs, 1/N each, and step together.
    Needs a coordinator. Ports other than 0 (listen, advertise, metrics_listen) get LOCAL_RANK added, and member_id the rank."""
    rank_timeout_s: float = Field(default=30.0, gt=0)
    """A rank that does not take part for this long is lost: all of the group hand their sessions back and exit, to be started again."""
