# Made by tools/colours.py from pgflow/_client/_async/rewind.py; edit that one.
"""Doing a part of a run again: retry, rewind, restart, fork.

A client is one of these; what it can do with a query is the client's own.
"""

from __future__ import annotations

from typing import Any, TypeVar, Unpack

from pgflow._client.starts import fork_query
from pgflow._client.values import UNCHANGED, stored_edit, stored_new_input
from pgflow._db.calls import fork, mail, start
from pgflow._db.calls.fork import DroppedEffects, ForkOptions, PlaceOptions
from pgflow._db.query import Query
from pgflow._model.envelopes import Envelopes

T = TypeVar("T")


class Rewinds:
    """The part of a client that does runs again."""

    _envelopes: Envelopes | None

    def _ask(self, query: Query[T], *, wakes: bool = False, once: bool = False) -> T:
        """Runs a query; if the connection is lost meanwhile, again, but not one that wakes, or that
        must not happen twice (``once``).
        """
        raise NotImplementedError

    def _started(self, started: start.Started) -> None:
        """A run was started: whoever could work on it should hear of it once it is committed."""
        raise NotImplementedError

    def retry(
        self,
        key: str,
        *,
        why: str = "retried",
        from_step: str | None = None,
        attempts: int | None = None,
        effects: DroppedEffects | None = None,
        by: str | None = None,
    ) -> None:
        """Lets a stuck run go on with a fresh budget,
        or does a failed one again from the step that failed. Of a run of a workflow file, all that
        failed is done again, also in the runs that it has called.

        Args:
            key: The run.
            why: The reason, kept in the history.
            from_step: Goes back to just before this step's last call, of a run that does not run
                now; its key stays the same.
            attempts: Most tries of each step from there on, whatever it declares.
            effects: Treatment of the work of later steps; see :meth:`rewind`.
            by: Name of whoever says so.

        Raises:
            WrongState: There is nothing to retry, or a worker holds the run.
            HasActed: Later steps have completed, and ``effects`` is not given.
        """
        self._ask(
            mail.retry_run(
                key, why, sent_by=by, from_step=from_step, attempts=attempts, effects=effects
            ),
            wakes=True,
        )

    def rewind(
        self,
        key: str,
        to: int | None = None,
        *,
        from_step: str | None = None,
        edit: Any = UNCHANGED,
        **options: Unpack[PlaceOptions],
    ) -> None:
        """Takes a run back to a unit of its journal; it goes on from there as the next generation
        of the same key.

        Args:
            key: The run: it has ended, waits, is queued, paused or stuck.
            to: The last unit to keep, as ``pgflow timeline`` numbers them.
            from_step: In place of it: to just before this step's last call.
            edit: Another result for that last unit, which must be that of a step or a decision.
            **options: ``effects``, ``children``, ``attempts``, ``timeout``, ``why``, ``by``; see
                :class:`pgflow._db.calls.fork.PlaceOptions`.

        Raises:
            RunNotFound: No run has the key.
            WrongState: A worker holds the run: pause it first. Or a child is open, the parent has
                the result, an effect that should be reused is not closed, or the run is still
                taking back what was dropped before.
            HasActed: The dropped part has acted, and ``effects`` is not given.
            InvalidArgument: There is no such unit or step.
            psycopg.Error: The connection was lost. It may have happened, and is not asked for
                again: see the run's generation.
        """
        self._started(
            self._ask(
                fork.rewind_run(key, to, from_step, stored_edit(self._envelopes, edit), options),
                once=True,
            )
        )

    def restart(
        self,
        key: str,
        *,
        input: dict[str, Any] | None = None,  # noqa: A002
        **options: Unpack[PlaceOptions],
    ) -> None:
        """Begins a run anew, as the next generation of the same key.

        Args:
            key: The run; as in :meth:`rewind`.
            input: Another input, an object of parameter names; the same if not given.
            **options: As in :meth:`rewind`.
        """
        self._started(
            self._ask(
                fork.restart_run(key, stored_new_input(self._envelopes, input), options), once=True
            )
        )

    def fork(self, key: str, new_key: str | None = None, **options: Unpack[ForkOptions]) -> str:
        """Starts a run that begins with the journal of another and goes on by itself;
        the other is not touched.

        Args:
            key: The other run, whatever it is doing.
            new_key: Key of the fork; one is made up if not given. The same key with the same
                arguments is the same fork.
            **options: ``at`` or ``from_step``, ``edit``, ``input``, ``effects``, ``with_mail``,
                ``generation``, ``labels``, ``attempts``, ``timeout``, ``why``, ``by``; see
                :class:`pgflow._db.calls.fork.ForkOptions`.

        Returns:
            The key of the fork: ``app.get(key, workflow)`` is its handle.

        Raises:
            RunNotFound: No run has the key.
            KeyConflict: The new key names another run.
            HasActed: The part left out has acted, and ``effects`` is not given.
            InvalidArgument: There is no such unit, step or generation; or ``effects="compensate"``
                is asked for: what the other run has done is its own to take back.
        """
        started = self._ask(fork_query(self._envelopes, key, new_key, options))
        if started.is_new:
            self._started(started)
        return started.key
