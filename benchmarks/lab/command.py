"""`python -m benchmarks lab`: which scenarios, with models or a trace, and where the table goes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.context import Context
from benchmarks.lab.figures import COLUMNS, Earlier, measured
from benchmarks.lab.models import ModelSource
from benchmarks.lab.recorder import record
from benchmarks.lab.replay import ReplaySource
from benchmarks.lab.scenario import DrafterSpec, Scenario
from benchmarks.lab.scenarios import DEFAULT, GROUPS, REPLAYED
from benchmarks.lab.source import Source
from benchmarks.lab.trace import Trace
from benchmarks.plots import sideways
from benchmarks.report import Row
from benchmarks.runner import begun, parser_of
from specsplit.cli.screen import Screen
from specsplit.values import DrafterKind

NOTES = [
    "Virtual time: a step and an expansion take what their curves say, a message the delay of its link, everything else nothing. "
    "The figures are those of no machine, and the same every time.",
    "Committed tokens/s: all tokens over the time in which there was a request, prompts included. A step is that of one session; "
    "expansions are those of all drafters, by step of the target.",
    "Oracles know what a step costs, and how often nodes are accepted (survivals) or what the target says (tokens). They plan the "
    "steps; what drafters grow is not theirs, but for the last, whose drafters grow nothing but right nodes.",
]


def main(words: Sequence[str]) -> None:
    """Run what is asked for."""
    options = _parser().parse_args(words)
    torch.set_num_threads(1)
    console = Screen(sys.stderr if options.json else None, width=220)
    context = begun(["lab", *words], console, quick=not options.docs, models=options.models)
    if options.record is not None:
        spec = DrafterSpec(DrafterKind(options.kind))
        first = GROUPS[(options.scenario or DEFAULT)[0]][0]
        scenario = replace(first, drafters=(spec,), temperature=options.temperature)
        record(ModelSource(options.models), scenario, options.record, own_noise=options.own_noise)
        console.print(f"wrote {options.record}")
        return
    groups = options.scenario or (DEFAULT if options.replay is None else REPLAYED)
    scenarios = [scenario for group in groups for scenario in GROUPS[group]]
    source: Source = ModelSource(options.models)
    if options.replay is not None:
        source = replayed = ReplaySource(Trace.read(options.replay))
        scenarios = _distinct([replayed.fitted(scenario) for scenario in scenarios])
    rows = _rows(context, source, scenarios)
    if options.json:
        json.dump(rows, sys.stdout, indent=2)
        sys.stdout.write("\n")
    settings: dict[str, object] = {"scenarios": " ".join(groups), "trace": str(options.replay or "none")}
    _finish(context, files_of(groups), rows, settings)


def files_of(groups: Sequence[str]) -> str:
    """Name the files of a run: those of other groups do not take the place of the usual ones."""
    return "lab" if tuple(groups) == DEFAULT else "-".join(["lab", *groups])


def _distinct(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """The scenarios without those that differ from an earlier one in name alone."""
    found: dict[Scenario, Scenario] = {}
    for scenario in scenarios:
        found.setdefault(replace(scenario, name=""), scenario)
    return list(found.values())


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("lab", __doc__, "--docs", "--models")
    parser.add_argument("--scenario", action="append", choices=tuple(GROUPS), help="a group; may be said several times")
    parser.add_argument("--replay", type=Path, help="a trace in the place of models")
    parser.add_argument(
        "--record", type=Path, help="write a trace here, of the first scenario's requests, and run nothing"
    )
    parser.add_argument(
        "--kind", default="standalone", choices=[kind.value for kind in DrafterKind], help="record: of whom"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="record: at which temperature")
    parser.add_argument(
        "--own-noise", action="store_true", help="record: the drafter does not share the target's noise"
    )
    parser.add_argument("--json", action="store_true", help="the rows on stdout; the table goes to stderr")
    return parser


def _rows(context: Context, source: Source, scenarios: Sequence[Scenario]) -> list[Row]:
    rows: list[Row] = []
    earlier: Earlier = {}
    with context.progress("lab", len(scenarios)) as advance:
        for scenario in scenarios:
            rows.append(measured(scenario, source, earlier))
            advance(scenario.name)
    return rows


def _finish(context: Context, name: str, rows: list[Row], settings: dict[str, object]) -> None:
    named = "{name}, {drafter}, {policy}, T={temperature:g}, {delay_ms:g} ms".format_map
    draw = partial(sideways, rows=rows, name=named, key="rate", xlabel="committed tokens/s, virtual time")
    context.finish(name, "The laboratory: virtual time, no noise", COLUMNS, rows, settings, NOTES, draw)
