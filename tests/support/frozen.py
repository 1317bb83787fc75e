"""Imported last by the process that services are forked from: what it has imported is out of their garbage collection from the start.

A service collects once when it has loaded, which walks through everything that is not frozen: a third of a second for torch and
transformers, and a copy of every page of theirs, since a collection writes to what it walks through.
"""

from __future__ import annotations

import atexit
import gc

gc.collect()
gc.freeze()
atexit.register(gc.unfreeze)  # extension modules report what is still there in the end as leaked
