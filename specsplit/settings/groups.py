"""Which settings belong together, for whoever lists them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Model": (
            "kind",
            "model",
            "target",
            "dtype",
            "device",
            "max_context",
            "attention",
            "compile",
            "cpu_layers",
            "threads",
        ),
        "Addresses and membership": (
            "listen",
            "members_listen",
            "web_listen",
            "coordinator",
            "member_id",
            "advertise",
        ),
        "TLS, certificates and tokens": (
            "tls_cert",
            "tls_key",
            "tls_ca",
            "tls_client_ca",
            "roles_file",
            "tokens_file",
            "token_file",
            "anonymous_clients",
            "insecure",
        ),
        "Sessions and KV pool": (
            "max_sessions",
            "kv_tokens",
            "kv_cache_dtype",
            "latent_cache",
            "prefix_cache",
            "prefix_features_bytes",
            "prefix_states_bytes",
            "step_token_budget",
            "max_nodes",
        ),
        "Speculation": (
            "num_steps",
            "topk",
            "num_draft_tokens",
            "wait_budget_us",
            "draft_ahead",
            "adaptive",
            "adaptive_config",
            "max_draft_tokens",
            "expand_width",
            "expand_levels",
            "children",
            "node_us",
        ),
        "Features for heads": (
            "feature_window",
            "feature_retention",
            "feature_projection",
            "feature_format",
        ),
        "Drafters that fail": (
            "drafter_connect_timeout_s",
            "drafter_lost_after_s",
            "drafter_allowance",
        ),
        "Queue and answers": (
            "max_queue",
            "retry_after_s",
            "failover_s",
            "max_unread_bytes",
            "unread_s",
        ),
        "Limits of one request": (
            "default_max_tokens",
            "max_max_tokens",
            "max_n",
            "max_num_steps",
            "max_topk",
            "max_num_draft_tokens",
            "max_wait_budget_us",
            "max_priority",
        ),
        "Quotas of one client": (
            "client_max_requests",
            "client_max_queued",
            "client_tokens_per_minute",
        ),
        "Connections and timeouts": (
            "heartbeat_ms",
            "lost_after_ms",
            "step_timeout_s",
            "drain_s",
            "keepalive_s",
            "connect_timeout_s",
            "max_message_bytes",
        ),
        "CUDA graphs": (
            "cuda_graphs",
            "cuda_graph_tokens",
            "cuda_graph_rows",
            "cuda_graph_layers",
        ),
        "Several processes": (
            "dp_size",
            "tp_size",
            "rank_timeout_s",
        ),
        "Logs, metrics and traces": (
            "log_level",
            "log_format",
            "metrics_listen",
            "metrics_clients",
            "trace_endpoint",
            "trace_level",
            "trace_ratio",
            "trace_modules",
        ),
        "Benchmarks": (
            "inflate_layers",
            "random_weights",
            "paced_step_base_ms",
            "paced_step_per_token_us",
            "paced_expansion_base_ms",
            "paced_expansion_per_token_us",
        ),
    }
)
"""Every setting of a service under the name of its group, in the order in which they are shown."""
