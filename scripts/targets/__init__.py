"""Which causal language models of transformers are served: tried, and printed to docs/targets.md."""
