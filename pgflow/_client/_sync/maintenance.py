# Made by tools/colours.py from pgflow/_client/_async/maintenance.py; edit that one.
"""Client methods of operators: locks that are taken away, and history that is removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pgflow._client._sync.rewind import Rewinds
from pgflow._db.calls import locks, outbox, retention, rewrap, sparse, worker
from pgflow._db.calls.outbox import DroppedEvents
from pgflow._db.calls.retention import DroppedHistory, Forgotten
from pgflow._db.calls.rewrap import Rotated
from pgflow._db.query import Query
from pgflow._model.durations import Duration, seconds
from pgflow._model.envelopes import Envelopes
from pgflow.errors import DefinitionError

_PASSES = 20
"""Passes over all tables, of which the last finds none. Rows that others have locked are left to
the next one."""

EVENTS_AT_ONCE = 10_000
"""Events that one transaction removes: few enough for its locks to be short."""


def _find_wraps(
    envelopes: Envelopes, after: dict[str, Any] | None, pages: int
) -> Query[rewrap.Wraps | None]:
    return rewrap.find_wraps(envelopes.key_id or "", after, pages)


class Maintenance(Rewinds):
    """Maintenance methods of a client."""

    def break_lock(self, key: str, *, why: str, by: str | None = None) -> int:
        """Take a lock away from its holders, and let the next ones in.

        Args:
            key: Name of the lock.
            why: The reason, kept in ``pgflow.broken_locks``.
            by: Name of the person or service that asks.

        Returns:
            Number of holders that it was taken from; 0 if it was not held.
        """
        holders = self._ask(locks.break_lock(key, why, by))
        self._ask(locks.sweep_locks())
        return holders

    def drop_history(
        self,
        ended_before: datetime,
        *,
        batch: int = 1000,
        progress: Callable[[int], object] | None = None,
    ) -> DroppedHistory:
        """Remove runs that ended before a time, with all their data, in batches. A run goes
        together with the runs that it started and continued as, once all of these have ended.

        Args:
            ended_before: The time.
            batch: Runs that one transaction removes.
            progress: Called between batches with the number of runs removed so far.

        Returns:
            Numbers of the ``runs`` and of the ``partitions`` of the journal that were removed.
        """
        runs = partitions = 0
        last_root: int | None = 0
        while last_root is not None:
            dropped = self._ask(retention.drop_history(ended_before, batch, last_root))
            runs, partitions = runs + dropped.runs, partitions + dropped.partitions
            last_root = dropped.last_root
            if last_root is not None and progress is not None:
                progress(runs)
        return DroppedHistory(runs, partitions, None)

    def rotate_keys(
        self,
        envelopes: Envelopes | None = None,
        *,
        pages: int = 128,
        progress: Callable[[int], object] | None = None,
    ) -> Rotated:
        """Wrap the data keys of all stored values with the present key of the app's codec, in
        batches, while workers go on. Values, seals and replays stay as they are.

        Give every process the new key before, and make it the present one everywhere: a process
        that still writes with an earlier key makes new values that need it.

        Args:
            envelopes: Envelopes of another app; those of this one by default.
            pages: Pages of a table that one transaction reads and changes.
            progress: Called between batches with the number of rows changed so far.

        Returns:
            Number of the ``rows`` that were changed, and what still needs earlier keys.

        Raises:
            DefinitionError: The app's codec wraps no keys.
        """
        own = envelopes or self._envelopes
        if own is None:
            raise DefinitionError("this app has no codec whose keys could be rotated")
        own.rewrap("")
        rows, is_busy = 0, True
        unknown: set[str] = set()
        for _ in range(_PASSES):
            if not is_busy:
                break
            is_busy, after = False, None
            while (found := self._ask(_find_wraps(own, after, pages))) is not None:
                new = {wrap: own.rewrap(wrap) for wrap in found.wraps}
                changes = {wrap: again for wrap, again in new.items() if again is not None}
                unknown |= {wrap.partition(":")[0] for wrap in new.keys() - changes.keys()}
                if changes:
                    is_busy = True
                    rows += self._ask(rewrap.replace_wraps(found, changes, pages))
                after = found.next
                if progress is not None:
                    progress(rows)
        return Rotated(rows, tuple(sorted(unknown)), is_busy)

    def set_retention(
        self,
        rule: str,
        keep: Duration,
        *,
        workflow: str | None = None,
        status: Literal["completed", "failed", "cancelled"] | None = None,
        labels: Mapping[str, str] | None = None,
        tenant: str | None = None,
        by: str | None = None,
    ) -> None:
        """Set a rule of retention: workers remove runs that match all of its conditions, this long
        after they have ended. The rule with the most conditions decides, and of several such the
        one that keeps longer. Runs that no rule matches stay.

        Args:
            rule: Name of the rule; one that exists is replaced.
            keep: Time from the end of a run, and of all that it started, for which it is kept.
            workflow: Only runs of this workflow.
            status: Only runs that ended like this.
            labels: Only runs with these labels.
            tenant: Only runs of this tenant.
            by: Name of the person or service that asks.

        Raises:
            InvalidArgument: The rule has no name, or keeps for less than no time.
        """
        kept = seconds(keep, "keep of a rule of retention")
        self._ask(retention.set_retention(rule, kept, workflow, status, labels, tenant, by))

    def drop_retention(self, rule: str) -> bool:
        """Remove a rule of retention.

        Args:
            rule: Name of the rule.

        Returns:
            False if there was none.
        """
        return self._ask(retention.drop_retention(rule))

    def hold_history(self, key: str, *, why: str, by: str | None = None) -> None:
        """Put a legal hold on a run: nothing removes it or its family, or redacts its values, until
        :meth:`release_history`.

        Args:
            key: Key of the run.
            why: The reason, kept in ``pgflow.legal_holds``.
            by: Name of the person or service that asks.

        Raises:
            RunNotFound: No run has the key.
        """
        self._ask(retention.hold_history(key, why, by))

    def release_history(self, key: str) -> bool:
        """Release the legal hold of a run.

        Args:
            key: Key of the run.

        Returns:
            False if there was none.

        Raises:
            RunNotFound: No run has the key.
        """
        return self._ask(retention.release_history(key))

    def forget_subject(
        self,
        subject: str,
        *,
        why: str,
        label: str = "subject",
        tenant: str | None = None,
        dry_run: bool = False,
    ) -> Forgotten:
        """Remove all runs that have a label with the name of a subject, with their families, keys
        and labels. Runs that are open, under a legal hold or owe something stay, and are counted.

        Args:
            subject: Value of the label.
            why: The reason. It is kept, so leave out names.
            label: The label by which your runs name their subject.
            tenant: Only runs of this tenant.
            dry_run: True to count only.

        Returns:
            Counts of what was removed, and of what was left.

        Raises:
            InvalidArgument: The subject, the label or the reason is empty.
        """
        removed = 0
        while True:
            told = self._ask(retention.forget_subject(subject, why, label, tenant, is_dry=dry_run))
            removed += told.removed
            if dry_run or told.removed == 0:
                return told._replace(removed=removed)

    def shrink_journal(self, max_units: int = 10_000) -> list[str]:
        """Shrink partitions of the journal to the rows that are left in them, once a vacuum has
        removed the others.

        Args:
            max_units: Partitions with more rows are left alone, as all work waits meanwhile.

        Returns:
            Names of the partitions that were shrunk.
        """
        return self._ask(sparse.shrink_journal(max_units))

    def drop_events(self, older_than: Duration, *, at_most: int | None = None) -> DroppedEvents:
        """Remove events of the outbox that are older and that every relay has taken, in batches.

        Args:
            older_than: Their least age.
            at_most: Most events to remove beside whole partitions; None for all.

        Returns:
            Numbers of the ``events`` and of the whole ``partitions`` that were removed.
        """
        age = seconds(older_than, "older_than of drop_events()")
        events = partitions = 0
        while at_most is None or events < at_most:
            most = EVENTS_AT_ONCE if at_most is None else min(EVENTS_AT_ONCE, at_most - events)
            dropped = self._ask(outbox.drop_events(age, most))
            events, partitions = events + dropped.events, partitions + dropped.partitions
            if dropped.events < most:
                break
        return DroppedEvents(events, partitions)

    def begin_tick(self, queues: Sequence[str]) -> bool:
        """Take the lock of exclusive ticks of these queues, until the transaction ends: call it
        through :meth:`App.using`.

        Args:
            queues: Names of the queues.

        Returns:
            False if another tick has it.
        """
        return self._ask(worker.begin_tick(" ".join(queues)))
