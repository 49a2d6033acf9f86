# Made by tools/colours.py from pgflow/_client/_async/queues.py; edit that one.
"""Rules of queues, set while they work."""

from __future__ import annotations

from typing import Any, Unpack

from pgflow._client._sync.relays import Relays
from pgflow._db.calls import lane, queues
from pgflow._model.queues import Backlog, QueueRules, rules_json


class Queues(Relays):
    """Queue methods of a client."""

    def set_queue(
        self,
        queue: str,
        *,
        why: str | None = None,
        by: str | None = None,
        **rules: Unpack[QueueRules],
    ) -> dict[str, Any]:
        """Set rules of a queue: limits, rates and order. They apply from the next claim on.

        Rules that you do not name stay unchanged, and None removes a rule. Running work continues.

        Args:
            queue: Name of the queue.
            why: The reason, kept with the change.
            by: Name of the person or service that asks.
            **rules: See :class:`pgflow.queues.QueueRules`.

        Returns:
            All rules of the queue, by name.

        Raises:
            InvalidArgument: A rule is not valid, or the rules contradict each other.
        """
        return self._ask(queues.set_queue(queue, rules_json(rules), why, by))

    def pause_queue(self, queue: str, *, why: str | None = None, by: str | None = None) -> None:
        """Stop claims from a queue. Running work continues.

        Args:
            queue: Name of the queue, which is created if it does not exist.
            why: The reason, kept with the change.
            by: Name of the person or service that asks.

        Raises:
            InvalidArgument: The name is not valid for a queue.
        """
        self._ask(lane.pause_queue(queue, why, by))

    def resume_queue(self, queue: str, *, why: str | None = None, by: str | None = None) -> None:
        """Resume claims from a paused queue. It has no effect on a queue that is not paused.

        Args:
            queue: Name of the queue.
            why: The reason, kept with the change.
            by: Name of the person or service that asks.
        """
        self._ask(lane.resume_queue(queue, why, by))

    def require_known(self, queue: str, *, required: bool = True) -> None:
        """Have a queue refuse starts of workflows that no worker has ever registered.

        Args:
            queue: Name of the queue.
            required: False to accept such starts again.
        """
        self._ask(lane.require_known(queue, required=required))

    def count_backlog(self, queue: str) -> Backlog:
        """Count the runs of a queue that have not begun.

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
        """Cancel the runs of a queue that have not begun, in batches.

        Only runs that ``backlog`` counted are cancelled. Runs that began or were started since then
        continue.

        Args:
            queue: Name of the queue.
            backlog: Answer of :meth:`count_backlog`: the runs to cancel.
            why: The reason, kept with each run and with the queue.
            by: Name of the person or service that asks.

        Returns:
            Number of runs cancelled.
        """
        cancelled = 0
        while backlog.newest is not None:
            query = queues.purge_queue(queue, backlog.newest, why, by)
            purged = self._ask(query, wakes=True)
            cancelled += purged.runs
            if not purged.runs:
                break
        return cancelled
