"""The time of a forward on a GPU is that of its kernels, and not of the host that plans it."""

from __future__ import annotations

import time

import torch

from specsplit.clock import SystemClock
from specsplit_verifier.target.forward_time import forward_time
from tests.support.kernels import GPU, on_a_gpu

pytestmark = on_a_gpu


def test_what_the_host_does_before_the_launch_is_no_time_of_the_device() -> None:
    numbers = torch.ones(64, device=GPU)
    with forward_time(GPU, SystemClock()) as forward:
        time.sleep(0.2)
        forward.launched()
        numbers += 1
    assert 0 < forward.seconds < 0.1
