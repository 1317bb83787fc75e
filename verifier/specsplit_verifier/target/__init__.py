"""The target as a step uses it: one forward over all rows, and the tokens that are picked from its logits.

It may import `records`.
Others use `TargetRunner`, which runs a step's rows; `TreeSampler`, which picks their tokens.
"""
