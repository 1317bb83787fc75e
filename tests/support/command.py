"""The command line, run in this process."""

from __future__ import annotations

import pytest

from specsplit.cli import app


def run(*arguments: str) -> int:
    """The exit status of `specsplit` with these arguments."""
    with pytest.raises(SystemExit) as left:
        app(list(arguments), prog_name="specsplit")
    return left.value.code if isinstance(left.value.code, int) else 0
