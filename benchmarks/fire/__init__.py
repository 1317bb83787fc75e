"""A cluster of real processes that is made to suffer, on a seed: faults, malformed messages, long steady load."""
