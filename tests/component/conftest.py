"""Fixtures of the component tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.component.agents import Cluster


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """An empty mini cluster; what its agents logged is shown when the test fails."""
    cluster = Cluster()
    try:
        yield cluster
    finally:
        print(cluster.logs())
        cluster.close()
