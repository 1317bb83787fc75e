"""The one table of a run, on the terminal and in files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.context import QUICK_RESULTS, RESULTS
from benchmarks.fire.findings import Findings
from benchmarks.fire.fire import Fire
from benchmarks.report import Report, Row

COLUMNS = {"part": "part", "what": "what", "count": "found", "aim": "aim"}
NAME = "fire"
WRONG = "Must not be: "
NOTHING_WRONG = "Nothing was found that must not be."


def write(fire: Fire, minutes: float, found: Sequence[Findings]) -> Report:
    """Print what was found, and write it; of parts that did not run the table keeps the rows of their last run."""
    context = fire.context
    for each in found:
        status: Row = {"part": each.part, "what": "found that must not be", "count": len(each.faults), "aim": "0"}
        each.rows[:0] = [{"part": each.part, "what": "run", "count": _run(fire, minutes), "aim": ""}, status]
    folder = QUICK_RESULTS if context.quick else RESULTS
    kept_rows, kept_notes = _kept(folder, {each.part for each in found})
    rows = [*(row for each in found for row in each.rows), *kept_rows]
    settings: dict[str, object] = {"minutes": minutes, "seed": fire.seed, "short": context.quick}
    wrong = [f"{WRONG}{fault}." for each in found for fault in each.faults] + kept_notes
    notes = [*(wrong or [NOTHING_WRONG]), *_origins(found, kept_rows), *NOTES]
    report = Report(NAME, "Faults, malformed messages and long load", COLUMNS, rows, context.machine, settings, notes)
    paths = report.write_tables(folder)
    report.show(context.console)
    for path in paths:
        fire.say(f"wrote {path}")
    if any(not each.sound for each in found):
        fire.say(f"seed {fire.seed} found what must not be; logs of the processes in {fire.folder}")
    return report


def _run(fire: Fire, minutes: float) -> str:
    machine = fire.context.machine
    when = f"{machine['date']}, load {machine['load_average_at_start']} at start"
    return f"{minutes:g} min, seed {fire.seed}, commit {machine['commit']}, {when}"


def _origins(found: Sequence[Findings], kept: Sequence[Row]) -> list[str]:
    """A sentence on which parts this run brought and which it did not, if there are such."""
    if not kept:
        return []
    ran, others = (
        ", ".join(dict.fromkeys(names)) for names in ([each.part for each in found], [str(row["part"]) for row in kept])
    )
    return [
        f"The last run was of {ran}: settings, machine and command below are its own. Kept from earlier runs: {others}; the first "
        "row of each part names the commit, the time and the load of its own run."
    ]


def _kept(folder: Path, parts: set[str]) -> tuple[list[Row], list[str]]:
    """The rows of other parts that the table of an earlier run has, and its notes on what must not be there."""
    written = folder / f"{NAME}.json"
    if not written.exists():
        return [], []
    table = json.loads(written.read_text(encoding="utf-8"))
    rows = [row for row in table["rows"] if row["part"] not in parts]
    wrong = tuple(f"{WRONG}{row['part']}: " for row in rows)
    return rows, [note for note in table["notes"] if note.startswith(wrong)]


NOTES = [
    "Real processes on one machine, the pocket models, steps of 20 ms at least. Chaos: a coordinator, two verifiers, drafters standalone, "
    "eagle3 and ngram, six callers. Soak: the same with one verifier and four callers.",
    "Texts are those of transformers (greedy) and of a verifier without drafter (seeded, or with filters, penalties and biases), token for "
    "token. A request that is not over 60 s after it was sent hangs.",
    "Recovery is measured at faults that have no other beside them, over the requests of all callers who read as it comes, most of which "
    "a member's fault does not touch; a request that ends, however it does, counts as gone on. A killed process is noticed at once; a "
    "member that is stopped is lost after 2 s.",
    "The aims are those of an idle machine; how busy it was stands in each part's first row.",
]
