"""The `adaptive` benchmark: static plans, controllers and an oracle under a load that is easy, then hard, then easy, in virtual time."""
