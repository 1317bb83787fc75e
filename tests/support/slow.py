"""Parameters with which a test takes long; see the mark `slow` in CONTRIBUTING.md."""

from __future__ import annotations

from typing import Any

import pytest


def slowly(*values: Any) -> list[Any]:
    """Mark parameters of `pytest.mark.parametrize` as slow: .ci/slow runs the test with them, `make test` without."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]
