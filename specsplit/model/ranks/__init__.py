"""One model over several processes: what the leader has its followers do, and the collectives between them.

It may import `graphs`, `layers`, `attention`, `pages` and `tensors`.
Others use `TensorGroup`, the processes of one model; `TorchMesh`, their collectives.
"""
