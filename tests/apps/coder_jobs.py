"""A workflow that changes files, and dies once, where the environment says."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pgflow
from pgflow import workflow
from pgflow.workspace import Workspace, change
from pgflow.workspace.git import Git

PLACE = os.environ.get("CODER_DIES_AT", "")
RECORD = Path(os.environ.get("CODER_RECORD", os.devnull))
run = Git.run


def die_at(place: str) -> None:
    """Dies by SIGKILL if this is the place, once of all processes."""
    if place == PLACE and not RECORD.exists():
        RECORD.write_text(place)
        os.kill(os.getpid(), signal.SIGKILL)


def watched(self: Git, *arguments: str, **options: Any) -> Any:
    """Git, with the moments before and behind the command that makes a change count."""
    is_seal = arguments[0] == "update-ref" and "change" in arguments
    if is_seal:
        die_at("before the snapshot counts")
    done = run(self, *arguments, **options)
    if is_seal:
        die_at("behind the snapshot")
    return done


Git.run = watched  # type: ignore[method-assign]


@change(timeout=60, settle_after=120)
def append(ws: Workspace, text: str) -> None:
    path = Path(ws.path) / "b"
    (Path(ws.path) / "scratch").write_text("half")
    path.write_text(path.read_text() + text)
    die_at("in the act")
    (Path(ws.path) / "scratch").unlink()


@workflow
async def coder(ws: Workspace) -> str:
    done = await append.aio(ws, "+1")
    await append.aio(ws, "+2")
    return done.commit


app = pgflow.AsyncApp(include=[coder])
