"""The lease of a folder for ``def`` workflows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pgflow.sync
from pgflow.workspace.durable import lease_key
from pgflow.workspace.folder import Workspace


@contextmanager
def lease(ws: Workspace, *, timeout: timedelta | float | None = None) -> Iterator[Workspace]:
    """A block that at most one run is in, of all that lease the same folder: see
    :func:`pgflow.workspace.lease`.

    Args:
        ws: The folder.
        timeout: As of ``pgflow.sync.lock``.
    """
    with pgflow.sync.lock(lease_key(ws), timeout=timeout) as fence:
        yield ws.fenced(fence)
