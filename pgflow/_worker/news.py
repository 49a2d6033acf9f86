"""Routes news of runs, whatever its source: lanes with work, mail, answers and ends. Local runs are
handled here; other processes are notified.
"""

from __future__ import annotations

from collections.abc import Callable

from pgflow._worker.lanes import Lanes
from pgflow._worker.listener import parse_work
from pgflow._worker.notifier import Notifier
from pgflow._worker.runs import Runs


class News:
    """Routes news. It keeps no state.

    Args:
        told: Called with the chains that have ended or answered a request, to wake waiters in this
            process.
    """

    def __init__(
        self,
        runs: Runs,
        lanes: Lanes,
        notifier: Notifier,
        told: Callable[[list[int]], None] | None,
    ) -> None:
        self._runs = runs
        self._lanes = lanes
        self._notifier = notifier
        self._told = told

    def woken(self, lanes: list[int], mail: list[int]) -> None:
        """Handle lanes with ready runs and leased runs with mail: look at this worker's own, and
        notify other workers.
        """
        self._lanes.heard(lanes)
        self._runs.poke(mail)
        self._notifier.tell(
            lanes=lanes, mail=(run_id for run_id in mail if run_id not in self._runs.executions)
        )

    def have_told(self, chains: list[int]) -> None:
        """Wake the waiters for chains that have ended or answered a request, here and in other
        processes.
        """
        if self._told is not None:
            self._told(chains)
        self._notifier.tell(done=chains)

    def emitted(self, chains: list[int]) -> None:
        """Notify readers of values that runs emitted."""
        self._notifier.tell(emitted=chains)

    def heard(self, payload: str) -> None:
        """Handle another process's notification of work."""
        lanes, mail = parse_work(payload)
        self._lanes.heard(lanes)
        self._runs.poke(mail)
