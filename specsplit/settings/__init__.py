"""What an operator can set, one frozen class per service.

A setting comes from, weakest first: its default, a TOML file, the environment (`SPECSPLIT_<SERVICE>_<NAME>`), an
explicit override (a CLI option). A name that no service knows is an error wherever it stands, so that a misspelt one is
never ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specsplit.lazy import offering

if TYPE_CHECKING:
    from specsplit.settings.public import *  # noqa: F403

__getattr__ = offering(__name__)  # an address is split, and a service asked for its health, without pydantic's settings
