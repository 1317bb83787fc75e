"""What an operator can set, one frozen class per service.

A setting comes from, weakest first: its default, a TOML file, the environment (`SPECSPLIT_<SERVICE>_<NAME>`), an
explicit override (a CLI option). A name that no service knows is an error wherever it stands, so that a misspelt one is
never ignored.
"""

from __future__ import annotations

from specsplit.settings.base import Settings
from specsplit.settings.coordinator import CoordinatorSettings
from specsplit.settings.drafter import DrafterSettings
from specsplit.settings.engine import EngineSettings
from specsplit.settings.service import MemberSettings, ServiceSettings
from specsplit.settings.transport import ClientSettings, TransportSettings
from specsplit.settings.verifier import VerifierSettings

__all__ = [
    "ClientSettings",
    "CoordinatorSettings",
    "DrafterSettings",
    "EngineSettings",
    "MemberSettings",
    "ServiceSettings",
    "Settings",
    "TransportSettings",
    "VerifierSettings",
]
