"""The settings of a drafter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from specsplit.errors import InvalidRequest
from specsplit.features import FeatureFormat
from specsplit.settings.engine import EngineSettings
from specsplit.settings.units import Count, Duration
from specsplit.values import DrafterKind


class DrafterSettings(EngineSettings):
    """The settings of one drafter."""

    model_config = SettingsConfigDict(env_prefix="SPECSPLIT_DRAFTER_")
    removed: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("expand_survival", "push_survival"),
        "a drafter grows what is worth more than it costs: leave it out, or say what a node costs with node_us",
    )

    kind: DrafterKind = DrafterKind.STANDALONE
    """What proposes: ngram (no model), standalone (a small model), eagle, eagle3 or multi_layer_eagle (heads on the target's features),
    dflash or dspark (heads that draft several tokens in one forward)."""
    model: Path | None = None
    """Folder of the draft model or head, in the Hugging Face layout; required for every kind but ngram. For multi_layer_eagle it may be the
    target's own, which holds the layers where the target was published with them."""
    target: Path | None = None
    """Folder of the target that a head was made for: the head shares its embeddings and LM head. Required for heads, but for
    multi_layer_eagle where model is the target's folder."""
    feature_format: FeatureFormat = FeatureFormat.TARGET
    """Heads only: the numbers in which features travel: target (as the target computes them), float32, bfloat16, float16 or fp8_e4m3."""
    feature_projection: bool = False
    """eagle3 only: let the verifier apply the head's projection (fc) before it sends features; it needs the head's folder for that."""
    weights_dir: Path | None = None
    """Folder with folders of other weights of the model, with which operators may have it go on (UpdateWeights). Unset: none are taken."""
    max_sessions: Count = Field(default=64, ge=1)
    """Sessions taken at once, at most."""
    host_kv_tokens: ClassVar[int] = 65_536
    device_kv_share: ClassVar[float] = 0.2
    kv_tokens: Count | None = Field(default=None, ge=1)
    """Room in the KV pool, in tokens, all sessions together. Unset: 65,536 on a CPU; on a GPU what kv_share holds, and no more than
    max_sessions texts of the whole context and their drafts need."""
    expand_width: Count = Field(default=256, ge=1)
    """Nodes expanded in one forward at most, all sessions together. How many it is follows what they cost here."""
    expand_levels: int = Field(default=8, ge=1, le=8)
    """Levels of the tree that one expansion draws at most, before the host hears of them: several only where that is cheaper here."""
    children: Count = Field(default=16, ge=1)
    """Children kept of every expanded node."""
    node_us: Duration = Field(default=1.0, gt=0)
    """What it costs to send a node and to apply it at the verifier, in microseconds; one that saves the verifier less is not grown."""
    ngram_shares: Literal["session", "identity", "all"] = "identity"
    """ngram only: what a session is drafted from beside its own text: nothing (session), recent outputs of the same client (identity; a
    client without a name has none) or those of everybody (all). With all, a client can tell by the pace of its answers what others got."""
    ngram_shared_tokens: Count = Field(default=65_536, ge=0)
    """ngram only: tokens of recent outputs that are kept for each client, or for all together; 0: none."""
    ngram_identities: Count = Field(default=256, ge=1)
    """ngram only: clients whose outputs are kept at once; those that were not used for longest are forgotten."""
    paced_expansion_base_ms: Duration = Field(default=0.0, ge=0)
    """Benchmarks only: an expansion lasts at least this long, plus the share of its tokens."""
    paced_expansion_per_token_us: Duration = Field(default=0.0, ge=0)
    """Benchmarks only: the share of one token."""

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        kind = self.kind.value
        if self.kind.needs_model and self.model is None:
            raise InvalidRequest(
                "model", f"is required for drafter kind {kind}: the folder of the draft model or head", "kind"
            )
        if not self.kind.needs_model and self.model is not None:
            raise InvalidRequest("model", f"drafter kind {kind} takes no model; leave it out", "kind")
        if self.kind.is_head and self.target is None and self.kind is not DrafterKind.MULTI_LAYER_EAGLE:
            raise InvalidRequest(
                "target", f"is required for drafter kind {kind}: the folder of the target it was made for", "kind"
            )
        if not self.kind.is_head and self.target is not None:
            raise InvalidRequest("target", f"drafter kind {kind} reads nothing of the target; leave it out", "kind")
        if not self.kind.is_head and self.feature_format is not FeatureFormat.TARGET:
            raise InvalidRequest("feature_format", f"drafter kind {kind} reads no features; leave it out", "kind")
        if self.feature_projection and self.kind is not DrafterKind.EAGLE3:
            raise InvalidRequest(
                "feature_projection", f"drafter kind {kind} has no projection of features; only eagle3 has", "kind"
            )
        if not self.kind.needs_model and self.kv_share is not None:
            raise InvalidRequest("kv_share", f"drafter kind {kind} keeps no KV; leave it out", "kind")
        for name in ("ngram_shares", "ngram_shared_tokens", "ngram_identities"):
            if self.kind is not DrafterKind.NGRAM and getattr(self, name) != type(self).model_fields[name].default:
                raise InvalidRequest(name, f"drafter kind {kind} drafts from no outputs; leave it out", "kind")
        return self
