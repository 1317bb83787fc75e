"""The kinds of drafters: n-gram, a standalone model, heads on the target's features.

It may import `descent` and `drafts`.
Others use `NgramProposer`; `ModelProposer`, with a `StandaloneModel` or a `HeadModel`; `BlockProposer`, with a `BlockModel`.
"""
