"""Changes of files as effects, and the lease of a folder."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec

import pgflow
from pgflow._flow.step import resolve_hints
from pgflow.effects import Absent, Confirmed
from pgflow.errors import DefinitionError
from pgflow.workspace.folder import Workspace
from pgflow.workspace.places import WorkspaceError
from pgflow.workspace.snapshots import Snapshot

P = ParamSpec("P")

Edit = Callable[Concatenate[Workspace, P], None]
SyncFileEffect = pgflow.effects.SyncEffect[
    Concatenate[Workspace, P], Snapshot, Callable[Concatenate[Workspace, P], Snapshot]
]


class NotChanged(WorkspaceError):
    """The function raised, so the files are as before it; the text has the error."""


def change(
    *,
    name: str | None = None,
    note: Callable[..., str] | None = None,
    raises: Sequence[type[Exception]] = (),
    timeout: timedelta | float | None = None,
    settle_after: timedelta | float | None = None,
) -> Callable[[Edit[P]], SyncFileEffect[P]]:
    """Declares an effect that changes the files of a workspace.

    The function is a plain ``def``. It takes the workspace first, and returns nothing. The effect
    returns the snapshot of what it has done. If the worker dies in the middle, what it has left is
    put aside as a snapshot and the function runs again. If it dies between the snapshot and the
    record of it, the snapshot is found and nothing runs again.

    It is taken back by dropping the change: later ones stay. If they have changed the same lines,
    that fails, and a person must look.

    Args:
        name: As of ``@effect``.
        note: Makes the line for people, of the function's arguments; its name if not given.
        raises: Errors that the workflow gets as they are. All others come as `NotChanged`; after
            either the files are as before.
        timeout: As of ``@effect``.
        settle_after: As of ``@effect``.

    Example::

        @change()
        def write(ws: Workspace, path: str, text: str) -> None:
            (Path(ws.path) / path).write_text(text)
    """

    def declare(fn: Edit[P]) -> SyncFileEffect[P]:
        if inspect.iscoroutinefunction(fn):
            raise DefinitionError(
                f"{fn.__qualname__} changes files, which blocks: write it with def. "
                "Async workflows call it with .aio()"
            )
        passed: tuple[type[Exception], ...] = (*raises, WorkspaceError)
        hints = resolve_hints(fn)
        if hints.get("return", None) not in (None, type(None)):
            raise DefinitionError(
                f"{fn.__qualname__} must return None: the effect returns the snapshot of the files"
            )

        @functools.wraps(fn)
        def act(ws: Workspace, /, *args: P.args, **kwargs: P.kwargs) -> Snapshot:
            key = pgflow.idempotency_key()
            line = fn.__name__ if note is None else note(ws, *args, **kwargs)
            with ws.change(key, note=line, decision=key.rsplit("/", 2)[0]) as made:
                if made.done is None:
                    try:
                        fn(ws, *args, **kwargs)
                    except passed:
                        raise
                    except Exception as error:
                        raise NotChanged(f"{type(error).__name__}: {error}") from error
            assert made.done is not None
            return made.done

        def find(
            ws: Workspace, /, *_args: P.args, **_kwargs: P.kwargs
        ) -> Confirmed[Snapshot] | Absent:
            found = ws.find_change(pgflow.idempotency_key())
            return Absent() if found is None else Confirmed(found)

        def _(done: Snapshot, ws: Workspace, /, *_args: P.args, **_kwargs: P.kwargs) -> None:
            ws.drop(done)

        signature = inspect.signature(fn)
        _resign(act, signature.replace(return_annotation=Snapshot), hints)
        effect = pgflow.effects.effect(
            risk="compensable",
            name=name,
            raises=(*raises, NotChanged),
            timeout=timeout,
            settle_after=settle_after,
        )(act)
        effect.settle(find)
        effect.compensate(_)
        return effect

    return declare


def _resign(fn: Callable[..., Any], signature: inspect.Signature, hints: dict[str, Any]) -> None:
    """Gives a function the parameters of another and an outcome of its own."""
    made: Any = fn
    made.__signature__ = signature
    made.__annotations__ = {**hints, "return": signature.return_annotation}
    del made.__wrapped__


def lease_key(ws: Workspace) -> str:
    """Return the key of the lock of a lease of this folder."""
    return f"workspace/{ws.path}"


@asynccontextmanager
async def lease(
    ws: Workspace, *, timeout: timedelta | float | None = None
) -> AsyncIterator[Workspace]:
    """Enter a block that at most one run is in, of all that lease the same folder: a lock.

    It yields the workspace with the fence of the lock, which each of its snapshots has. A run with
    a smaller fence than the newest snapshot is refused, with `Fenced`.

    Args:
        ws: The folder.
        timeout: As of ``pgflow.lock``.
    """
    async with pgflow.lock(lease_key(ws), timeout=timeout) as fence:
        yield ws.fenced(fence)
