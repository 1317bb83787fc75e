"""The nouns that every service speaks: frozen values, no behaviour beyond checking and deriving.

Words are those of docs/design.md; tokens are vocabulary ids (ints >= 0), positions count from 0 at the first prompt token.
"""

from __future__ import annotations

from specsplit.values.adaptive import Adaptive, Estimate
from specsplit.values.arm import Arm
from specsplit.values.constraint import Constraint, ConstraintKind
from specsplit.values.control import AS_SET, Control
from specsplit.values.host import Host
from specsplit.values.logprobs import MAX_LOGPROBS, PromptLogprobs, TokenLogprob, check_logprobs
from specsplit.values.members import (
    Adapter,
    AdapterLoad,
    DrafterInfo,
    DrafterKind,
    Endpoint,
    Load,
    ModelInfo,
    Vocabulary,
    pages_held,
)
from specsplit.values.no_drafts import NoDrafts, NoDraftsCause
from specsplit.values.plan import Plan, PlanChanges
from specsplit.values.reports import DrafterReport, SpeculationReport
from specsplit.values.sampling import MAX_BIAS, MAX_BIASES, MAX_REPETITION_PENALTY, MAX_TEMPERATURE, Sampling
from specsplit.values.statistics import FailoverCause, Miss, SpeculationStatistics, Usage
from specsplit.values.stopping import FinishReason, Stopping
from specsplit.values.tracing import SERVICES, TraceChanges, TraceScope

__all__ = [
    "AS_SET",
    "MAX_BIAS",
    "MAX_BIASES",
    "MAX_LOGPROBS",
    "MAX_REPETITION_PENALTY",
    "MAX_TEMPERATURE",
    "SERVICES",
    "Adapter",
    "AdapterLoad",
    "Adaptive",
    "Arm",
    "Constraint",
    "ConstraintKind",
    "Control",
    "DrafterInfo",
    "DrafterKind",
    "DrafterReport",
    "Endpoint",
    "Estimate",
    "FailoverCause",
    "FinishReason",
    "Host",
    "Load",
    "Miss",
    "ModelInfo",
    "NoDrafts",
    "NoDraftsCause",
    "Plan",
    "PlanChanges",
    "PromptLogprobs",
    "Sampling",
    "SpeculationReport",
    "SpeculationStatistics",
    "Stopping",
    "TokenLogprob",
    "TraceChanges",
    "TraceScope",
    "Usage",
    "Vocabulary",
    "check_logprobs",
    "pages_held",
]
