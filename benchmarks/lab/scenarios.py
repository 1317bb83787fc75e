"""The scenarios that have a name."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.lab.arrivals import Burst, Closed, Poisson
from benchmarks.lab.cost import HEAD_8B_H100, HEAD_CPU, LOOKUP_US, STEP_8B_H100, STEP_CPU, ExpansionCurve, StepCurve
from benchmarks.lab.scenario import SERIAL, DrafterSpec, Policy, Scenario
from benchmarks.lab.transport import Link
from specsplit.values import DrafterKind

NEAR, FAR = Link(0.0), Link(5.0)
STANDALONE, EAGLE3 = DrafterSpec(), DrafterSpec(DrafterKind.EAGLE3)
DFLASH = DrafterSpec(DrafterKind.DFLASH, expand_width=32)
"""As many rows in an expansion as the others' nodes: each of its nodes is a block of eight."""
NGRAM = DrafterSpec(DrafterKind.NGRAM, ExpansionCurve(0.2))
FREE = replace(STANDALONE, cost=ExpansionCurve(0.0))
AS_SLOW = replace(STANDALONE, cost=ExpansionCurve(3.0))
BATCHES = (1, 8, 32)
DELAYS = (0.0, 0.5, 2.5, 5.0)
"""One way, in ms."""


def _both(scenario: Scenario) -> list[Scenario]:
    """At no delay and at 5 ms."""
    return [replace(scenario, link=link) for link in (NEAR, FAR)]


def _batch(size: int) -> Scenario:
    """An 8B model on one H100 and its head, with so many callers."""
    return Scenario(
        f"8B, batch {size}",
        drafters=(DrafterSpec(DrafterKind.EAGLE3, HEAD_8B_H100),),
        step=STEP_8B_H100,
        arrivals=Closed(size),
        requests=max(4, 2 * size),
        warm=True,
    )


def _unpaced(name: str, verifiers: int) -> list[Scenario]:
    """An expansion takes as long as a step, as with the pocket models on one core each: ahead, serial, and whatever goodput makes of it."""
    drafter = replace(STANDALONE, cost=ExpansionCurve(3.0))
    ahead = Scenario(name, (drafter,), verifiers, step=StepCurve(3.0), arrivals=Closed(verifiers))
    return [ahead, replace(ahead, plan=SERIAL), replace(ahead, policy=Policy.GOODPUT)]


def _paired(cost_ms: float, delay_ms: float) -> list[Scenario]:
    """A head of that expansion cost at the end of such a link: ahead, serial, and what goodput makes of it."""
    scenario = Scenario("refresh", drafters=(replace(EAGLE3, cost=ExpansionCurve(cost_ms)),), link=Link(delay_ms))
    return [scenario, replace(scenario, plan=SERIAL), replace(scenario, policy=Policy.GOODPUT)]


def _sharing(drafter: DrafterSpec) -> list[Scenario]:
    """Such a drafter on cores of its own, and on two and on the one of its verifier, where it is told and where it is not."""
    apart = Scenario("cores of its own", drafters=(drafter,), requests=8)
    return [apart] + [
        replace(apart, name=f"{name}, {'priced' if priced else 'not told'}", shared_cores=cores, priced=priced)
        for cores, name in ((2, "one of the verifier's two cores"), (1, "the verifier's core"))
        for priced in (False, True)
    ]


def _beside(name: str, step: StepCurve, head: ExpansionCurve) -> list[Scenario]:
    """Texts of both kinds at every temperature: without drafts, with lookup, with a head, and with both."""
    alone = Scenario(name, (), policy=Policy.GOODPUT, step=step, requests=8)
    looking = replace(alone, lookup=True, step=replace(step, per_tree_us=LOOKUP_US))
    drafter = (replace(EAGLE3, cost=head),)
    both = replace(alone, lookup=True, drafters=drafter, beside_us=LOOKUP_US)
    return [
        replace(way, name=f"{name}, {text}", temperature=temperature, prompt=prompt, said=said)
        for text, prompt, said in (("held out", 64, 1), ("said eight times", 192, 8))
        for temperature in (0.0, 0.8, 1.0)
        for way in (alone, looking, replace(alone, drafters=drafter), both)
    ]


GROUPS: dict[str, list[Scenario]] = {
    "static": [
        *_both(Scenario("as it is")),
        *_both(Scenario("as it is", temperature=1.0)),
        *_both(Scenario("serial loop", plan=SERIAL)),
        *_both(Scenario("drafting costs nothing", drafters=(FREE,))),
        *_both(Scenario("eagle3", drafters=(EAGLE3,))),
        *_both(Scenario("eagle3, serial loop", drafters=(EAGLE3,), plan=SERIAL)),
        *_both(Scenario("dflash", drafters=(DFLASH,))),
        *_both(Scenario("dflash, serial loop", drafters=(DFLASH,), plan=SERIAL)),
    ],
    "oracles": [
        replace(scenario, policy=policy)
        for drafter in (STANDALONE, EAGLE3)
        for scenario in _both(Scenario("calibrated", drafters=(drafter,), warm=True))
        for policy in Policy
    ],
    "growth": [
        *[Scenario("one session", link=Link(delay)) for delay in DELAYS],
        *_both(Scenario("one session, drafting costs nothing", drafters=(FREE,))),
        *_both(Scenario("one session, serial loop", plan=SERIAL)),
        *_both(Scenario("ngram", drafters=(NGRAM,))),
        *[Scenario("one session, 50 kB/s", link=Link(delay, bytes_per_s=5e4)) for delay in (0.0, 5.0)],
        Scenario("an expansion takes as long as a step", drafters=(AS_SLOW,), step=StepCurve(3.0)),
        *[
            # 40 requests: with 16 the tail of single sessions would rule
            Scenario(name, drafters=drafters, arrivals=Closed(16), requests=40)
            for name, drafters in {
                "batch 16": (STANDALONE,),
                "batch 16, two drafters": (STANDALONE, STANDALONE),
                "batch 16, drafting costs nothing": (FREE, FREE),
            }.items()
        ],
    ],
    "batch": _both(Scenario("batch 16", arrivals=Closed(16), requests=16)),
    "cluster": [
        Scenario("two verifiers, two drafters, Poisson", (STANDALONE, EAGLE3), 2, arrivals=Poisson(2.0), requests=8),
        Scenario("two verifiers, two drafters, bursts", (STANDALONE, EAGLE3), 2, arrivals=Burst(4, 2.0), requests=8),
    ],
    "chat": [
        Scenario("chat", drafters, temperature=temperature, prompt=None)
        for temperature in (0.0, 1.0)
        for drafters in ((NGRAM,), ())
    ],
    "unpaced": [*_unpaced("unpaced", 1), *_unpaced("unpaced, two verifiers", 2)],
    "refresh": [
        scenario
        for cost_ms in (0.5, 1.0, 2.0, 4.0)
        for delay_ms in (0.0, 0.5, 2.5, 5.0)
        for scenario in _paired(cost_ms, delay_ms)
    ],
    "cores": [
        replace(scenario, policy=policy)
        for drafter in (STANDALONE, EAGLE3)
        for policy in (Policy.STATIC, Policy.GOODPUT)
        for scenario in _sharing(drafter)
    ],
    "beside": [*_beside("8B", STEP_8B_H100, HEAD_8B_H100), *_beside("CPU", STEP_CPU, HEAD_CPU)],
    "8b": [replace(_batch(size), policy=policy) for size in BATCHES for policy in Policy],
}
"""By the name that `--scenario` takes."""
DEFAULT = ("static", "oracles")
REPLAYED = ("8b",)
"""What a trace is judged by, unless something else is asked for."""
