"""What tests of several commands need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.scripted import Scripted, serving


@pytest.fixture
def coordinator() -> Iterator[Scripted]:
    """A scripted coordinator to call."""
    with serving() as scripted:
        yield scripted
