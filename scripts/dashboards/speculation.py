"""Speculation: what it brings, what it wastes, and where the time goes."""

from __future__ import annotations

from functools import partial

from grafana_foundation_sdk.models import dashboard

from scripts.dashboards import panels
from scripts.dashboards.page import CHOSEN, Panel, Row, page
from scripts.dashboards.panels import Query, distribution, limits, lines, number
from scripts.dashboards.promql import Source
from specsplit.observe import metric_table as table

CHOICE = Source(CHOSEN)
of, chart, times = partial(panels.of, CHOICE), partial(panels.chart, CHOICE), partial(panels.times, CHOICE)
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
        chart(
            "Accept length by verifier",
            table.ACCEPT_LENGTH,
            "instance",
            says="Tokens per session step with a drafter: accepted nodes and the bonus.",
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
                of(table.HITS, "", "hit"),
                of(table.MISSES, "cause", "miss: {{cause}}"),
            ],
            stacked=True,
            spans="spec_verify",
        ),
        chart(
            "Nodes drafted for nothing",
            table.WASTED_NODES,
            "cause",
            says="rejected: verified and not accepted; unverified: cut off by a commit before a step took them; late: their parent "
            "was gone when they came.",
            unit="suffix: nodes/s",
            stacked=True,
        ),
        lines(
            "Nodes",
            "Nodes that came from drafters, nodes that were verified, and nodes that were accepted.",
            "suffix: nodes/s",
            [
                of(table.NODES_RECEIVED, "", "received"),
                of(table.DRAFTED, "", "verified"),
                of(table.ACCEPTED, "", "accepted"),
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
            [of(table.ADAPTIVE_EXPECTED_RATE, "", "in force"), of(table.ADAPTIVE_STATIC_RATE, "", "as set")],
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
        chart(
            "Controller in force",
            table.ADAPTIVE_CONTROLLER,
            "controller",
            says="Verifiers by the controller that decides about their plan.",
            stacked=True,
        ),
    ]


def _reckoned() -> list[Panel]:
    return [
        chart(
            "Accept length that controllers reckon with",
            table.ADAPTIVE_ACCEPT_LENGTH,
            "instance",
            says="Tokens that a session commits in a step, bonus included.",
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
        chart("Switches of the plan", table.PLAN_SWITCHES, "instance", says="How often the plan was changed."),
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
        chart(
            "Lookup beside drafters, at work and at rest",
            table.LOOKUP_BESIDE,
            "lookup",
            says="Share of the steps of sessions that a drafter serves, verifiers added up, that were looked up for too, or in which that "
            "rested since it brought less than it takes. Nothing where `lookup_beside` is off.",
            unit="percentunit",
            stacked=True,
            width=24,
        ),
        chart(
            "Drafters at work and at rest",
            table.ARM_TIME,
            "arm",
            says="Share of the time of steps, verifiers added up, in which drafters work or were told to rest, and in which the other one "
            "was tried. Nothing where `rest_trials` is off.",
            unit="percentunit",
            stacked=True,
            width=24,
        ),
    ]


def _time() -> Row:
    return "Where a step's time goes", [
        lines(
            "Where a step's time goes",
            "Mean time of a step: waiting for drafters, the forward pass, and everything else on the engine thread.",
            "s",
            [
                of(table.WAIT_TIME, "", "wait"),
                of(table.VERIFY_TIME, "", "verify"),
                of(table.HOST_TIME, "", "host"),
            ],
            stacked=True,
            spans="step",
        ),
        times(
            "Steps",
            table.STEP_TIME,
            says="From the end of one step to the end of the next, idleness not counted.",
            spans="step",
        ),
        times("Waits", table.WAIT_TIME, says="How much of a step went by waiting for drafters.", spans="spec_wait"),
    ]


def _drafting() -> Row:
    return "Drafters and the wire", [
        times(
            "Round trip",
            table.ROUND_TRIP,
            says="From a commit to the first grow that was made after it, as verifiers see it. Draft time and round trip should be "
            "below the time of a step.",
            spans="spec_draft",
        ),
        chart(
            "Draft time",
            table.DRAFT_TIME,
            "kind",
            says="Mean time of one expansion, by kind of drafter.",
            spans="expansion",
        ),
        lines(
            "Expansions",
            "Nodes expanded and nodes sent, per expansion. used: the share of expansions that a committed node came of. A drafter that "
            "takes cores of its verifier is to have 0.7 or more.",
            "none",
            [
                Query(f"{CHOICE.rate(table.EXPANDED_NODES)} / {CHOICE.rate(table.EXPANSIONS)}", "expanded"),
                Query(f"{CHOICE.rate(table.PUSHED_NODES)} / {CHOICE.rate(table.EXPANSIONS)}", "sent"),
                Query(f"{CHOICE.rate(table.USED_EXPANSIONS)} / {CHOICE.rate(table.DRAWN_EXPANSIONS)}", "used"),
            ],
            spans="spec_grow",
        ),
        chart(
            "Messages",
            table.DRAFT_MESSAGES,
            "direction",
            says="On streams between verifiers and drafters. sent: opens, commits, features, closes; received: grows and refusals.",
            unit="suffix: msg/s",
        ),
        lines(
            "Bytes",
            "Of these messages; features are among those sent.",
            "Bps",
            [of(table.DRAFT_BYTES, "direction"), of(table.FEATURE_BYTES, "", "features")],
        ),
        chart(
            "Read once more",
            table.RECOMPUTED_TOKENS,
            "instance",
            says="Committed tokens that the target read again, for features that a new drafter lacked.",
            unit="suffix: tok/s",
        ),
    ]
