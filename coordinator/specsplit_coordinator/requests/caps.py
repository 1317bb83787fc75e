"""What an operator lets one request ask for. Pure."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from specsplit.errors import InvalidRequest
from specsplit.requests import MAX_CHOICES, GenerateRequest
from specsplit.settings import CoordinatorSettings
from specsplit.values import Plan, PlanChanges

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caps:
    """The caps of one coordinator; None stands for no cap. They bind requests alone: a plan that an operator sets is not checked."""

    default_max_tokens: int | None = None
    """What a request gets that does not give max_tokens."""
    max_max_tokens: int | None = None
    """What a request may give, and gets at most if it does not."""
    plan: PlanChanges = field(default_factory=PlanChanges)
    """The largest values that a request's plan may have."""
    max_n: int | None = None
    """The most choices that a request may ask for."""
    max_priority: int = 0

    @classmethod
    def of(cls, settings: CoordinatorSettings) -> Caps:
        """Read the caps from the settings."""
        plan = PlanChanges(
            settings.max_num_steps, settings.max_topk, settings.max_num_draft_tokens, settings.max_wait_budget_us
        )
        return cls(settings.default_max_tokens, settings.max_max_tokens, plan, settings.max_n, settings.max_priority)

    def check(self, request: GenerateRequest) -> None:
        """Raise InvalidRequest for a request that asks for more, with the field, its value and the setting that bounds it."""
        _check("max_tokens", request.stopping.max_tokens, "max_max_tokens", self.max_max_tokens)
        _check("n", request.n, "max_n", self.max_n)
        _check("priority", request.priority, "max_priority", self.max_priority)
        request.plan.over(Plan())
        asked = vars(request.plan)
        for name, cap in vars(self.plan).items():
            _check(f"plan.{name}", asked[name], f"max_{name}", cap)

    def max_tokens(self, asked: int | None, context_left: int) -> int | None:
        """Tokens that a request may generate, of the `context_left` behind its prompt; None: as many as context and KV pool hold."""
        if asked is not None:
            return asked
        given = [tokens for tokens in (self.default_max_tokens, self.max_max_tokens) if tokens is not None]
        return min(*given, context_left) if given else None


def tell_small_queue(settings: CoordinatorSettings) -> None:
    """Log a warning if a request may ask for more choices than may wait. A queue of 0 is meant so: nobody waits."""
    most = settings.max_n or MAX_CHOICES
    if 0 < settings.max_queue < most:
        _log.warning(
            "max_queue = %d is less than the %d choices that a request may ask for: one for more than wait and are free is refused "
            "at any time; raise max_queue or lower max_n",
            settings.max_queue,
            most,
        )


def _check(field_name: str, asked: int | None, setting: str, cap: int | None) -> None:
    if asked is not None and cap is not None and asked > cap:
        raise InvalidRequest(
            field_name, f"is {asked}, more than this coordinator allows; expected at most {setting} = {cap}"
        )
