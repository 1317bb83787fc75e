"""`python -m specsplit.cli.child serve ...`: as `python -m specsplit`, but it drains and leaves when stdin ends.

The local cluster starts its services so, and nobody who runs is left behind; a child that is stopped (SIGSTOP) leaves when it goes on,
and not before.
"""

from __future__ import annotations

from specsplit.cli import app
from specsplit.cli.parent import leave_with_stdin

if __name__ == "__main__":
    leave_with_stdin()
    app(prog_name="specsplit")
