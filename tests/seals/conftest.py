"""Seals are made when a test asks for them, and not by the worker of its app."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_sealer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps workers from sealing, but where that is what is tested."""
    if "worker" not in request.node.name:
        monkeypatch.setattr("pgflow._worker.upkeep.FIRST_SEAL_SECONDS", 3600.0)
