"""Who steps next: admission of waiting sessions to KV pages, and the rows of the next step.

It may import `policy`, `drafters`, `sessions`, `target` and `records`.
Others use `Scheduler`; `KVCacheManager`, who holds which pages.
"""
