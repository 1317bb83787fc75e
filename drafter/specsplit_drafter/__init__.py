"""The drafter: grows token trees ahead of verifiers."""
