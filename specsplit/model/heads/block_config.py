"""What the config.json of a block drafter says, whoever wrote it: speculators, z-lab, DeepSeek or vLLM."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from specsplit.errors import LoadError
from specsplit.model.heads.config import num_layers_of
from specsplit.values import DrafterKind

_SLIDING: Final = "sliding_attention"
_MARKOV_TYPES: Final = ("vanilla", "gated", "rnn")
_PLACES: Final = ("transformer_layer_config", "dflash_config")


@dataclass(frozen=True)
class BlockSight:
    """What the tokens of a block see in one layer, besides the committed tokens before it, of which all or the last few are seen."""

    window: int | None = None
    """Committed tokens, the last of them, that are seen; None: all."""
    causal: bool = False
    """A token of the block sees those before it alone; else all of the block."""


@dataclass(frozen=True)
class ConvConfig:
    """DFlash 2: convolutions around attention and MLP, over the tokens of a block."""

    taps: int
    """Tokens that one reads, itself included."""
    group_size: int
    """Numbers of a state that share what is added to their kernels."""


@dataclass(frozen=True)
class SelectorConfig:
    """DFlash 2: what scores the likeliest tokens of a position by the token before it."""

    rank: int
    top_k: int


@dataclass(frozen=True)
class MarkovConfig:
    """DSpark: what a position's logits are changed by, for the token before it."""

    rank: int
    kind: str = "vanilla"


@dataclass(frozen=True)
class BlockConfig:
    """A block drafter by its config.json and the names of its tensors."""

    layers: tuple[int, ...]
    """The hidden states that a feature consists of, as FeatureNeed counts them."""
    size: int
    """Tokens of a block, the committed one that it begins with included."""
    mask_token: int
    from_anchor: bool
    """The first position, that of the committed token, predicts the next token; else the second does."""
    sights: tuple[BlockSight, ...]
    """By layer."""
    draft_vocab_size: int | None = None
    """Tokens that it proposes, as stated."""
    target_hidden_size: int | None = None
    """Width of the target's hidden states; None: the drafter is as wide."""
    logit_scale: float = 1.0
    conv: ConvConfig | None = None
    selector: SelectorConfig | None = None
    markov: MarkovConfig | None = None
    confidence: bool = False
    """A confidence head is there."""
    confidence_with_markov: bool = False
    """It reads the Markov head's embedding of the token before, too."""
    kind: DrafterKind = DrafterKind.DFLASH

    @property
    def depth(self) -> int:
        """Tokens that one block drafts."""
        return self.size if self.from_anchor else self.size - 1

    @classmethod
    def read(cls, facts: dict[str, Any], names: Collection[str], target_layers: int) -> BlockConfig:
        """facts: config.json. names: of the tensors. target_layers: of the target. Raises LoadError for what is not said plainly."""
        spark = is_dspark(facts, names)
        size, mask = _said(facts, "block_size"), _said(facts, "mask_token_id")
        if not isinstance(size, int) or size < 2:
            raise LoadError(f"config.json says block_size is {size!r}; expected 2 or more")
        if not isinstance(mask, int) or mask < 0:
            raise LoadError(f"config.json says mask_token_id is {mask!r}; expected the token of the mask")
        anchor, confidence = _said(facts, "sample_from_anchor"), _has_confidence(facts, names)
        scale = _said(facts, "logit_scale")
        return cls(
            layers=_feature_layers(facts, target_layers),
            size=size,
            mask_token=mask,
            from_anchor=spark if anchor is None else bool(anchor),
            sights=_sights(facts),
            draft_vocab_size=_said(facts, "draft_vocab_size"),
            target_hidden_size=_said(facts, "target_hidden_size"),
            logit_scale=1.0 if scale is None else float(scale),
            conv=_conv(facts, size),
            selector=_selector(facts),
            markov=_markov(facts) if spark else None,
            confidence=confidence,
            confidence_with_markov=bool(_said(facts, "confidence_head_with_markov")),
            kind=DrafterKind.DSPARK if spark else DrafterKind.DFLASH,
        )


def is_dspark(facts: dict[str, Any], names: Collection[str]) -> bool:
    """Tell whether a folder holds DSpark, and not DFlash."""
    stated = facts.get("speculators_model_type")
    return stated == "dspark" or (stated is None and any(name.startswith("markov_head.") for name in names))


def _has_confidence(facts: dict[str, Any], names: Collection[str]) -> bool:
    """Tell whether there is a confidence head. Raises LoadError if config.json says otherwise than the tensors."""
    there, stated = any(name.startswith("confidence_head.") for name in names), _said(facts, "enable_confidence_head")
    if stated is not None and bool(stated) != there:
        raise LoadError(
            f"config.json says enable_confidence_head is {stated!r}, and tensors confidence_head.* are {'' if there else 'not '}there"
        )
    return there


def _feature_layers(facts: dict[str, Any], num_layers: int) -> tuple[int, ...]:
    """The hidden states that are read, as FeatureNeed counts them (k: behind k decoder layers).

    speculators (`aux_hidden_state_layer_ids`) names them so; others (`target_layer_ids`) name outputs of layers counted from 0: k - 1.
    Raises LoadError unless they are layers of the target, each once.
    """
    inputs, outputs = facts.get("aux_hidden_state_layer_ids"), _said(facts, "target_layer_ids")
    if not inputs and not outputs:
        raise LoadError(
            "config.json names no hidden states that a block drafter reads: expected dflash_config.target_layer_ids or "
            "aux_hidden_state_layer_ids"
        )
    layers = tuple(inputs) if inputs else tuple(layer + 1 for layer in outputs)
    if len(set(layers)) < len(layers) or min(layers) < 0 or max(layers) > num_layers:
        raise LoadError(
            f"a block drafter on hidden states {list(layers)} of a target of {num_layers} layers: expected different ones"
        )
    return layers


def _sights(facts: dict[str, Any]) -> tuple[BlockSight, ...]:
    """What the layers see. `is_causal`, or `dflash_config.causal`, is of all layers.

    Where it is not there, layers with a window are causal, of speculators unless `sliding_window_non_causal`, and the others are not.
    """
    kinds = _said(facts, "layer_types")
    count = num_layers_of(facts)
    sliding = [False] * count if kinds is None else [kind == _SLIDING for kind in kinds]
    if len(sliding) != count:
        raise LoadError(f"config.json has {len(sliding)} layer_types for {count} layers")
    own = facts.get("dflash_config") or {}
    stated = facts.get("is_causal") if facts.get("is_causal") is not None else own.get("causal")
    both_ways = "speculators_model_type" in facts and facts.get(
        "sliding_window_non_causal", facts["speculators_model_type"] == "dflash2"
    )
    causal = [each and not both_ways if stated is None else bool(stated) for each in sliding]
    if own.get("use_swa") and not any(sliding):
        sliding = [True] * count
    window = own.get("swa_window_size", _said(facts, "sliding_window"))
    if any(sliding) and (not isinstance(window, int) or window < 1):
        raise LoadError(f"config.json says that layers see a window of {window!r} tokens; expected 1 or more")
    return tuple(
        BlockSight(window if each else None, only_before) for each, only_before in zip(sliding, causal, strict=True)
    )


def _conv(facts: dict[str, Any], size: int) -> ConvConfig | None:
    taps, group = _said(facts, "conv_kernel_size"), _said(facts, "conv_group_size")
    if taps is None and group is None:
        return None
    width = (facts.get("transformer_layer_config") or facts).get("hidden_size", 0)
    if not isinstance(taps, int) or not isinstance(group, int) or not 1 <= taps <= size or group < 1 or width % group:
        raise LoadError(
            f"config.json says conv_kernel_size is {taps!r} and conv_group_size {group!r}; expected 1 to {size} tokens of a block, and a "
            f"divisor of {width} numbers"
        )
    return ConvConfig(taps, group)


def _selector(facts: dict[str, Any]) -> SelectorConfig | None:
    rank, top_k = _said(facts, "selector_rank"), _said(facts, "selector_top_k")
    if rank is None and top_k is None:
        return None
    if not isinstance(rank, int) or not isinstance(top_k, int) or min(rank, top_k) < 1:
        raise LoadError(f"config.json says selector_rank is {rank!r} and selector_top_k {top_k!r}; expected 1 or more")
    return SelectorConfig(rank, top_k)


def _markov(facts: dict[str, Any]) -> MarkovConfig | None:
    rank, kind = _said(facts, "markov_rank"), _said(facts, "markov_head_type") or "vanilla"
    if rank is None or not isinstance(rank, int) or rank < 0 or kind not in _MARKOV_TYPES:
        raise LoadError(
            f"config.json says markov_rank is {rank!r} and markov_head_type {kind!r}; expected a rank, 0 for none, and "
            f"{' or '.join(_MARKOV_TYPES)}"
        )
    return MarkovConfig(rank, kind) if rank else None


def _said(facts: dict[str, Any], key: str) -> Any:
    """What the file says, at its top, of the decoder layers, or in dflash_config; None: nothing. Raises LoadError for two answers."""
    places = (facts, *((facts.get(place) or {}) for place in _PLACES))
    said = [place[key] for place in places if place.get(key) is not None]
    if any(each != said[0] for each in said):
        raise LoadError(f"config.json says of {key} both {' and '.join(map(repr, said))}")
    return said[0] if said else None
