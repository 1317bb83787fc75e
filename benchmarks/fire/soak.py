"""Steady load without faults, and what processes hold meanwhile."""

from __future__ import annotations

from typing import Final

from benchmarks.fire.beside import beside, tell
from benchmarks.fire.findings import Findings
from benchmarks.fire.fire import Fire
from benchmarks.fire.load import Load
from benchmarks.fire.logs import Logs
from benchmarks.fire.samples import Samples
from benchmarks.fire.verdict import conclude, judge_growth, run_out, settled
from specsplit.cli.local import LocalCluster

CALLERS: Final = 4
MOST_SAMPLES: Final = 720
LEAST_SAMPLE_S: Final = 1.0


def run(fire: Fire, seconds: float) -> Findings:
    """Ask for so long, and see that nothing grows."""
    findings, samples = Findings("soak"), Samples()
    fire.say(f"{len(fire.known)} texts are known")
    with fire.cluster("soak") as (cluster, logs):
        load = Load(fire, cluster.address, CALLERS, "soak")
        left = run_out(fire, _soaked(fire, cluster, logs, load, samples, seconds))
    conclude(findings, load, logs, left)
    judge_growth(findings, samples, logs.folder)
    return findings


async def _soaked(fire: Fire, cluster: LocalCluster, logs: Logs, load: Load, samples: Samples, seconds: float) -> str:
    """What was left when all was over."""
    every_s = max(LEAST_SAMPLE_S, seconds / MOST_SAMPLES)
    async with beside(
        samples.keep(lambda: cluster.children, logs, every_s), tell(fire, seconds, load, lambda: _told(samples))
    ):
        async with load:
            await fire.ending.wait(seconds)
        return await settled(cluster.address)


def _told(samples: Samples) -> str:
    """The latest sample of every process."""
    latest = {life.name: taken[-1][1] for life, taken in samples.lives.items()}
    return "; ".join(
        f"{name} {', '.join(f'{value:.0f} {what}' for what, value in held.items())}" for name, held in latest.items()
    )
