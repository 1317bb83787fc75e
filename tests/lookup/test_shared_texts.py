from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specsplit.lookup import SharedTexts
from specsplit.values import Vocabulary

WORDS = Vocabulary(1000, "ab" * 32)


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.lists(st.integers(0, 9), max_size=30)), max_size=20))
def test_shared_texts_keep_the_scopes_used_last_and_no_more_tokens_than_they_may(
    outputs: list[tuple[bytes, list[int]]],
) -> None:
    shared = SharedTexts(tokens=40, scopes=2)
    for scope, output in outputs:
        shared.add((scope, WORDS), output)
    last = list(dict.fromkeys(scope for scope, output in reversed(outputs) if output))
    for scope in (b"a", b"b", b"c"):
        kept = shared.of((scope, WORDS))
        assert len(kept) <= 40
        assert bool(len(kept)) is (scope in last[:2])
