"""What a forward reads: rows of tokens, and the pages of KV that hold what came before them.

It may import `tensors`.
Others use `Row`, `PagePool`, `PageTable`, `Geometry`, `KVCache`, `InputBatch`.
"""
