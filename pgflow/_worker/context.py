"""Objects that the parts of one worker share. Their constructors take them in one piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pgflow._db.connect import ConnectOptions
from pgflow._worker.acknowledged import Acknowledged
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.options import Definitions, WorkerOptions
from pgflow._worker.parts import Life, Tasks, Wanted
from pgflow._worker.threads import Posts


@dataclass(frozen=True)
class WorkerContext:
    """Shared objects of a worker. Each of them depends on no part.

    Attributes:
        connect: Options of its connections.
        definitions: The app's.
        options: The worker's own.
        wake_waiters: Called with the chains that have ended or answered a request, if others in
            this process wait for them.
        control: The connection for everything except commits.
        life: Its number, its last heartbeat, and whether it fails or stops.
        tasks: Loops and background work.
        wanted: Requests to loops to look at once.
        posts: Calls from threads to the loop.
        acknowledged: Units that a fail-over may lose.
    """

    connect: ConnectOptions
    definitions: Definitions
    options: WorkerOptions
    wake_waiters: Callable[[list[int]], None] | None
    control: WorkerConnection
    life: Life
    tasks: Tasks
    wanted: Wanted
    posts: Posts
    acknowledged: Acknowledged
