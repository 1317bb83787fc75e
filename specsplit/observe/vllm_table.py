"""What the setting `vllm_metrics` exposes under vLLM's names beside our own, for dashboards that were made for vLLM.

Each metric has the meaning and the labels that vLLM's engine (V1) gives it. The series are those of our own instruments, read under a
second name, but for `INTERVALS`, which none of ours has. What vLLM counts in another way than anything here is not exposed (`DIFFERENT`).
"""

from __future__ import annotations

from collections.abc import Mapping

from specsplit.observe.metric import Kind, Label, Metric, Service
from specsplit.observe.metric_table import INTER_TOKEN_LATENCY, TIME_TO_FIRST_TOKEN

MODEL_NAME = Label("model_name", ("the name of the model's folder",))
ENGINE = Label("engine", ("the rank in its group, 0 without one",))
POSITION = Label("position", ("from 0, the depth below the root less one",))
"""Eight are there from the start, and more as soon as a draft is accepted so far."""
_LABELS = (MODEL_NAME, ENGINE)
_COORDINATOR, _VERIFIER = (Service.COORDINATOR,), (Service.VERIFIER,)

NUM_DRAFTS = Metric(
    "vllm:spec_decode_num_drafts",
    Kind.COUNTER,
    _VERIFIER,
    "Session steps that had drafts: `specsplit_reached_depth_total` of depth 1.",
    _LABELS,
)
NUM_DRAFT_TOKENS = Metric(
    "vllm:spec_decode_num_draft_tokens",
    Kind.COUNTER,
    _VERIFIER,
    "Drafted tokens that were verified: `specsplit_drafted_tokens_total`. All nodes of a tree count, as in vLLM.",
    _LABELS,
)
NUM_ACCEPTED_TOKENS = Metric(
    "vllm:spec_decode_num_accepted_tokens",
    Kind.COUNTER,
    _VERIFIER,
    "Drafted tokens that were accepted: `specsplit_accepted_tokens_total`.",
    _LABELS,
)
NUM_ACCEPTED_TOKENS_PER_POS = Metric(
    "vllm:spec_decode_num_accepted_tokens_per_pos",
    Kind.COUNTER,
    _VERIFIER,
    "The same by position in the draft: `specsplit_accepted_depth_total`, with a position for each depth.",
    (*_LABELS, POSITION),
)
NUM_REQUESTS_RUNNING = Metric(
    "vllm:num_requests_running",
    Kind.GAUGE,
    _VERIFIER,
    "Requests that the engine runs: `specsplit_running_sessions`. One for n choices is n, here as in vLLM.",
    _LABELS,
)
NUM_REQUESTS_WAITING = Metric(
    "vllm:num_requests_waiting",
    Kind.GAUGE,
    (Service.COORDINATOR, Service.VERIFIER),
    "Requests that wait: `specsplit_queued_requests` of a coordinator, `specsplit_waiting_sessions` of a verifier. vLLM has one queue in "
    "the place of the two.",
    _LABELS,
)
KV_CACHE_USAGE = Metric(
    "vllm:kv_cache_usage_perc",
    Kind.GAUGE,
    _VERIFIER,
    "Share of the KV pages that sessions hold, from 0 to 1: `specsplit_kv_pages_used` by `specsplit_kv_pages`.",
    _LABELS,
)
FIRST_TOKENS = Metric(
    "vllm:time_to_first_token_seconds",
    Kind.HISTOGRAM,
    _COORDINATOR,
    f"From the arrival of a request to its first tokens: `{TIME_TO_FIRST_TOKEN.name}`. A request for n choices is observed once, in vLLM "
    "n times.",
    _LABELS,
    TIME_TO_FIRST_TOKEN.buckets,
    exemplars=True,
)
INTERVALS = Metric(
    "vllm:inter_token_latency_seconds",
    Kind.HISTOGRAM,
    _VERIFIER,
    "From one step that brought a request tokens to the next, however many they were; so it is in vLLM. "
    f"`{INTER_TOKEN_LATENCY.name}` has an interval for each token, so this is a histogram of its own, filled with this setting only.",
    _LABELS,
    INTER_TOKEN_LATENCY.buckets,
)

VLLM_TABLE: tuple[Metric, ...] = (
    NUM_DRAFTS,
    NUM_DRAFT_TOKENS,
    NUM_ACCEPTED_TOKENS,
    NUM_ACCEPTED_TOKENS_PER_POS,
    NUM_REQUESTS_RUNNING,
    NUM_REQUESTS_WAITING,
    KV_CACHE_USAGE,
    FIRST_TOKENS,
    INTERVALS,
)
"""Every metric under a name of vLLM's, in the order above."""

DIFFERENT: Mapping[str, str] = {
    "vllm:generation_tokens": "vLLM counts end tokens too; `specsplit_generated_tokens_total` does not",
    "vllm:prompt_tokens": (
        "vLLM counts a prompt when it has been read, once; `specsplit_prompt_tokens_total` when it comes, on every verifier it comes to"
    ),
    "vllm:request_success": (
        "vLLM counts every choice, and those whose caller has gone; `specsplit_requests_finished_total` requests that ended with a text"
    ),
    "vllm:e2e_request_latency_seconds": "vLLM observes every choice; `specsplit_request_duration_seconds` requests",
    "vllm:request_queue_time_seconds": (
        "in vLLM from the engine's queue to the first step; `specsplit_queue_time_seconds` has tokenizing in it, and no wait for KV pages"
    ),
    "vllm:request_time_per_output_token_seconds": "a mean for each request, which no metric here is",
    "vllm:num_preemptions": (
        "a request that vLLM preempts waits where it was; a session of ours may go to another verifier (`specsplit_preemptions_total`)"
    ),
}
"""Metrics of vLLM that look like one of ours and are not the same, with the difference."""
