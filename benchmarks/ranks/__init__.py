"""Rank groups as real processes: what their turns, their waking and their weights cost, and a soak with kills."""
