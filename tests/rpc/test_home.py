"""Which of its coordinators a member calls its home."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.rpc.home import home_of

ADDRESSES = st.lists(st.text(min_size=1), min_size=1, max_size=8, unique=True)


@given(st.text(), ADDRESSES)
def test_it_is_one_of_them_in_whatever_order_they_are_named(member: str, coordinators: list[str]) -> None:
    home = home_of(member, coordinators)
    assert home in coordinators
    assert home_of(member, sorted(coordinators)) == home


@given(st.text(), ADDRESSES)
def test_only_the_members_of_one_that_goes_move(member: str, coordinators: list[str]) -> None:
    home = home_of(member, coordinators)
    for gone in coordinators:
        left = [each for each in coordinators if each != gone]
        assert home_of(member, left) == home if gone != home else home_of(member, left) != gone


def test_each_is_the_home_of_about_as_many_members() -> None:
    coordinators = [f"coordinator-{number}:50051" for number in range(8)]
    homes = Counter(home_of(f"verifier-{number}", coordinators) for number in range(4000))
    assert len(homes) == 8 and all(count == pytest.approx(500, rel=0.15) for count in homes.values())
    assert home_of("verifier-1", ()) == ""
