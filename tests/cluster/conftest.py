"""Fixtures: a cluster of three databases of one server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clusterkit import cluster_of


@pytest.fixture
def nodes(server_dsn: str, template: str) -> Iterator[list[str]]:
    """DSNs of three nodes."""
    with cluster_of(server_dsn, template, 3) as dsns:
        yield dsns
