"""Outputs that are held to a grammar: constraints are compiled by llguidance, and a state of each session says what may come next.

Needs the package llguidance (extra `engine`). Neither torch nor gRPC.
"""

from specsplit.grammar.grammars import Grammars
from specsplit.grammar.state import GrammarState

__all__ = ["GrammarState", "Grammars"]
