"""What admission takes of a step while long prompts wait for their common beginning: the scheduler alone, without a model."""

from __future__ import annotations

import random
from time import perf_counter

from benchmarks.report import Row
from benchmarks.spread import percentile
from specsplit.model.pages.pool import PagePool
from specsplit.sessions import DecodeRequest
from specsplit.values import ModelInfo, Plan, Stopping, Vocabulary
from specsplit_verifier.schedule.kv_cache_manager import KVCacheManager
from specsplit_verifier.schedule.scheduler import Scheduler
from specsplit_verifier.sessions.session import Session, StopRule

PAGE, CHUNK, NEW = 16, 512, 5
WORLDS = ((1, 65_536), (16, 65_536), (64, 24_576))
"""(requests that begin alike, tokens of their common beginning)."""


def rows() -> list[Row]:
    """A row for each of the worlds."""
    return [_row(count, length) for count, length in WORLDS]


def _row(count: int, length: int) -> Row:
    at_once, *steps = _measure(count, length)
    return {
        "batch": count, "controller": "", "drafter": f"admission alone, {length:,} tokens alike", "temperature": "", "steps": len(steps),
        "aim_ms": "", "host_p50_ms": percentile(steps, 50), "host_p90_ms": percentile(steps, 90), "forward_p50_ms": "", "drafted": "",
        "drafted_host_p50_ms": "", "drafted_tokens_p50": "", "accept_length": "", "edge_us": "", "first_ms": at_once,
    }  # fmt: skip


def _measure(count: int, length: int) -> list[float]:
    """Milliseconds of every admission: of the one after all have arrived, then beside each chunk of the first prompt."""
    scheduler = _arrived(count, length)
    made = [_admission_ms(scheduler)]
    (first,) = scheduler.running.values()
    while first.kv_length + CHUNK < length:
        first.kv_length += CHUNK
        made.append(_admission_ms(scheduler))
    return made


def _arrived(count: int, length: int) -> Scheduler:
    """So many requests wait. Each has numbers of its own for its tokens, as requests from the wire have."""
    kv = KVCacheManager(PagePool(2 * length // PAGE + count * PAGE, PAGE))
    scheduler = Scheduler(ModelInfo("none", Vocabulary(2**20), 2 * length), kv, max_sessions=count)
    text = random.Random(0).choices(range(50_000), k=length)
    for number in range(count):
        tokens = [*map(int, map(str, text)), number]
        request = DecodeRequest(str(number), tokens, stopping=Stopping(NEW))
        scheduler.submit(Session(number, request, Plan(), StopRule(NEW), kv.table(), tokens))
    return scheduler


def _admission_ms(scheduler: Scheduler) -> float:
    began = perf_counter()
    scheduler.admit()
    return (perf_counter() - began) * 1e3
