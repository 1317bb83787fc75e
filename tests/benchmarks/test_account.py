"""Where a benchmark says that the time went."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from benchmarks.account import Account, ForwardClock, VerifierAccount, accounted
from benchmarks.ways import Measured

METRICS = """\
# TYPE specsplit_steps_total counter
specsplit_steps_total 4.0
# TYPE specsplit_verify_time_seconds histogram
specsplit_verify_time_seconds_bucket{le="+Inf"} 4.0
specsplit_verify_time_seconds_count 4.0
specsplit_verify_time_seconds_sum 0.08
# TYPE specsplit_wait_time_seconds histogram
specsplit_wait_time_seconds_sum 0.01
# TYPE specsplit_host_time_seconds histogram
specsplit_host_time_seconds_sum 0.004
"""


def test_the_account_of_a_verifier_is_read_off_its_metrics() -> None:
    assert accounted(METRICS) == Account(4, 0.08, 0.01, 0.004)
    with pytest.raises(KeyError, match="host_s"):
        accounted(METRICS.replace("specsplit_host", "other"))


def test_only_a_verifier_is_asked_where_its_metrics_are() -> None:
    account = VerifierAccount()
    account.hear("drafter-0", "metrics on http://127.0.0.1:1/metrics")
    with pytest.raises(ValueError, match="unknown url type"):
        account.read()


def test_calls_of_a_forward_are_counted_also_those_that_fail() -> None:
    model = nn.Linear(2, 3)
    signature = inspect.signature(model.forward)
    clock = ForwardClock(model)
    assert inspect.signature(model.forward) == signature, "transformers looks at it"
    assert model(torch.zeros(1, 2)).shape == (1, 3)
    with pytest.raises(RuntimeError):
        model(torch.zeros(1, 5))
    assert clock.calls == 2 and clock.seconds > 0


def test_a_tokens_milliseconds_add_up() -> None:
    row = Measured(tokens=10, seconds=0.2, account=Account(5, 0.08, 0.05, 0.02)).per_token()
    assert row["token_ms"] == pytest.approx(20) and row["calls"] == 0.5
    parts = [row[name] for name in ("forward_ms", "drafting_ms", "host_ms", "rest_ms")]
    assert parts == [pytest.approx(8), pytest.approx(5), pytest.approx(2), pytest.approx(5)]
    assert Measured(tokens=1, seconds=0.2, account=Account(1, 0.1)).per_token()["host_ms"] == "", "it is not known"
