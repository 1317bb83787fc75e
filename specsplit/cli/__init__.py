"""The command line."""

from __future__ import annotations

from specsplit.cli.app import app

__all__ = ["app"]
