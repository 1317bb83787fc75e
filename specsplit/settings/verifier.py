"""The settings of a verifier."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from specsplit.errors import InvalidRequest
from specsplit.settings.engine import EngineSettings
from specsplit.settings.service import AnswerSettings
from specsplit.settings.units import Bytes, Count, Duration, Seconds
from specsplit.values import Adaptive, Plan, pages_held


class VerifierSettings(EngineSettings, AnswerSettings):
    """The settings of one verifier rank."""

    model_config = SettingsConfigDict(env_prefix="SPECSPLIT_VERIFIER_")
    page_size: ClassVar[int] = 16
    """Tokens of one KV page."""

    model: Path
    """Folder of the target, in the Hugging Face layout."""
    tp_size: Count = Field(default=1, ge=1)
    """Processes that the target is split over, started by torchrun: attention heads, KV, MLPs and vocabulary, 1/N each, by transformers'
    plan for it. The first of them is the verifier; the others only run its forwards. With dp_size each rank of the group is so many
    processes, and torchrun starts dp_size * tp_size."""
    host_kv_tokens: ClassVar[int] = 16384
    device_kv_share: ClassVar[float] = 0.8
    kv_tokens: Count | None = Field(default=None, ge=16)
    """Room in the KV pool, in tokens, all sessions together; whole pages of 16 are used. Unset: 16,384 on a CPU; on a GPU what kv_share
    holds, and no more than max_sessions texts of the whole context need."""
    window_kv_tokens: Count | None = Field(default=None, ge=16)
    """Room in the KV pool of layers that see a window of the tokens, where others see all: a session keeps no more than its window there.
    Unset: what max_sessions sessions keep at once, as much as one more for a text that is computed again for its features, and what a step
    reads, kv_tokens at most, so that no session waits for it."""
    prefix_cache: bool = True
    """Sessions whose texts begin alike share the KV of whole pages, of sessions that have ended too until their pages are needed."""
    prefix_features_bytes: Bytes = Field(default=1 << 30, ge=0)
    """Host memory for features of shared pages, so that a head on them gets those without computing; 0 has them computed again."""
    prefix_states_bytes: Bytes = Field(default=1 << 30, ge=0)
    """Device memory for states of recurrent layers behind shared pages: sessions of such a target go on where there are some; 0 has each of
    them read from its beginning."""
    step_states_bytes: Bytes | None = Field(default=None, ge=1)
    """Device memory for states of recurrent layers behind the drafts of one step: a step of such a target brings as many nodes as it holds,
    the likeliest of all sessions. Beside them a step holds as much for each session as is kept of it. Unset: a quarter of what is free of a
    GPU when the target is loaded, 1 GiB on a CPU."""
    step_token_budget: Count = Field(default=512, ge=1)
    """Prompt tokens that one step prefills at most, all sessions together."""
    num_steps: int = 5
    """Default plan: deepest node below the root that a step may verify, beyond what a constraint forces; 0 turns speculation off."""
    topk: int = 4
    """Default plan: children of one node verified in one step, at most."""
    num_draft_tokens: int = 16
    """Default plan: tokens of a session in one step, root included, at most."""
    wait_budget_us: int = 20_000
    """Default plan: longest wait for grows after a commit."""
    draft_ahead: bool = True
    """Default plan: False makes the drafter rest while a step is in flight."""
    adaptive: Adaptive | None = None
    """Who adapts the default plan: static (nobody), ema (SGLang's tiers of num_steps, by what was accepted lately) or goodput (what commits
    the most tokens per second, as measured). Unset: goodput, or static where num_steps, topk or num_draft_tokens is set."""
    adaptive_config: Path | None = None
    """ema only: a JSON file of tiers, as SGLang reads it. Unset: SGLang's own tiers."""
    max_draft_tokens: int = Field(default=32, ge=1, le=256)
    """goodput only: tokens of a session in one step, root included, at most."""
    lookup: bool = False
    """Sessions that no drafter serves are drafted for by the verifier itself, by lookup in their texts and in recent outputs of the same
    client, as an ngram drafter does it; those whose requests ask for no drafter are not."""
    lookup_beside: bool = False
    """With lookup: sessions that a drafter serves are drafted for by lookup too, and a step takes the best nodes of both, while what is
    looked up brings more than the time that it takes. An ngram drafter gains nothing by it."""
    profile_dir: Path | None = None
    """Folder for the profiles of torch's profiler that operators start and stop (StartProfile of the engine protocol). Unset: none are."""
    weights_dir: Path | None = None
    """Folder with folders of other weights of the target, with which operators may have it go on (UpdateWeights). Unset: none are taken."""
    adapters_dir: Path | None = None
    """Folder with a folder for each adapter of the target, in the layout of peft (LoRA): requests name the folder, and those of several are
    computed in one step. What does not go with it is refused at load. Unset: none are served."""
    older_heads: Literal["draft", "rest"] = "draft"
    """What becomes of heads that are there when the target gets other weights: they go on drafting, as long as what they bring is worth it
    (draft), or are not used until they have other weights too or start anew (rest)."""
    rest_trials: bool = True
    """goodput only: now and then all drafters rest for a few steps, and they stay at rest while more tokens a second are committed without
    them, as on cores that they share with the verifier. Ranks of a group (dp_size) try nothing."""
    max_nodes: int = Field(default=4096, ge=1, le=65_536)
    """Nodes held per session at most; a drafter that sends more is refused."""
    feature_window: Count = Field(default=2048, ge=1)
    """Tokens of a session whose features a drafter may have been sent without having read them yet; more wait here."""
    feature_retention: Count = Field(default=4096, ge=1)
    """Tokens of a session whose features are kept, for drafters that read slowly or join late. Older ones are computed again if need be."""
    cuda_graph_layers: str = Field(default="auto", pattern=r"^(auto|none|-?[0-9]{1,9}(,-?[0-9]{1,9})*)$")
    """Layers whose hidden states CUDA graphs leave for heads, with commas between: k for the output of the k-th, 0 for the embeddings, -1
    for the last behind the norm. auto: of L layers 2, L // 2, L - 3 and -1, which heads read as published. none: no graph leaves any.
    A step for a head that reads others runs eagerly, and is counted."""
    feature_projection: Path | None = None
    """Folder of the EAGLE-3 head whose projection is applied to features for drafters that ask for it. Unset: they are refused."""
    drafter_connect_timeout_s: Seconds = Field(default=2.0, gt=0)
    """Time a drafter gets to answer when first dialled; its sessions run without drafts until then."""
    drafter_lost_after_s: Seconds = Field(default=5.0, gt=0)
    """A drafter that leaves an open or a commit unanswered for this long is lost; what it has to read for that
    gives it 5 ms more per token, 60 s at most."""
    drafter_allowance: float = Field(default=2.0, ge=1.0, le=1e6)
    """A drafter that causes more work than this many times the most that an honest one does is dropped; counted in bytes, in events, and in
    events that bring nothing, for each open, commit, plan and features event that it is told. At 1,000,000 none is, in effect."""
    step_timeout_s: Seconds = Field(default=60.0, gt=0)
    """A step that takes longer than this, and than 50 times what its like take, hangs: the verifier hands its sessions back and exits.
    If it is not set, 10 s will do where a step of its size has run before; but not for a rank, or a target with tp_size, whose steps
    wait for other processes: there it must be more than rank_timeout_s."""
    vllm_metrics: bool = False
    """What vLLM measures too is exposed under its names as well, for dashboards that were made for vLLM (docs/metrics.md)."""
    inflate_layers: Count = Field(default=0, ge=0)
    """Benchmarks only: add layers that change nothing until there are this many; 0 adds none."""
    random_weights: bool = False
    """Benchmarks only: weights drawn at random on the device; the folder needs a config.json alone."""
    paced_step_base_ms: Duration = Field(default=0.0, ge=0)
    """Benchmarks only: a step lasts at least this long, plus the share of its tokens."""
    paced_step_per_token_us: Duration = Field(default=0.0, ge=0)
    """Benchmarks only: the share of one token."""

    @property
    def plan(self) -> Plan:
        """The plan of a request that asks for none."""
        return Plan(
            num_steps=self.num_steps,
            topk=self.topk,
            num_draft_tokens=self.num_draft_tokens,
            wait_budget_us=self.wait_budget_us,
            draft_ahead=self.draft_ahead,
        )

    def window_tokens(self, window: int, kv_tokens: int) -> int:
        """Tokens that layers have room for which see a window of so many, where others see all and have room for `kv_tokens`."""
        in_step = max(self.num_draft_tokens, self.max_draft_tokens)
        held = self.page_size * pages_held(kv_tokens, in_step, self.page_size, window)
        return min(kv_tokens, self.window_kv_tokens or (self.max_sessions + 1) * held + self.step_token_budget)

    @property
    def controller(self) -> Adaptive:
        """Who adapts the default plan. A size that is set holds, unless somebody is named who may change it."""
        sized = not self.model_fields_set.isdisjoint(("num_steps", "topk", "num_draft_tokens"))
        return self.adaptive or (Adaptive.STATIC if sized else Adaptive.GOODPUT)

    @property
    def started_together(self) -> tuple[str, int]:
        field, size = super().started_together
        if self.tp_size == 1:
            return field, size
        return "tp_size" if size == 1 else f"{field} * tp_size", size * self.tp_size

    @model_validator(mode="after")
    def _check_split(self) -> Self:
        for field, alone in (("inflate_layers", 0), ("random_weights", False)):
            value = getattr(self, field)
            if self.tp_size > 1 and value != alone:
                problem = f"is {self.tp_size} and {field} is {value}, which do not go together; leave one of them out"
                raise InvalidRequest("tp_size", problem, field)
        return self

    @model_validator(mode="after")
    def _check_adapters(self) -> Self:
        others = {"tp_size": self.tp_size > 1, "dp_size": self.dp_size > 1, "compile": self.compile == "regional"}
        for field, is_set in others.items():
            if self.adapters_dir is not None and is_set:
                value = getattr(self, field)
                problem = f"does not go with {field} = {value}; leave one of them out, or serve the merged weights of one adapter"
                raise InvalidRequest("adapters_dir", problem, field)
        return self

    @model_validator(mode="after")
    def _check_beside(self) -> Self:
        if self.lookup_beside and not self.lookup:
            problem = "is on, and lookup is not, whose drafts it is about; set lookup too"
            raise InvalidRequest("lookup_beside", problem, "lookup")
        return self

    @model_validator(mode="after")
    def _check_trials(self) -> Self:
        if self.rest_trials and self.dp_size > 1 and "rest_trials" in self.model_fields_set:
            problem = f"does not go with dp_size = {self.dp_size}: ranks that step together try nothing; leave one of them out"
            raise InvalidRequest("rest_trials", problem, "dp_size")
        return self

    @model_validator(mode="after")
    def _check_timeouts(self) -> Self:
        if self.started_together[1] > 1 and self.step_timeout_s <= self.rank_timeout_s:
            raise InvalidRequest(
                "step_timeout_s",
                f"is {self.step_timeout_s:g}, but the step of a rank whose group has lost another may last for "
                f"rank_timeout_s = {self.rank_timeout_s:g}, and does not hang; make step_timeout_s the larger of the two",
                "rank_timeout_s",
                "dp_size",
                "tp_size",
            )
        return self

    @model_validator(mode="after")
    def _check_plan(self) -> Self:
        try:
            _ = self.plan
        except InvalidRequest as error:
            raise InvalidRequest(error.field.removeprefix("plan."), error.problem) from error
        if self.adaptive_config is not None and self.controller is not Adaptive.EMA:
            raise InvalidRequest(
                "adaptive_config",
                f"is for adaptive = ema, and adaptive is {self.controller}; set that, or leave the file out",
                "adaptive",
            )
        if self.max_nodes < self.num_draft_tokens - 1:
            raise InvalidRequest(
                "max_nodes",
                f"is {self.max_nodes}, too few for num_draft_tokens = {self.num_draft_tokens}",
                "num_draft_tokens",
            )
        if self.feature_retention < self.step_token_budget + self.num_draft_tokens:
            raise InvalidRequest(
                "feature_retention",
                f"is {self.feature_retention}, too few for one step of step_token_budget = {self.step_token_budget} "
                f"and num_draft_tokens = {self.num_draft_tokens}",
                "step_token_budget",
                "num_draft_tokens",
            )
        return self
