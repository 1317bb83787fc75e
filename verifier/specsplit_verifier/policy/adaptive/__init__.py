"""Controllers: bounds on how much every session speculates."""
