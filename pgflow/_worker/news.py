"""News of runs: of lanes with work, of mail, of answers and of ends, from wherever this process
hears of them. Ours are seen to, others told.
"""

from __future__ import annotations

from collections.abc import Callable

from pgflow._worker.lanes import Lanes
from pgflow._worker.listener import parse_work
from pgflow._worker.notifier import Notifier
from pgflow._worker.runs import Runs


class News:
    """See the module. It keeps nothing.

    Args:
        told: Called with the chains that have ended or answered somebody,
            for those who wait in this process.
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
        """Lanes with ready runs, and leased runs with mail: ours are looked at, others told."""
        self._lanes.heard(lanes)
        self._runs.poke(mail)
        self._notifier.tell(
            lanes=lanes, mail=(run_id for run_id in mail if run_id not in self._runs.executions)
        )

    def have_told(self, chains: list[int]) -> None:
        """These chains have ended, or have answered somebody: those who wait are told, here and
        elsewhere.
        """
        if self._told is not None:
            self._told(chains)
        self._notifier.tell(done=chains)

    def emitted(self, chains: list[int]) -> None:
        """Tells those who read along what runs emit."""
        self._notifier.tell(emitted=chains)

    def heard(self, payload: str) -> None:
        """Another process has notified of work."""
        lanes, mail = parse_work(payload)
        self._lanes.heard(lanes)
        self._runs.poke(mail)
