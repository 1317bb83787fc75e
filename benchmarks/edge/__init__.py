"""What a token costs the process that passes it on."""

from benchmarks.edge.bench import run

__all__ = ["run"]
