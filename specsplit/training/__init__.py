"""Training of draft heads for one's own target: texts that it writes, hidden states that it has, a head that learns to guess it.

`run.train_head` is the whole of it; `order` is what is asked for and imports no torch.
"""
