"""Scopes: equal for one name, different for two, and without anything of the name in them."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from specsplit.identity import digest, scope_of
from specsplit.wire.limits import MAX_SCOPE

names = st.text(min_size=1, max_size=40)
keys = st.binary(min_size=32, max_size=32)


@given(names, names, keys)
def test_a_scope_is_equal_for_one_name_and_different_for_two(name: str, other: str, key: bytes) -> None:
    assert 0 < len(scope_of(name, key)) <= MAX_SCOPE
    assert (scope_of(name, key) == scope_of(other, key)) is (name == other)


@given(names, keys, keys)
def test_who_lacks_the_key_cannot_compute_a_scope(name: str, key: bytes, other: bytes) -> None:
    assume(key != other)
    scope = scope_of(name, key)
    assert scope not in (scope_of(name, other), scope_of(name, b"")), "with another key it is another"
    assert not bytes.fromhex(digest(name)).startswith(scope), "it is no plain digest of the name"


@given(keys)
def test_a_caller_without_a_name_has_no_scope(key: bytes) -> None:
    assert scope_of("", key) == b""
