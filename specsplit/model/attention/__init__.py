"""How a model attends over pages: one interface, a backend in torch and one by FlashInfer, and what neither serves.

It may import `pages` and `tensors`.
Others use `AttentionBackend`, what one is; `choose_backend`, which one a model gets; `support`, what is refused.
"""
