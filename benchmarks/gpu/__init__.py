"""The `gpu` benchmark: what steps cost on a card, and what drafters bring there, in parts that have a budget of time each."""
