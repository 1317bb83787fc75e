"""Mean accepted length by tree size and temperature, offline and exact, for three lossless ways to verify."""

from benchmarks.acceptance.bench import run

__all__ = ["run"]
