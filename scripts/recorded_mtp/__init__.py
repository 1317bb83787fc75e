"""What vLLM's MTP layers compute from tiny checkpoints, for tests to compare with."""
