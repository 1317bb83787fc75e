"""`python -m specsplit`."""

from __future__ import annotations

from specsplit.cli import app

if __name__ == "__main__":
    app(prog_name="specsplit")
