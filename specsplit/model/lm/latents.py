"""A model that keeps latents in the place of the heads that are made of them, if it gives the same logits still."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from specsplit.errors import LoadError
from specsplit.model.attention.interface import OTHERS
from specsplit.model.attention.latent import LatentAttention, latent_attention
from specsplit.model.attention.support import refusing
from specsplit.model.lm.probe import probe
from specsplit.model.pages.geometry import Geometry

if TYPE_CHECKING:
    from specsplit.model.lm.causal_lm import CausalLM

_log = logging.getLogger(__name__)


def laid_out(
    lm: CausalLM, measured: Callable[[], Geometry], lay_out: Callable[[Geometry], object], *, latent_cache: bool
) -> Tensor:
    """Lay out the KV of a model, with latents in the place of heads if `latent_cache` has it and they pass the probe -> `tree_logits`.

    measured: what its layers keep, as they are now. lay_out: makes KV of that. Raises LoadError if the model fails the probe, and RankLost.
    """
    standing = latent_attention(lm.model) if latent_cache and not lm.adapters else []
    heads = measured()
    trees = keep_latents(lm, standing, measured, lay_out, heads.numbers) if standing else None
    if trees is None:
        lay_out(heads)
        trees = probe(lm)
    return trees


def keep_latents(
    lm: CausalLM,
    standing: Sequence[LatentAttention],
    measured: Callable[[], Geometry],
    lay_out: Callable[[Geometry], object],
    heads: int,
) -> Tensor | None:
    """Have a model keep latents, laid out anew, if it passes the probe with them -> what that gives; else `standing` leave.

    The log says why.

    heads: numbers that its heads would keep of a token. All ranks of a group come to the same. Raises RankLost.
    """
    name, why, trees = type(lm.model).__name__, "", None
    try:
        with refusing("what makes heads of latents fails"):
            for each in standing:
                each.absorb()
        lay_out(measured())
        trees = probe(lm)
    except LoadError as error:
        why = str(error).removesuffix(OTHERS)
    if not any(failed for (failed,) in lm.blocks.assemble([bool(why)])):
        kept = lm.kv.geometry.numbers
        _log.info("%s keeps latents: %d numbers of a token, in the place of %d of its heads", name, kept, heads)
        return trees
    _log.warning(
        "%s keeps keys and values of all heads: with latents in their place, %s", name, why or "another rank fails"
    )
    for each in standing:
        each.leave()
    for holder in ("backend", "kv"):  # so that there is room for the next
        vars(lm).pop(holder, None)
    return None
