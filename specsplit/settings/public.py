"""What specsplit.settings offers; it is imported when the first of it is asked for."""

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
