"""One run of a scenario: everything is put together, requests come, and time goes on until all of them are answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.lab.clock import PricedClock
from benchmarks.lab.cores import Cores
from benchmarks.lab.drafter import Drafter
from benchmarks.lab.events import Timeline
from benchmarks.lab.ledger import Entry, Ledger
from benchmarks.lab.oracle import planner_of
from benchmarks.lab.scenario import DrafterSpec, Policy, Scenario
from benchmarks.lab.source import Source
from benchmarks.lab.transport import Wire
from benchmarks.lab.truth import RightProposer
from benchmarks.lab.verifier import Verifier
from specsplit.membership import Roster
from specsplit.settings import VerifierSettings
from specsplit.values import Endpoint, Host
from specsplit_drafter.drafts.calibration import Calibrations
from specsplit_drafter.engine.session_table import SessionTable, TableLimits
from specsplit_verifier.engine.engine import core_of
from specsplit_verifier.records.events import Output

MAX_SESSIONS = 1024


class Laboratory:
    """The members of one cluster, on one timeline. A drafter's address is its number."""

    def __init__(self, scenario: Scenario, source: Source, calibrations: Sequence[Calibrations] | None = None) -> None:
        """`calibrations`: what drafters know from an earlier run, by drafter."""
        self.timeline = Timeline()
        self.ledger = Ledger()
        self._scenario = scenario
        self._requests = source.requests(scenario)
        self._texts = [source.truth(request) for request in self._requests] if scenario.knows_text else []
        self._places: list[int] = []
        """The verifier of every request."""
        self._load = [0] * scenario.verifiers
        self.drafters = [self._drafter(source, spec) for spec in scenario.drafters]
        for drafter, known in zip(self.drafters, calibrations or (), strict=False):
            drafter.table.calibrations = known
        self.verifiers = [self._verifier(source) for _ in range(scenario.verifiers)]
        self._endpoints = [
            Endpoint(str(number), str(number), drafter.table.proposer.info.features)
            for number, drafter in enumerate(self.drafters)
        ]
        for verifier in self.verifiers:
            self._join(verifier)

    def run(self) -> Ledger:
        """Answer every request. Raises what one of them, or its drafter, fails with, or RuntimeError if one is never answered."""
        for _, moment in zip(self._requests, self._scenario.arrivals.moments(), strict=False):
            self.timeline.at(moment, self._arrive)
        self.timeline.run()
        for refusal in (refusal for drafter in self.drafters for refusal in drafter.refusals):
            raise refusal
        unanswered = [entry.request.request_id for entry in self.ledger.entries if entry.ended_at is None]
        if unanswered:
            raise RuntimeError(f"nothing happens any more, and requests {', '.join(unanswered)} are not answered")
        return self.ledger

    def _drafter(self, source: Source, spec: DrafterSpec) -> Drafter:
        host = self._scenario.hosts[1] if self._scenario.priced else Host()
        limits = TableLimits(MAX_SESSIONS, spec.expand_width, spec.node_us, spec.expand_levels, host)
        proposer = source.proposer(spec)
        if self._scenario.policy is Policy.DRAFTS_TOKENS:
            proposer = RightProposer(proposer, self._texts)
        return Drafter(self.timeline, SessionTable(proposer, limits, self.timeline.clock), spec.cost)

    def _verifier(self, source: Source) -> Verifier:
        scenario, clock = self._scenario, self.timeline.clock
        target = source.target(clock)
        settings = VerifierSettings(
            model=Path(),
            max_sessions=MAX_SESSIONS,
            max_nodes=scenario.max_nodes,
            prefix_cache=False,  # replayed prompts are all alike, and would be read once
            lookup=scenario.lookup,
            lookup_beside=scenario.lookup,
        )
        planner = planner_of(scenario, settings, self._texts)
        lookups, own_host = PricedClock(0.5e-6 * scenario.beside_us), scenario.hosts[0]
        core = core_of(
            target.info, target.pool, target.recipe, settings, clock, planner, host=own_host, lookup_clock=lookups
        )
        cores, observe = self._cores(), self.ledger.steps.append
        return Verifier(self.timeline, core, target, scenario.step, cores, lookups, self._tell, observe)

    def _cores(self) -> Cores:
        """Make the cores of one verifier, which drafters share or do not."""
        verifier, drafter = self._scenario.hosts
        cores = Cores(self.timeline, drafter.contention(verifier))
        for each in self.drafters:
            each.cores.append(cores)
        return cores

    def _join(self, verifier: Verifier) -> None:
        """Lay the wires between a verifier and every drafter."""
        link = self._scenario.link
        for endpoint, drafter in zip(self._endpoints, self.drafters, strict=True):
            stream = len(drafter.wires)
            drafter.wires.append(Wire(self.timeline, link, partial(verifier.receive, endpoint.address)))
            verifier.wires[endpoint.address] = Wire(self.timeline, link, partial(drafter.receive, stream))
        verifier.post(Roster(tuple(self._endpoints)))

    def _arrive(self) -> None:
        """The next request comes, and goes to the least busy verifier, with a drafter in turn."""
        number = len(self.ledger.entries)
        if number == len(self._requests):
            return  # callers were done at the same moment, and others were first
        place = self._load.index(min(self._load))
        self._places.append(place)
        self._load[place] += 1
        drafter = self._endpoints[number % len(self._endpoints)] if self._endpoints else None
        looked_up = self._scenario.lookup
        request = replace(self._requests[number], drafter=drafter, any_drafter=looked_up, session=number)
        self.ledger.entries.append(Entry(request, self.timeline.clock.now()))
        self.verifiers[place].post(request)

    def _tell(self, session: int, output: Output) -> None:
        if not self.ledger.entries[session].take(output, self.timeline.clock.now()):
            return
        self._load[self._places[session]] -= 1
        if self._scenario.arrivals.at_once is not None and len(self.ledger.entries) < len(self._requests):
            self.timeline.after(0.0, self._arrive)
