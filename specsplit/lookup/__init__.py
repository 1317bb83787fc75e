"""Drafting without a model, by lookup: what followed where this text, or another of its client, read like this. Pure.

(SuffixDecoding, arXiv 2411.04975.)
"""

from specsplit.lookup.continuations import DrawnTree
from specsplit.lookup.session_text import SessionText
from specsplit.lookup.shared_texts import UNSHARED, SharedTexts
from specsplit.lookup.token_text import NO_TOKEN

__all__ = ["NO_TOKEN", "UNSHARED", "DrawnTree", "SessionText", "SharedTexts"]
