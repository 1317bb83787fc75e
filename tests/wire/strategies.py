"""Features and what drafters say of them, and where members compute, as hypothesis draws them."""

from __future__ import annotations

from hypothesis import strategies as st

from specsplit.draft_events import FeaturesRead
from specsplit.features import LAST, FeatureFormat, FeatureLayout, FeatureNeed, Features
from specsplit.values import Constraint, ConstraintKind, Host

U32_MAX = 2**32 - 1
DIGESTS = st.sampled_from(["0f" * 32, "ab" * 32])

layers = st.lists(st.integers(LAST, 2**31 - 1), min_size=1, max_size=5).map(tuple)
widths = st.integers(1, U32_MAX)
formats = st.sampled_from(FeatureFormat)
needs = (
    st.just(FeatureNeed())
    | st.builds(FeatureNeed, layers, widths, formats)
    | st.builds(FeatureNeed, layers, widths, formats, DIGESTS, widths)
)
"""None, hidden states as they are, hidden states behind a projection."""
layouts = st.just(FeatureLayout()) | st.builds(
    FeatureLayout, widths, st.sampled_from([each for each in FeatureFormat if each is not FeatureFormat.TARGET])
)
MACHINES = ["a", "b"]
cores = st.sets(st.integers(0, 11)).map(Host.ranges)
hosts = st.just(Host()) | st.builds(
    Host, st.sampled_from(MACHINES), cores, st.integers(0, 16), st.sampled_from(["cpu", "cuda:1"])
)
"""Not told, or one of two machines of twelve cores."""
constraints = st.one_of(
    st.builds(
        Constraint,
        st.sampled_from(sorted({*ConstraintKind} - {ConstraintKind.JSON_OBJECT, ConstraintKind.CHOICE})),
        st.text(min_size=1, max_size=9),
    ),
    st.just(Constraint(ConstraintKind.JSON_OBJECT)),
    st.builds(
        Constraint,
        st.just(ConstraintKind.CHOICE),
        choices=st.lists(st.text(max_size=9), min_size=1, max_size=3).map(tuple),
    ),
)
reads = st.builds(FeaturesRead, st.integers(0, U32_MAX))


@st.composite
def features(draw: st.DrawFn) -> Features:
    """What a layout that is drawn with it allows."""
    layout = FeatureLayout(draw(st.integers(0, 3)), draw(layouts).format)
    count = draw(st.integers(1, 4))
    size = count * layout.data_bytes
    scales = count * (layout.bytes_per_token - layout.data_bytes)
    drawn = Features(
        draw(st.integers(0, U32_MAX)),
        count,
        draw(st.binary(min_size=size, max_size=size)),
        draw(st.binary(min_size=scales, max_size=scales)),
    )
    layout.check(drawn)
    return drawn
