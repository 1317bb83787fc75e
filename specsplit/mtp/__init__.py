"""Multi-token prediction layers inside a target's own checkpoint: the families that publish them. Nothing here needs torch."""

from __future__ import annotations

from specsplit.mtp.families import DEEPSEEK, FAMILIES, MIMO, family_among, family_of
from specsplit.mtp.family import MtpFamily, MtpFormula
from specsplit.mtp.folder import num_mtp_layers

__all__ = ["DEEPSEEK", "FAMILIES", "MIMO", "MtpFamily", "MtpFormula", "family_among", "family_of", "num_mtp_layers"]
