"""A cluster with the pocket models, and a gateway before it. Where the programs are not installed, as in make test, all is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from specsplit.cli.gateway import Gateway
from specsplit.cli.local import LocalCluster
from specsplit.client import Client
from tests.clients.programs import POCKET

NEEDED = ("smg", "openai", "langchain_openai", "litellm", "guidellm", "aiperf", "lm_eval")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    here = Path(__file__).parent
    for item in items:
        if missing and here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"needs {' and '.join(missing)}: .ci/clients installs them"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Steps wait for drafts, so that some are accepted however busy the machine is."""
    waiting = {"draft_ahead": False, "wait_budget_us": 2_000_000}
    with LocalCluster(
        POCKET / "target", {"eagle3": POCKET / "eagle3"}, drafters=["eagle3"], verifier=waiting
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def gateway(cluster: LocalCluster) -> Iterator[Gateway]:
    with Gateway(cluster.address, "127.0.0.1:0") as gateway:
        yield gateway


@pytest.fixture(scope="session")
def own(cluster: LocalCluster) -> Iterator[Client]:
    """The client of this project, for comparison."""
    with cluster.client() as client:
        yield client
