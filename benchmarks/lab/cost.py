"""What a step of the target and an expansion of a drafter take: straight lines."""

from __future__ import annotations

from dataclasses import dataclass

from specsplit_verifier.records.step import StepInput


@dataclass(frozen=True)
class StepCurve:
    """Seconds of one step."""

    base_ms: float
    per_token_us: float = 0.0
    """Time of every token in the forward."""
    per_kv_token_ns: float = 0.0
    """Time of every token whose KV a session reads, once per session."""
    per_tree_us: float = 0.0
    """Time that the host takes, beside the forward, for every session that decodes."""

    def seconds(self, tokens: int, kv_tokens: int) -> float:
        """Time of a step over so many tokens that reads so much KV."""
        return self.base_ms / 1e3 + tokens * self.per_token_us / 1e6 + kv_tokens * self.per_kv_token_ns / 1e9

    def of(self, step: StepInput) -> float:
        """Time of this step."""
        host_s = len(step.trees) * self.per_tree_us / 1e6
        return host_s + self.seconds(step.tokens, sum(row.pages.length for row in step.rows))


@dataclass(frozen=True)
class ExpansionCurve:
    """Seconds of one expansion."""

    base_ms: float
    per_node_us: float = 0.0

    def seconds(self, nodes: int) -> float:
        """Time of an expansion of so many nodes."""
        return self.base_ms / 1e3 + nodes * self.per_node_us / 1e6


STEP_20 = StepCurve(20.0)
EXPANSION_2 = ExpansionCurve(2.0)
"""Step and expansion of the project's paced benchmarks."""
STEP_8B_H100 = StepCurve(5.9, per_token_us=21.0, per_kv_token_ns=39.0)
"""A dense model of 8B parameters on one H100."""
HEAD_8B_H100 = ExpansionCurve(2.1)
"""The head of the 8B model, on the same device."""
STEP_CPU = StepCurve(13.0, per_token_us=500.0)
HEAD_CPU = ExpansionCurve(3.0, per_node_us=100.0)
"""A model of 135 M parameters on two cores, and a head of it on one."""
LOOKUP_US = 200.0
"""What a lookup and a merge take of the host, for a session in a step."""
