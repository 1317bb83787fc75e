"""Tokens a step of drafters without a model, replayed along recorded texts."""

from benchmarks.lookup.bench import run

__all__ = ["run"]
