"""The part as `python -m benchmarks fire fuzz` runs it, and the rows of its table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.fire.findings import Findings
from benchmarks.fire.fire import Fire
from benchmarks.fire.fuzz.case import Case
from benchmarks.fire.fuzz.corpus import Corpus
from benchmarks.fire.fuzz.ground import Ground, ground
from benchmarks.fire.fuzz.memory import shares
from benchmarks.fire.fuzz.recording import recorded
from benchmarks.fire.fuzz.storm import Storm
from benchmarks.fire.logs import Logs
from benchmarks.fire.verdict import run_out

AIM = "10^6"
"""Fuzzed messages that a long run should reach."""


def run(fire: Fire, seconds: float, only: Sequence[str] = (), heard: Path | None = None) -> Findings:
    """Fuzz for so long, or only the cases of these names.

    Honest conversations are recorded, or read from the file `heard` that an earlier run wrote.
    """
    findings, _ = Findings("fuzz"), fire.known  # texts first: it takes torch, and no event loop
    cases = [Case.named(fire.seed, name) for name in only]
    with Logs(fire.folder / "fuzz") as logs:
        with ground(fire, logs, long=not fire.context.quick) as (place, children):
            storm = Storm(place, children, fire.seed, fire.say, ending=fire.ending)
            broke_off = run_out(fire, _stormed(fire, storm, place, seconds, cases, heard))
            storm.left += [broke_off] if broke_off else []
        storm.memory.write(fire.folder / "fuzz" / "memory.json")
        _report(findings, storm, logs)
    if findings.faults:
        fire.say(replay(fire, storm))
    return findings


async def _stormed(
    fire: Fire, storm: Storm, place: Ground, seconds: float, only: Sequence[Case], heard: Path | None
) -> str:
    """Nothing: what is left over the storm knows."""
    corpus = await recorded(place, fire.known) if heard is None else Corpus.read(heard)
    corpus.write(_corpus_of(fire))
    fire.say(f"honest messages by method: {corpus.counts}")
    await storm.run(fire.known, corpus, seconds, only)
    return ""


def replay(fire: Fire, storm: Storm) -> str:
    """The command that plays the cases again that are to blame; or, where no single one is, the run that draws the same once more."""
    short = " --short" if fire.context.quick else ""
    if not storm.tally.blamed:
        return f"no single case is to blame; once more: python -m benchmarks fire fuzz --seed {fire.seed}{short}"
    only = " ".join(f"--only {name}" for name in storm.tally.blamed)
    return f"once more: python -m benchmarks.fire.fuzz --seed {fire.seed}{short} --corpus {_corpus_of(fire)} {only}"


def _corpus_of(fire: Fire) -> Path:
    return fire.folder / "fuzz" / "corpus.jsonl"


def _report(findings: Findings, storm: Storm, logs: Logs) -> None:
    tally, honest = storm.tally, storm.honest
    findings.add("fuzzed messages", tally.sent, AIM)
    findings.add("a second", round(tally.sent / max(1e-9, storm.seconds)))
    findings.at_least("cases", tally.cases, 1)
    for rpc, messages in sorted(tally.messages.items(), key=lambda item: -item[1]):
        findings.add(f"messages: {rpc}", messages)
    for rpc, statuses in sorted(tally.statuses.items()):
        findings.add(f"ended: {rpc}", ", ".join(f"{status} {count:,}" for status, count in statuses.most_common()))
    findings.add("honest requests", len(honest.seconds))
    findings.add("seconds of an honest request, p50, p99, longest", shares(honest.seconds))
    findings.add("MiB of the processes at first and at last, and growth in the second half", storm.memory.told)
    findings.must_be_none("bad ends", tally.faults)
    findings.must_be_none(
        "requests that failed", honest.failed if honest.seconds else [*honest.failed, "none was answered"]
    )
    findings.must_be_none("hangs", honest.hung)
    findings.must_be_none("different texts", honest.different)
    findings.must_be_none("left over", storm.left)
    findings.must_be_none("memory", storm.memory.faults)
    findings.must_be_none("tracebacks", logs.tracebacks)
    findings.must_be_none("processes that died", logs.unwell)
