"""Speculation: what it brings, what it wastes, and where the time goes."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard

from scripts.dashboards.page import CHOSEN, Panel, Row, page
from scripts.dashboards.panels import Query, distribution, limits, lines, number, percentiles
from scripts.dashboards.promql import Source
from specsplit.observe import metric_table as table

CHOICE = Source(CHOSEN)
_EXPECTED = CHOICE.level(table.ADAPTIVE_EXPECTED_RATE, "instance")
_STATIC = CHOICE.level(table.ADAPTIVE_STATIC_RATE, "instance")


def speculation() -> dashboard.Dashboard:
    """What one looks at to tune a plan or a drafter."""
    return page(
        "specsplit-speculation",
        "specsplit / Speculation",
        "Accept length, plan, hits and misses, waste, and where a step's time goes.",
        [_gain(), _outcome(), _plan(), _time(), _drafting()],
        choices=True,
    )


def _accept_rate(by: str = "") -> str:
    return f"{CHOICE.rate(table.ACCEPTED, by)} / {CHOICE.rate(table.DRAFTED, by)}"


def _gain() -> Row:
    return "What it brings", [*_totals(), *_accepted(), *_members()]


def _totals() -> list[Panel]:
    return [
        number(
            "Accept length",
            "Tokens per session step with a drafter: accepted nodes and the bonus. At 1 speculation brings nothing.",
            "none",
            CHOICE.mean(table.ACCEPT_LENGTH),
            thresholds=limits(1.5, 1.05),
            width=6,
        ),
        number("Accept rate", "Accepted nodes as a share of verified ones.", "percentunit", _accept_rate(), width=6),
        number(
            "Hit rate",
            "Commits whose bonus was a node, so that what hung below it survived.",
            "percentunit",
            f"{CHOICE.rate(table.HITS)} / ({CHOICE.rate(table.HITS)} + {CHOICE.rate(table.MISSES)})",
            width=6,
        ),
        number(
            "Tokens from drafts",
            "Share of generated tokens that were accepted nodes; the rest is the target's own.",
            "percentunit",
            f"{CHOICE.rate(table.ACCEPTED)} / ({CHOICE.rate(table.ACCEPTED)} + {CHOICE.rate(table.BONUS)})",
            width=6,
        ),
    ]


def _accepted() -> list[Panel]:
    return [
        lines(
            "Accept length by verifier",
            "Tokens per session step with a drafter: accepted nodes and the bonus.",
            "none",
            [Query(CHOICE.mean(table.ACCEPT_LENGTH, "instance"), "{{instance}}")],
            thresholds=limits(1.5, 1.05),
            spans="spec_verify",
        ),
        distribution(
            "Accept lengths",
            "How many session steps accepted how much.",
            "none",
            CHOICE.buckets(table.ACCEPT_LENGTH),
            spans="spec_verify",
        ),
        lines(
            "Acceptance by depth",
            "Of the session steps whose tree reached a depth, the share that accepted a node there.",
            "percentunit",
            [
                Query(
                    f"{CHOICE.rate(table.ACCEPTED_DEPTH, 'depth')} / {CHOICE.rate(table.REACHED_DEPTH, 'depth')}",
                    "depth {{depth}}",
                )
            ],
            top=1,
        ),
    ]


def _members() -> list[Panel]:
    return [
        lines(
            "Accept rate by verifier",
            "Accepted nodes as a share of verified ones.",
            "percentunit",
            [Query(_accept_rate("instance"), "{{instance}}")],
            top=1,
            width=12,
        ),
        lines(
            "Accept length by drafter",
            "The same from the drafters' side: nodes accepted per commit that a drafter was told of, and the bonus. Sessions whose "
            "plan does not speculate are in it.",
            "none",
            [
                Query(
                    f"1 + {CHOICE.rate(table.COMMITTED_NODES, 'kind, instance')} / {CHOICE.rate(table.COMMITS_APPLIED, 'kind, instance')}",
                    "{{kind}} {{instance}}",
                )
            ],
            thresholds=limits(1.5, 1.05),
            width=12,
        ),
    ]


def _outcome() -> Row:
    return "Hits, misses, waste", [
        lines(
            "Hits and misses",
            "Commits by what became of the speculation. wrong: other nodes stood where the bonus went; late: none did, as the "
            "drafter was still growing; none: none did, and the drafter rested.",
            "cps",
            [
                Query(CHOICE.rate(table.HITS), "hit"),
                Query(CHOICE.rate(table.MISSES, "cause"), "miss: {{cause}}"),
            ],
            stacked=True,
            spans="spec_verify",
        ),
        lines(
            "Nodes drafted for nothing",
            "rejected: verified and not accepted; unverified: cut off by a commit before a step took them; late: their parent "
            "was gone when they came.",
            "suffix: nodes/s",
            [Query(CHOICE.rate(table.WASTED_NODES, "cause"), "{{cause}}")],
            stacked=True,
        ),
        lines(
            "Nodes",
            "Nodes that came from drafters, nodes that were verified, and nodes that were accepted.",
            "suffix: nodes/s",
            [
                Query(CHOICE.rate(table.NODES_RECEIVED), "received"),
                Query(CHOICE.rate(table.DRAFTED), "verified"),
                Query(CHOICE.rate(table.ACCEPTED), "accepted"),
            ],
        ),
    ]


def _plan() -> Row:
    return "Plan", [*_chosen(), *_reckoned(), *_made()]


def _chosen() -> list[Panel]:
    return [
        lines(
            "Plan",
            "num_steps and num_draft_tokens that sessions step under, averaged; sessions without a drafter count as 0.",
            "none",
            [
                Query(CHOICE.average(table.SPEC_NUM_STEPS), "num_steps"),
                Query(CHOICE.average(table.SPEC_NUM_DRAFT_TOKENS), "num_draft_tokens"),
            ],
            width=16,
        ),
        lines(
            "Expected, against the plan of the settings",
            "Tokens per second that the controllers expect of the plans in force, and of the plans of the settings. Who has not said "
            "counts as 0.",
            "suffix: tok/s",
            [
                Query(CHOICE.level(table.ADAPTIVE_EXPECTED_RATE), "in force"),
                Query(CHOICE.level(table.ADAPTIVE_STATIC_RATE), "as set"),
            ],
        ),
        lines(
            "Gain over the plan of the settings",
            "How much more the plan in force is expected to commit. Below 0 it costs tokens: the controller is about to leave it, or an "
            "operator holds it.",
            "percentunit",
            [Query(f"({_EXPECTED} - {_STATIC}) / clamp_min({_STATIC}, 1e-9)", "{{instance}}")],
            thresholds=limits(0.0, -0.1),
            signed=True,
        ),
        lines(
            "Controller in force",
            "Verifiers by the controller that decides about their plan.",
            "none",
            [Query(CHOICE.level(table.ADAPTIVE_CONTROLLER, "controller"), "{{controller}}")],
            stacked=True,
        ),
    ]


def _reckoned() -> list[Panel]:
    return [
        lines(
            "Accept length that controllers reckon with",
            "Tokens that a session commits in a step, bonus included.",
            "none",
            [Query(CHOICE.level(table.ADAPTIVE_ACCEPT_LENGTH, "instance"), "{{instance}}")],
        ),
        lines(
            "Costs that controllers reckon with",
            "Time of a step at the present load, and what one more token in it costs; means over verifiers.",
            "s",
            [
                Query(CHOICE.average(table.ADAPTIVE_STEP), "step"),
                Query(CHOICE.average(table.ADAPTIVE_TOKEN), "one more token"),
            ],
        ),
    ]


def _made() -> list[Panel]:
    return [
        lines(
            "Switches of the plan",
            "How often the plan was changed.",
            "cps",
            [Query(CHOICE.rate(table.PLAN_SWITCHES, "instance"), "{{instance}}")],
        ),
        lines(
            "Size of a step",
            "Sessions and tokens in one forward pass of the target, and nodes that one session brought to it.",
            "none",
            [
                Query(f"{CHOICE.rate(table.SESSION_STEPS)} / {CHOICE.rate(table.STEPS)}", "sessions"),
                Query(f"{CHOICE.rate(table.BATCH_TOKENS)} / {CHOICE.rate(table.STEPS)}", "tokens"),
                Query(f"{CHOICE.rate(table.DRAFTED)} / {CHOICE.rate(table.SESSION_STEPS)}", "nodes of a session"),
            ],
        ),
    ]


def _time() -> Row:
    return "Where a step's time goes", [
        lines(
            "Where a step's time goes",
            "Mean time of a step: waiting for drafters, the forward pass, and everything else on the engine thread.",
            "s",
            [
                Query(CHOICE.mean(table.WAIT_TIME), "wait"),
                Query(CHOICE.mean(table.VERIFY_TIME), "verify"),
                Query(CHOICE.mean(table.HOST_TIME), "host"),
            ],
            stacked=True,
            spans="step",
        ),
        lines(
            "Steps",
            "From the end of one step to the end of the next, idleness not counted.",
            "s",
            percentiles(CHOICE, table.STEP_TIME),
            spans="step",
        ),
        lines(
            "Waits",
            "How much of a step went by waiting for drafters.",
            "s",
            percentiles(CHOICE, table.WAIT_TIME),
            spans="spec_wait",
        ),
    ]


def _drafting() -> Row:
    return "Drafters and the wire", [
        lines(
            "Round trip",
            "From a commit to the first grow that was made after it, as verifiers see it. Draft time and round trip should be "
            "below the time of a step.",
            "s",
            percentiles(CHOICE, table.ROUND_TRIP),
            spans="spec_draft",
        ),
        lines(
            "Draft time",
            "Mean time of one expansion, by kind of drafter.",
            "s",
            [Query(CHOICE.mean(table.DRAFT_TIME, "kind"), "{{kind}}")],
            spans="expansion",
        ),
        lines(
            "Expansions",
            "Nodes expanded and nodes sent, per expansion.",
            "none",
            [
                Query(f"{CHOICE.rate(table.EXPANDED_NODES)} / {CHOICE.rate(table.EXPANSIONS)}", "expanded"),
                Query(f"{CHOICE.rate(table.PUSHED_NODES)} / {CHOICE.rate(table.EXPANSIONS)}", "sent"),
            ],
            spans="spec_grow",
        ),
        lines(
            "Messages",
            "On streams between verifiers and drafters. sent: opens, commits, features, closes; received: grows and refusals.",
            "suffix: msg/s",
            [Query(CHOICE.rate(table.DRAFT_MESSAGES, "direction"), "{{direction}}")],
        ),
        lines(
            "Bytes",
            "Of these messages; features are among those sent.",
            "Bps",
            [
                Query(CHOICE.rate(table.DRAFT_BYTES, "direction"), "{{direction}}"),
                Query(CHOICE.rate(table.FEATURE_BYTES), "features"),
            ],
        ),
        lines(
            "Read once more",
            "Committed tokens that the target read again, for features that a new drafter lacked.",
            "suffix: tok/s",
            [Query(CHOICE.rate(table.RECOMPUTED_TOKENS, "instance"), "{{instance}}")],
        ),
    ]
