"""How a model attends over pages: one interface, a backend in torch, one in C, one by FlashInfer and one in Triton, and what
none serves.

It may import `pages`, `native` and `tensors`.
Others use `AttentionBackend`, what one is; `backend_over`, which one a model gets; `support`, what is refused.
"""
