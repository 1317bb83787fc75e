"""What every test has."""

from __future__ import annotations

from hypothesis import settings

# No deadline: a busy machine is no reason to fail.
settings.register_profile("specsplit", deadline=None, print_blob=True)
settings.load_profile("specsplit")
