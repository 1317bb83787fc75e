"""Settings that every service with a model has."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from specsplit.errors import InvalidRequest
from specsplit.settings.service import MemberSettings
from specsplit.settings.units import Count, Seconds


class EngineSettings(MemberSettings):
    """How a model is held and run."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """Type of weights; auto takes what the model folder says."""
    device: str = "cpu"
    """torch device: cpu, cuda, cuda:1, ..."""
    max_context: Count | None = Field(default=None, ge=16)
    """Tokens that a text may have with its prompt; unset: as many as the model takes. A model whose rotary positions change from some
    length on is served up to that length, and has to be told so here."""
    attention: Literal["auto", "torch", "native", "flashinfer", "triton"] = "auto"
    """How attention is computed: torch (the reference, on any device), native (a kernel in C for float32 on a CPU, compiled by gcc at the
    first start), flashinfer (GPU kernels for float16 and bfloat16 and heads of 64, 128 or 256, out of the extra specsplit[gpu]), triton
    (GPU kernels of our own, for heads of any width up to 512 and latents up to 576, which take gcc alone) or auto: native where it can be
    had on a CPU, else torch; on a GPU the faster of flashinfer and triton, as measured when the service loads (ranks of a group:
    flashinfer, if it can be had)."""
    kv_cache_dtype: Literal["auto", "fp8_e4m3", "fp8_e5m2"] = "auto"
    """Type that keys and values are kept in: auto is that of the weights. One of 8 bits holds twice as many tokens as bfloat16 in the same
    memory, and rounds: text may be another than with auto, and is the same with any drafter and none."""
    host_kv_tokens: ClassVar[int]
    """Where kv_tokens is unset, on a CPU."""
    device_kv_share: ClassVar[float]
    """Where kv_share is unset."""
    kv_tokens: Count | None = None
    """Room in the KV pool, in tokens; the settings of each service say what it is unset."""
    kv_share: float | None = Field(default=None, gt=0.0, le=1.0)
    """On a GPU, without kv_tokens: the part for KV of the memory that is free once the weights are there. CUDA graphs, what forwards
    compute and services that start on the card later share the rest. Unset: 0.8 of a verifier, and 0.2 of a drafter, which keeps less of
    a token and may have a verifier beside it."""
    latent_cache: Literal["auto", "off"] = "auto"
    """auto has a model with multi-head latent attention (MLA) keep the latents that its heads are made of, in the place of every head's key
    and value, if it then passes the checks at load; the log says what is kept. off keeps heads, which takes far more memory."""
    cuda_graphs: Literal["auto", "off"] = "auto"
    """auto captures forwards as CUDA graphs at start, where attention is flashinfer or triton; off runs every forward eagerly. To be alike
    on all ranks of a group, with the two below and a verifier's `cuda_graph_layers`; a group of drafters has none."""
    cuda_graph_tokens: int = Field(default=256, ge=1, le=1024)
    """Tokens of the largest forward that is captured; larger ones run eagerly, and are counted."""
    cuda_graph_rows: int = Field(default=64, ge=1, le=1024)
    """Rows of it: sessions, and prompts that are read."""
    compile: Literal["auto", "off", "regional"] = "auto"
    """auto is regional on a GPU for a model of which gpu_layers replaces nothing, if it then gives the same logits, and off elsewhere.
    regional has torch.compile make kernels of the model's decoder layers, all of a class at once. It takes half a minute or more at the
    first start; kernels are kept where TORCHINDUCTOR_CACHE_DIR says. Not for a group."""
    cpu_layers: Literal["auto", "off"] = "auto"
    """auto has a CPU run faster modules in the place of transformers' own, where they give the same numbers: kernels in C in float32 where
    gcc is, else weights packed for oneDNN and fewer operations around them, and a tied LM head twice. off leaves all as it is,
    and so do compile = regional and a target that is split (tp_size)."""
    gpu_layers: Literal["auto", "off"] = "auto"
    """auto has a GPU run few kernels in the place of the many of transformers' own modules, where they give the same numbers: norms with
    the sum before them, rotations with the writing of keys and values, gated activations, and one product for layers that read the same;
    with adapters, what all of them add to a layer instead. off leaves all as it is, and so do compile = regional and a target that is
    split (tp_size)."""
    threads: Count = Field(default=1, ge=1)
    """CPU threads of one forward."""
    dp_size: Count = Field(default=1, ge=1)
    """Ranks of the group that this process is one of, started by torchrun: they share the model's MLPs, 1/N each, and step together.
    Needs a coordinator. Ports other than 0 (listen, advertise, metrics_listen) get LOCAL_RANK added, and member_id the rank."""
    rank_timeout_s: Seconds = Field(default=30.0, gt=0)
    """A rank that does not take part for this long is lost: all of the group hand their sessions back and exit, to be started again."""

    @property
    def replaces_cpu_layers(self) -> bool:
        """Whether modules are to be replaced on a CPU; what is compiled, is compiled as transformers has it."""
        return self.cpu_layers == "auto" and self.compile != "regional"

    @property
    def replaces_gpu_layers(self) -> bool:
        """Whether modules are to be replaced on a GPU."""
        return self.gpu_layers == "auto" and self.compile != "regional"

    @property
    def compiles_the_rest(self) -> bool:
        """Whether layers are to be compiled of which nothing could be replaced."""
        alone = self.started_together[1] == 1
        return self.compile == "auto" and self.gpu_layers == "auto" and self.device.startswith("cuda") and alone

    @property
    def started_together(self) -> tuple[str, int]:
        """How many processes torchrun is to start for this, and the setting that says so."""
        return "dp_size", self.dp_size

    @model_validator(mode="after")
    def _check_share(self) -> Self:
        if self.kv_share is not None and (self.kv_tokens is not None or not self.device.startswith("cuda")):
            why = (
                f"kv_tokens = {self.kv_tokens} is set"
                if self.kv_tokens is not None
                else f"device = {self.device} is no GPU"
            )
            problem = f"has no effect, since {why}; leave one of them out"
            raise InvalidRequest("kv_share", problem, "kv_tokens", "device")
        return self

    @model_validator(mode="after")
    def _check_compile(self) -> Self:
        field, size = self.started_together
        if self.compile == "regional" and size > 1:
            raise InvalidRequest(
                "compile",
                f"is {self.compile}, but processes that share a model ({field} = {size}) exchange rows within the layers; leave it out",
                "dp_size",
                "tp_size",
            )
        return self
