"""Captured forwards: CUDA graphs of a runner, by the size of what they hold.

A captured forward is a fixed list of kernels over fixed memory, which the device runs without the host. So rows are padded to one of a
few sizes (`Buckets`), what they say is copied into memory that never moves (`StaticInputs`, `StaticAttention`), and what comes out lies
in memory that never moves either, until the next forward overwrites it. Whatever has no graph is run eagerly, and counted.
"""

from __future__ import annotations

from specsplit.model.graphs.capturer import Captured, Capturer, CudaCapturer, Results
from specsplit.model.graphs.graphs import Graphs, OnLaunch, Program, Wrap, unwatched
from specsplit.model.graphs.shared import SharedCapturer, SharedGraphs, Together
from specsplit.model.graphs.static import Inputs, StaticAttention, StaticInputs, StaticOutputs
from specsplit.model.pages.buckets import Bucket, Buckets
from specsplit.model.tensors.upload import Halves, Upload

__all__ = [
    "Bucket",
    "Buckets",
    "Captured",
    "Capturer",
    "CudaCapturer",
    "Graphs",
    "Halves",
    "Inputs",
    "OnLaunch",
    "Program",
    "Results",
    "SharedCapturer",
    "SharedGraphs",
    "StaticAttention",
    "StaticInputs",
    "StaticOutputs",
    "Together",
    "Upload",
    "Wrap",
    "unwatched",
]
