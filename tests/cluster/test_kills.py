"""A short campaign of kills under a cluster; `python -m tests.clusterkills` is the long one."""

from __future__ import annotations

import pytest

from tests.clusterkills import campaign


@pytest.mark.full
@pytest.mark.timeout(900)
def test_nothing_is_lost_or_doubled_where_workers_and_backends_are_killed(
    server_dsn: str, template: str
) -> None:
    faults = campaign(server_dsn, 20, 7, template)
    assert not any(faults.values()), faults
