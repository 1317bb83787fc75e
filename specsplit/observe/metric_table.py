"""Every metric that a specsplit process exposes: the code builds them from this table, docs/metrics.md is printed from it.

Names are those of OpenMetrics: base units, no suffix of a kind (a counter's series ends in `_total`, a histogram's in `_bucket`, `_sum`
and `_count`). Every label has a closed set of values, so that the number of series is known before the first request, and every series
exists from the start: a rate over a counter that has not moved yet is 0, not missing. Which process a series comes from is the
`instance` label that Prometheus adds; nothing here names a member, a model or a request.

What is counted is counted once, by the service that knows it best, so that a sum over a cluster is right.
"""

from __future__ import annotations

from specsplit.observe.metric import Kind, Label, Metric, Service, steps_of_125
from specsplit.records import Eager, StateBytes
from specsplit.values import Adaptive, Arm, DrafterKind, FailoverCause, FinishReason, Miss

DEEPEST = 8
"""Nodes this deep below the root, and deeper ones, share one value of the depth label."""

KIND = Label("kind", tuple(kind.value for kind in DrafterKind))
CAUSE_OF_MISS = Label("cause", tuple(cause.value for cause in Miss))
ARM = Label("arm", tuple(arm.value for arm in Arm))
LOOKUP_STATE = Label("lookup", (Arm.WORK.value, Arm.REST.value))
CAUSE_OF_WASTE = Label("cause", ("rejected", "unverified", "late"))
REASON_OF_EAGER = Label("reason", tuple(reason.value for reason in Eager))
DEPTH = Label("depth", (*(str(depth) for depth in range(1, DEEPEST)), f"{DEEPEST}+"))
CAUSE_OF_FAILOVER = Label("cause", tuple(cause.value for cause in FailoverCause))
REASON = Label("reason", tuple(reason.value for reason in FinishReason))
CODE = Label(
    "code",
    (
        "aborted",
        "cancelled",
        "deadline_exceeded",
        "failed_precondition",
        "internal",
        "invalid_argument",
        "not_found",
        "resource_exhausted",
        "unavailable",
        "unimplemented",
        "unknown",
    ),
)
"""gRPC statuses with which a request may end, in lower case; "unknown" is for any other. Who is refused for who he is, has made none."""
DIRECTION = Label("direction", ("sent", "received"))
ROLE = Label("role", (Service.VERIFIER.value, Service.DRAFTER.value))
CONTROLLER = Label("controller", tuple(controller.value for controller in Adaptive))
CLIENT = Label("client", ("other",))
"""Beside the clients that the setting metrics_clients names; "other" is for any other."""
STATE = Label("state", ("serving", "draining"))
STATES_OF = Label("of", StateBytes._fields)

_STEP_SECONDS = steps_of_125(-4, 1)
_TOKEN_SECONDS = (0.0005, *steps_of_125(-3, 1))
_REQUEST_SECONDS = (*steps_of_125(-3, 2), 200.0, 500.0, 1000.0)
_ACCEPT_LENGTHS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0, 64.0)

_COORDINATOR = (Service.COORDINATOR,)
_VERIFIER = (Service.VERIFIER,)
_DRAFTER = (Service.DRAFTER,)
_MEMBERS = (Service.VERIFIER, Service.DRAFTER)
_ALL = tuple(Service)

# Requests, seen by the coordinator.

REQUESTS_FINISHED = Metric(
    "specsplit_requests_finished",
    Kind.COUNTER,
    _COORDINATOR,
    "Requests that ended with a text, by finish reason; one of several choices is length if any of them is.",
    (REASON,),
)
REQUESTS_FAILED = Metric(
    "specsplit_requests_failed",
    Kind.COUNTER,
    _COORDINATOR,
    "Requests that ended with an error, by gRPC status.",
    (CODE,),
)
CLIENT_REQUESTS = Metric(
    "specsplit_client_requests",
    Kind.COUNTER,
    _COORDINATOR,
    "Requests that ended, whatever with, by client; one for n choices counts as n.",
    (CLIENT,),
    unused="clients are named only where metrics_clients says so",
)
CLIENT_TOKENS = Metric(
    "specsplit_client_tokens",
    Kind.COUNTER,
    _COORDINATOR,
    "Tokens of prompts and answers of requests that ended, by client.",
    (CLIENT,),
    unused="clients are named only where metrics_clients says so",
)
RUNNING_REQUESTS = Metric(
    "specsplit_running_requests",
    Kind.GAUGE,
    _COORDINATOR,
    "Requests that have a place on a verifier; one for n choices counts as n.",
)
QUEUED_REQUESTS = Metric(
    "specsplit_queued_requests",
    Kind.GAUGE,
    _COORDINATOR,
    "Requests that wait for a place on a verifier; one for n choices counts as n.",
)
QUOTA_STORE_DECIDES = Metric(
    "specsplit_quota_store_decides",
    Kind.GAUGE,
    _COORDINATOR,
    "1: quotas of clients are counted by quota_store, for all coordinators. 0: they hold by shares, without it or until it answers.",
    unused="it matters where quota_store is set alone",
)
TIME_TO_FIRST_TOKEN = Metric(
    "specsplit_time_to_first_token_seconds",
    Kind.HISTOGRAM,
    _COORDINATOR,
    "From the arrival of a request to its first tokens.",
    buckets=_REQUEST_SECONDS,
    exemplars=True,
)
INTER_TOKEN_LATENCY = Metric(
    "specsplit_inter_token_latency_seconds",
    Kind.HISTOGRAM,
    _COORDINATOR,
    "Time between tokens. A burst of k tokens, t after the burst before it, is k intervals of t / k; the first burst is none.",
    buckets=_TOKEN_SECONDS,
    exemplars=True,
)
REQUEST_DURATION = Metric(
    "specsplit_request_duration_seconds",
    Kind.HISTOGRAM,
    _COORDINATOR,
    "From the arrival of a request to its last message; requests that failed are not in it.",
    buckets=_REQUEST_SECONDS,
    exemplars=True,
)
QUEUE_TIME = Metric(
    "specsplit_queue_time_seconds",
    Kind.HISTOGRAM,
    _COORDINATOR,
    "From the arrival of a request to its place on a verifier, tokenizing included.",
    buckets=_REQUEST_SECONDS,
    exemplars=True,
)
MEMBERS = Metric("specsplit_members", Kind.GAUGE, _COORDINATOR, "Members of the cluster.", (ROLE, STATE))
MEMBERS_LOST = Metric(
    "specsplit_members_lost",
    Kind.COUNTER,
    _COORDINATOR,
    "Members that went without draining: their stream broke, or they fell silent.",
    (ROLE,),
)

SESSION_FAILOVERS = Metric(
    "specsplit_session_failovers",
    Kind.COUNTER,
    _COORDINATOR,
    "Times that a session went on with another verifier, or with the same one come back, by cause.",
    (CAUSE_OF_FAILOVER,),
)
RESUMED_TOKENS = Metric(
    "specsplit_resumed_tokens",
    Kind.COUNTER,
    _COORDINATOR,
    "Tokens generated before a failover, and read again after it; those that a caller resumed from included.",
)

# Steps, seen by the verifier.

STEPS = Metric("specsplit_steps", Kind.COUNTER, _VERIFIER, "Forward passes of the target over a batch.")
SESSION_STEPS = Metric(
    "specsplit_session_steps",
    Kind.COUNTER,
    _VERIFIER,
    "Sessions that brought a tree, the root alone included, summed over steps.",
)
BATCH_TOKENS = Metric(
    "specsplit_batch_tokens", Kind.COUNTER, _VERIFIER, "Tokens in forward passes: trees and stretches of prompts."
)
DRAFTED = Metric("specsplit_drafted_tokens", Kind.COUNTER, _VERIFIER, "Nodes verified, roots not counted.")
ACCEPTED = Metric("specsplit_accepted_tokens", Kind.COUNTER, _VERIFIER, "Nodes accepted.")
BONUS = Metric("specsplit_bonus_tokens", Kind.COUNTER, _VERIFIER, "Tokens committed that were the target's own.")
REACHED_DEPTH = Metric(
    "specsplit_reached_depth",
    Kind.COUNTER,
    _VERIFIER,
    "Session steps whose tree had a node at this depth below the root; what acceptance at a depth is a share of.",
    (DEPTH,),
)
ACCEPTED_DEPTH = Metric(
    "specsplit_accepted_depth", Kind.COUNTER, _VERIFIER, "Nodes accepted at this depth below the root.", (DEPTH,)
)
HITS = Metric("specsplit_hits", Kind.COUNTER, _VERIFIER, "Commits whose bonus was a node of the speculation.")
MISSES = Metric(
    "specsplit_misses",
    Kind.COUNTER,
    _VERIFIER,
    "Commits whose bonus was not, by cause. wrong: other nodes stood in its place; late: none did, as the drafter was still "
    "growing; none: none did, and the drafter rested. Sessions without a drafter neither hit nor miss.",
    (CAUSE_OF_MISS,),
)
WASTED_NODES = Metric(
    "specsplit_wasted_nodes",
    Kind.COUNTER,
    _VERIFIER,
    "Nodes drafted for nothing, by cause. rejected: verified and not accepted; unverified: a commit cut them off before any "
    "step took them; late: their parent was gone when they came.",
    (CAUSE_OF_WASTE,),
)
PLAN_SWITCHES = Metric(
    "specsplit_plan_switches",
    Kind.COUNTER,
    _VERIFIER,
    "Changes of the plan that the sessions of this verifier step under.",
)
ADAPTIVE_CONTROLLER = Metric(
    "specsplit_adaptive_controller",
    Kind.GAUGE,
    _VERIFIER,
    "1 for the controller in force, which decides what neither requests nor an operator fix of the plan; 0 for the others.",
    (CONTROLLER,),
)
ADAPTIVE_EXPECTED_RATE = Metric(
    "specsplit_adaptive_expected_rate",
    Kind.GAUGE,
    _VERIFIER,
    "Tokens per second that the controller expects all sessions to commit under the plan in force; here and below 0 if it has not said.",
)
ADAPTIVE_STATIC_RATE = Metric(
    "specsplit_adaptive_static_rate",
    Kind.GAUGE,
    _VERIFIER,
    "The same under the plan of the settings: what the plan in force is to beat.",
)
ADAPTIVE_ACCEPT_LENGTH = Metric(
    "specsplit_adaptive_accept_length",
    Kind.GAUGE,
    _VERIFIER,
    "Tokens that a session commits in a step, bonus included, as the controller reckons with it.",
)
ADAPTIVE_STEP = Metric(
    "specsplit_adaptive_step_seconds",
    Kind.GAUGE,
    _VERIFIER,
    "Time of a step at the present load, as the controller reckons with it.",
)
ADAPTIVE_TOKEN = Metric(
    "specsplit_adaptive_token_seconds",
    Kind.GAUGE,
    _VERIFIER,
    "What one more token costs in a step, as the controller reckons with it.",
)
SPEC_NUM_STEPS = Metric(
    "specsplit_spec_num_steps",
    Kind.GAUGE,
    _VERIFIER,
    "The plan's num_steps, mean over the sessions of the latest step that had any; a session without a drafter counts as 0.",
)
SPEC_NUM_DRAFT_TOKENS = Metric(
    "specsplit_spec_num_draft_tokens",
    Kind.GAUGE,
    _VERIFIER,
    "The plan's num_draft_tokens, mean over the sessions of the latest step that had any; a session without a drafter, or whose "
    "plan does not speculate, counts as 0.",
)
ACCEPT_LENGTH = Metric(
    "specsplit_accept_length",
    Kind.HISTOGRAM,
    _VERIFIER,
    "accept_length (accepted nodes and the bonus) of every session step that had a drafter and a plan that speculates.",
    buckets=_ACCEPT_LENGTHS,
)
STEP_TIME = Metric(
    "specsplit_step_time_seconds",
    Kind.HISTOGRAM,
    _VERIFIER,
    "From the end of one step to the end of the next, idleness not counted: waiting, the forward pass, and everything else.",
    buckets=_STEP_SECONDS,
)
WAIT_TIME = Metric(
    "specsplit_wait_time_seconds",
    Kind.HISTOGRAM,
    _VERIFIER,
    "How much of a step's time went by waiting for drafters.",
    buckets=_STEP_SECONDS,
)
VERIFY_TIME = Metric(
    "specsplit_verify_time_seconds",
    Kind.HISTOGRAM,
    _VERIFIER,
    "How much of a step's time the target's forward pass took.",
    buckets=_STEP_SECONDS,
)
HOST_TIME = Metric(
    "specsplit_host_time_seconds",
    Kind.HISTOGRAM,
    _VERIFIER,
    "What is left of a step's time: events, scheduling, batching, picking, committing, handing out.",
    buckets=_STEP_SECONDS,
)
LOOKUP_BESIDE = Metric(
    "specsplit_lookup_beside_steps",
    Kind.COUNTER,
    _VERIFIER,
    "Steps of sessions that have a drafter, with `lookup_beside`. work: they were looked up for too; rest: they were not, since what was "
    "looked up lately brought less than the time that it took. Steps that had no use for drafts are neither.",
    (LOOKUP_STATE,),
)
ARM_TIME = Metric(
    "specsplit_arm_seconds",
    Kind.COUNTER,
    _VERIFIER,
    "Time of steps by what drafters did, with `rest_trials`. work: they work; rest: they were told to rest, since more tokens a second "
    "are committed without them; work_tried, rest_tried: the same for a few steps, to see which is better.",
    (ARM,),
)
ROUND_TRIP = Metric(
    "specsplit_round_trip_seconds",
    Kind.HISTOGRAM,
    _VERIFIER,
    "From a commit to the first grow that was made after it, as the verifier sees it.",
    buckets=_STEP_SECONDS,
)
PROMPT_TOKENS = Metric("specsplit_prompt_tokens", Kind.COUNTER, _VERIFIER, "Tokens of the prompts of sessions.")
CACHED_TOKENS = Metric(
    "specsplit_cached_tokens",
    Kind.COUNTER,
    _VERIFIER,
    "Tokens of prompts whose KV was there already.",
)
PREFILL_TOKENS = Metric(
    "specsplit_prefill_tokens",
    Kind.COUNTER,
    _VERIFIER,
    "Tokens that forward passes have read before they decode: of prompts, and of what preempted sessions had written.",
)
RECOMPUTED_TOKENS = Metric(
    "specsplit_recomputed_tokens",
    Kind.COUNTER,
    _VERIFIER,
    "Committed tokens that were read once more, for features that a drafter lacked.",
)
GENERATED_TOKENS = Metric(
    "specsplit_generated_tokens", Kind.COUNTER, _VERIFIER, "Tokens committed behind prompts and handed out."
)
RUNNING_SESSIONS = Metric("specsplit_running_sessions", Kind.GAUGE, _VERIFIER, "Sessions that hold KV pages.")
WAITING_SESSIONS = Metric("specsplit_waiting_sessions", Kind.GAUGE, _VERIFIER, "Sessions that wait for KV pages.")
PREEMPTIONS = Metric(
    "specsplit_preemptions",
    Kind.COUNTER,
    _VERIFIER,
    "Sessions that gave their KV pages back for older ones, and were computed again later.",
)
FAILOVERS = Metric(
    "specsplit_failovers",
    Kind.COUNTER,
    _VERIFIER,
    "Sessions that were given another drafter after theirs was lost or had no room.",
)
HAND_OVERS = Metric(
    "specsplit_hand_overs",
    Kind.COUNTER,
    _VERIFIER,
    "Sessions that went on with another drafter because the coordinator took it for the better one.",
)
IDLE_TURNS = Metric(
    "specsplit_idle_turns",
    Kind.COUNTER,
    _MEMBERS,
    "Forward passes that a rank of a group took part in without tokens of its own; in neither specsplit_steps nor specsplit_expansions.",
)
WAVES = Metric(
    "specsplit_waves",
    Kind.COUNTER,
    _MEMBERS,
    "Waves that a rank of a group has been in: from one in which all ranks begin to step until all of them park.",
)
TURN_IMBALANCE = Metric(
    "specsplit_turn_imbalance",
    Kind.HISTOGRAM,
    _MEMBERS,
    "Of every forward pass of a group, the tokens of the rank that had most by the mean of all ranks; 1 is even.",
    buckets=(1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 64.0),
)
WAKE_TIME = Metric(
    "specsplit_wake_seconds",
    Kind.HISTOGRAM,
    _MEMBERS,
    "From when a rank had work while its group was parked to the forward of its first step or expansion.",
    buckets=_STEP_SECONDS,
)
DRAFTERS_LOST = Metric(
    "specsplit_drafters_lost",
    Kind.COUNTER,
    _VERIFIER,
    "Streams to drafters that broke, fell silent or could not be opened.",
)
DRAFTERS_DROPPED = Metric(
    "specsplit_drafters_dropped",
    Kind.COUNTER,
    _VERIFIER,
    "Streams to drafters that were closed because the drafter caused more work than it was asked for; among specsplit_drafters_lost.",
)
DRAFT_MESSAGES = Metric(
    "specsplit_draft_messages",
    Kind.COUNTER,
    _VERIFIER,
    "Messages on streams to drafters. sent: opens, commits, features, closes; received: grows and refusals.",
    (DIRECTION,),
)
DRAFT_BYTES = Metric(
    "specsplit_draft_bytes",
    Kind.COUNTER,
    _VERIFIER,
    "Bytes of these messages, gRPC's framing not counted.",
    (DIRECTION,),
)
FEATURE_BYTES = Metric(
    "specsplit_feature_bytes", Kind.COUNTER, _VERIFIER, "Bytes of features among the bytes sent to drafters."
)
NODES_RECEIVED = Metric("specsplit_nodes_received", Kind.COUNTER, _VERIFIER, "Nodes that came in grows.")

# Expansions, seen by the drafter.

OPEN_SESSIONS = Metric("specsplit_open_sessions", Kind.GAUGE, _DRAFTER, "Sessions that a drafter grows for.", (KIND,))
OPEN_STREAMS = Metric("specsplit_open_streams", Kind.GAUGE, _DRAFTER, "Verifiers that a drafter grows for.", (KIND,))
EXPANSIONS = Metric("specsplit_expansions", Kind.COUNTER, _DRAFTER, "Forward passes of a drafter.", (KIND,))
DRAWN_EXPANSIONS = Metric(
    "specsplit_drawn_expansions",
    Kind.COUNTER,
    _DRAFTER,
    "Forward passes of a drafter that brought nodes or candidates.",
    (KIND,),
)
USED_EXPANSIONS = Metric(
    "specsplit_used_expansions", Kind.COUNTER, _DRAFTER, "Those of them that a committed node came of.", (KIND,)
)
EXPANDED_NODES = Metric(
    "specsplit_expanded_nodes", Kind.COUNTER, _DRAFTER, "Nodes whose children were drafted, roots included.", (KIND,)
)
PUSHED_NODES = Metric("specsplit_pushed_nodes", Kind.COUNTER, _DRAFTER, "Nodes drafted and sent to verifiers.", (KIND,))
COMMITS_APPLIED = Metric(
    "specsplit_commits_applied", Kind.COUNTER, _DRAFTER, "Commits that a drafter was told of.", (KIND,)
)
COMMITTED_NODES = Metric(
    "specsplit_committed_nodes", Kind.COUNTER, _DRAFTER, "Nodes of a drafter that these commits accepted.", (KIND,)
)
REFUSALS = Metric(
    "specsplit_refusals", Kind.COUNTER, _DRAFTER, "Sessions that a drafter ended on its side, by gRPC status.", (CODE,)
)
DRAFT_TIME = Metric(
    "specsplit_draft_time_seconds", Kind.HISTOGRAM, _DRAFTER, "Time of one expansion.", (KIND,), buckets=_STEP_SECONDS
)

# Verifiers and drafters.

KV_PAGES = Metric(
    "specsplit_kv_pages",
    Kind.GAUGE,
    _MEMBERS,
    "Pages of KV there are; 0 for a drafter that keeps none.",
)
KV_PAGES_USED = Metric("specsplit_kv_pages_used", Kind.GAUGE, _MEMBERS, "Pages of KV that sessions hold.")
STATE_BYTES = Metric(
    "specsplit_state_bytes",
    Kind.GAUGE,
    _VERIFIER,
    "Memory of the device for states of recurrent layers. sessions: taken at load for all that may run at once; "
    "drafts: what those of one step may take; prefixes: what is kept behind shared pages. 0 for a target without such layers.",
    (STATES_OF,),
    unused="what a verifier takes for them at load hardly changes, and its log says it",
)
_WINDOWS = "sessions wait for them only where window_kv_tokens is set too low; few targets have any"
WINDOW_PAGES = Metric(
    "specsplit_window_pages",
    Kind.GAUGE,
    _VERIFIER,
    "Pages of KV of layers that see a window where others see all tokens; 0: these have as many as the others.",
    unused=_WINDOWS,
)
WINDOW_PAGES_USED = Metric(
    "specsplit_window_pages_used",
    Kind.GAUGE,
    _VERIFIER,
    "Those of them that hold what sessions see of their windows.",
    unused=_WINDOWS,
)

GRAPHS = Metric(
    "specsplit_graphs",
    Kind.GAUGE,
    _MEMBERS,
    "Forward passes that are captured as CUDA graphs, one for each size and form.",
)
GRAPH_BYTES = Metric("specsplit_graph_bytes", Kind.GAUGE, _MEMBERS, "Memory of the device that CUDA graphs take.")
GRAPH_FORWARDS = Metric("specsplit_graph_forwards", Kind.COUNTER, _MEMBERS, "Forward passes that were a CUDA graph.")
EAGER_FORWARDS = Metric(
    "specsplit_eager_forwards",
    Kind.COUNTER,
    _MEMBERS,
    "Forward passes without a CUDA graph although there are some, by reason. size: more tokens or rows than the largest graph takes; "
    "layout: more pages or masks than there is memory for; layers: hidden states that no graph leaves; first: a descent of a new shape; "
    "full: a descent of one shape too many; bias: a descent for a session with a logit bias; "
    "failed: capturing has failed, and the log says why; group: another rank of the group had rows for which there is none.",
    (REASON_OF_EAGER,),
)

# Every process.

TASKS = Metric(
    "specsplit_tasks",
    Kind.GAUGE,
    _ALL,
    "Tasks of the event loop that are not over.",
    unused="it moves with the requests; a process in which it grows without end has a leak",
)

TABLE: tuple[Metric, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
"""Every metric, in the order above."""


def metrics_of(service: Service) -> tuple[Metric, ...]:
    """List the metrics that the processes of one service expose."""
    return tuple(metric for metric in TABLE if service in metric.services)
