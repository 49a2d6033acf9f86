"""The app: which database, which workflows, and everything one does with them.

``AsyncApp`` lives on the event loop that enters it. ``App`` is for sync code; what must go on in
the background - its worker, the waiting for results - runs on a loop in a thread of its own. Either
runs workflows and steps of both colours.
"""

from pgflow._worker.options import Tally
from pgflow._worker.worker import Worker
from pgflow.app._async import AsyncApp, twin_of
from pgflow.app._base import AppBase
from pgflow.app._connection import ConnectionClient
from pgflow.app._sync import App, wake_and_tell

__all__ = [
    "App", "AppBase", "AsyncApp", "ConnectionClient", "Tally", "Worker", "twin_of", "wake_and_tell",
]  # fmt: skip
