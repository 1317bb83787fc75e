"""A part of a target that cannot be loaded is told to the other processes, whatever went wrong."""

from __future__ import annotations

from typing import Any

import pytest

from specsplit.errors import LoadError, SpecsplitError
from specsplit_verifier.target.split import blaming


class Blamed:
    """Stands for the group, which hears why it ends."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def blamed(self, error: SpecsplitError) -> SpecsplitError:
        self.told.append(str(error))
        return error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (LoadError("the folder is empty"), "the folder is empty"),
        (RuntimeError("out of memory"), "RuntimeError: out of memory"),
    ],
)
def test_the_others_are_told_why_a_part_cannot_be_loaded(error: Exception, told: str) -> None:
    group: Any = Blamed()
    with pytest.raises(LoadError, match=told), blaming(group):
        raise error
    assert group.told == [told]
