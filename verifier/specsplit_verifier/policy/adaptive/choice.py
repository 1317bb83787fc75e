"""The choice of a controller by the settings of a verifier."""

from __future__ import annotations

from specsplit.errors import InvalidRequest
from specsplit.settings import VerifierSettings
from specsplit.values import Adaptive, Control
from specsplit_verifier.policy.adaptive.controller import Controller
from specsplit_verifier.policy.adaptive.ema import EmaController
from specsplit_verifier.policy.adaptive.goodput import GoodputController
from specsplit_verifier.policy.adaptive.tiers_file import DEFAULT, read_tiers


def controller_for(settings: VerifierSettings, control: Control) -> Controller:
    """The controller of the settings, or the one that an operator wants in its place, with the operator's bound.

    Raises InvalidRequest for a file of tiers that is wrong, or that lacks the num_steps that was asked for.
    """
    match control.adaptive or settings.controller:
        case Adaptive.STATIC:
            return Controller()
        case Adaptive.EMA:
            return _ema(settings)
        case Adaptive.GOODPUT:
            return GoodputController(bound_of(settings, control.max_draft_tokens))


def bound_of(settings: VerifierSettings, ordered: int | None) -> int:
    """Tokens that a session brings to one step at most: what an operator orders, or the settings say.

    A bound that nobody has named gives way to what features there is room for. Raises InvalidRequest for one that is named and too large.
    """
    most = settings.feature_retention - settings.step_token_budget
    max_draft_tokens = ordered or settings.max_draft_tokens
    if ordered is None and "max_draft_tokens" not in settings.model_fields_set:
        return min(max_draft_tokens, most)
    if max_draft_tokens > most:
        raise InvalidRequest(
            "max_draft_tokens",
            f"is {max_draft_tokens}, too many for one step of step_token_budget = {settings.step_token_budget} and "
            f"feature_retention = {settings.feature_retention}; expected at most {most}",
        )
    return max_draft_tokens


def _ema(settings: VerifierSettings) -> EmaController:
    config = read_tiers(settings.adaptive_config) if settings.adaptive_config is not None else DEFAULT
    if not settings.plan.speculates:
        raise InvalidRequest(
            "num_steps" if settings.num_steps == 0 else "num_draft_tokens",
            "leaves nothing to adapt: with adaptive = ema the plan has to speculate, and the tiers say when it does not",
        )
    if "num_steps" not in settings.model_fields_set:
        return EmaController(config, config.middle)
    if settings.num_steps not in config.steps:
        raise InvalidRequest(
            "num_steps",
            f"is {settings.num_steps}, and no tier has that; expected one of {config.steps}, or none for {config.middle}",
        )
    return EmaController(config, settings.num_steps)
