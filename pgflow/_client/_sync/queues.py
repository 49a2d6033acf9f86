# Made by tools/colours.py from pgflow/_client/_async/queues.py; edit that one.
"""Rules of queues, set while they work."""

from __future__ import annotations

from typing import Any, Unpack

from pgflow._client._sync.relays import Relays
from pgflow._db.calls import lane, queues
from pgflow._model.queues import Backlog, QueueRules, rules_json


class Queues(Relays):
    """The part of a client that looks after queues."""

    def set_queue(
        self,
        queue: str,
        *,
        why: str | None = None,
        by: str | None = None,
        **rules: Unpack[QueueRules],
    ) -> dict[str, Any]:
        """Sets rules of a queue, from the next claim on: limits, rates and order.

        A rule that is not named stays as it is, and None takes it away. What runs goes on.

        Args:
            queue: Name of the queue.
            why: The reason, kept with the change.
            by: Name of whoever says so.
            **rules: See :class:`pgflow.QueueRules`.

        Returns:
            All rules that the queue has now, by name.

        Raises:
            InvalidArgument: No queue can have such a rule, or they do not go together.
        """
        return self._ask(queues.set_queue(queue, rules_json(rules), why, by))

    def pause_queue(self, queue: str, *, why: str | None = None, by: str | None = None) -> None:
        """Stops claims from a queue; what runs goes on. A queue that is paused stays so.

        Args:
            queue: Name of the queue; one that is not there yet is made.
            why: The reason, kept with the change.
            by: Name of whoever says so.

        Raises:
            InvalidArgument: No queue can have this name.
        """
        self._ask(lane.pause_queue(queue, why, by))

    def resume_queue(self, queue: str, *, why: str | None = None, by: str | None = None) -> None:
        """Lets claims from a paused queue go on. It does nothing to one that is not paused.

        Args:
            queue: Name of the queue.
            why: The reason, kept with the change.
            by: Name of whoever says so.
        """
        self._ask(lane.resume_queue(queue, why, by))

    def count_backlog(self, queue: str) -> Backlog:
        """Counts the runs of a queue that have not begun.

        Args:
            queue: Name of the queue.

        Returns:
            What :meth:`purge_queue` would cancel.
        """
        found = self._ask(queues.purge_queue(queue, None, None, None))
        return Backlog(found.runs, found.newest)

    def purge_queue(
        self,
        queue: str,
        backlog: Backlog,
        *,
        why: str | None = None,
        by: str | None = None,
    ) -> int:
        """Cancels the runs of a queue that have not begun, in batches.

        What began since it was counted goes on, and what was started since stays.

        Args:
            queue: Name of the queue.
            backlog: Answer of :meth:`count_backlog`: the runs that are meant.
            why: The reason, kept with each run and with the queue.
            by: Name of whoever says so.

        Returns:
            Number of runs that are cancelled.
        """
        told = 0
        while backlog.newest is not None:
            query = queues.purge_queue(queue, backlog.newest, why, by)
            purged = self._ask(query, wakes=True)
            told += purged.runs
            if not purged.runs:
                break
        return told
