"""Controllers: how much every session speculates, decided by what speculation brought lately."""
