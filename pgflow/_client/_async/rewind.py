"""Doing a part of a run again: retry, rewind, restart, fork.

A client is one of these; what it can do with a query is the client's own.
"""

from __future__ import annotations

from typing import Any, TypeVar, Unpack

from pgflow._client.starts import fork_query
from pgflow._client.values import UNCHANGED, stored_edit, stored_new_input
from pgflow._db.calls import cluster, fork, mail, start
from pgflow._db.calls.fork import DroppedEffects, ForkOptions, PlaceOptions
from pgflow._db.query import Query
from pgflow._model.envelopes import Envelopes

T = TypeVar("T")


class AsyncRewinds:
    """Rewind methods of a client."""

    _envelopes: Envelopes | None
    _claims_keys: bool = False
    """True if keys are unique over the nodes of a cluster."""

    async def _ask(self, query: Query[T], *, wakes: bool = False, once: bool = False) -> T:
        """Run a query. Repeat it after a lost connection, unless it wakes or must not happen twice
        (``once``).
        """
        raise NotImplementedError

    async def _find(self, query: Query[T | None]) -> T | None:
        """Return what a query finds, in a cluster on any node."""
        return await self._ask(query)

    def _started(self, started: start.Started) -> None:
        """Note the start of a run, to notify its workers after the commit."""
        raise NotImplementedError

    async def retry(
        self,
        key: str,
        *,
        why: str = "retried",
        from_step: str | None = None,
        attempts: int | None = None,
        effects: DroppedEffects | None = None,
        by: str | None = None,
    ) -> None:
        """Retry a run: a stuck run continues with a fresh attempt budget, and a failed run repeats
        the step that failed. In a run of a workflow file, every failed step is repeated, including
        those of the runs that it called.

        Args:
            key: The run.
            why: The reason, kept in the history.
            from_step: Step to go back to, just before its last call. The run must not be running;
                its key stays the same.
            attempts: Maximum attempts of each step from there on, in place of the declared one.
            effects: Treatment of the effects of later steps; see :meth:`rewind`.
            by: Name of the person or service that asks.

        Raises:
            WrongState: There is nothing to retry, or a worker holds the run.
            HasActed: Later steps have completed, and ``effects`` is not given.
        """
        await self._ask(
            mail.retry_run(
                key, why, sent_by=by, from_step=from_step, attempts=attempts, effects=effects
            ),
            wakes=True,
        )

    async def rewind(
        self,
        key: str,
        to: int | None = None,
        *,
        from_step: str | None = None,
        edit: Any = UNCHANGED,
        **options: Unpack[PlaceOptions],
    ) -> None:
        """Take a run back to a unit of its journal. The run continues from there as the next
        generation of the same key.

        Args:
            key: The run, which may have ended, or be waiting, queued, paused or stuck.
            to: The last unit to keep, as ``pgflow timeline`` numbers them.
            from_step: Step to go back to, just before its last call, in place of ``to``.
            edit: New result for the last unit, which must be one of a step or a decision.
            **options: ``effects``, ``children``, ``attempts``, ``timeout``, ``why``, ``by``; see
                :class:`pgflow._db.calls.fork.PlaceOptions`.

        Raises:
            RunNotFound: No run has the key.
            WrongState: A worker holds the run (pause it first), a child is open, the parent already
                has the result, an effect to reuse is not closed, or the run is still compensating
                an earlier rewind.
            HasActed: The dropped part has effects, and ``effects`` is not given.
            InvalidArgument: The unit or step does not exist.
            psycopg.Error: The connection was lost. The rewind may have happened and is not
                repeated: check the run's generation.
        """
        self._started(
            await self._ask(
                fork.rewind_run(key, to, from_step, stored_edit(self._envelopes, edit), options),
                once=True,
            )
        )

    async def restart(
        self,
        key: str,
        *,
        input: dict[str, Any] | None = None,  # noqa: A002
        **options: Unpack[PlaceOptions],
    ) -> None:
        """Restart a run from the beginning, as the next generation of the same key.

        Args:
            key: The run; as in :meth:`rewind`.
            input: Another input, an object of parameter names; the same if not given.
            **options: As in :meth:`rewind`.
        """
        self._started(
            await self._ask(
                fork.restart_run(key, stored_new_input(self._envelopes, input), options), once=True
            )
        )

    async def fork(
        self, key: str, new_key: str | None = None, **options: Unpack[ForkOptions]
    ) -> str:
        """Start a run that begins with the journal of another run and continues on its own. The
        other run is unchanged.

        Args:
            key: The other run, in any state.
            new_key: Key of the fork; pgflow makes one by default. The same key with the same
                arguments returns the same fork.
            **options: ``at`` or ``from_step``, ``edit``, ``input``, ``effects``, ``with_mail``,
                ``generation``, ``labels``, ``attempts``, ``timeout``, ``why``, ``by``; see
                :class:`pgflow._db.calls.fork.ForkOptions`.

        Returns:
            The key of the fork: ``app.get(key, workflow)`` is its handle.

        Raises:
            RunNotFound: No run has the key.
            KeyConflict: The new key names another run, or, in a cluster, it was given to another
                node than that of the run.
            HasActed: The part left out has effects, and ``effects`` is not given.
            InvalidArgument: The unit, step or generation does not exist; or
                ``effects="compensate"`` is given, which only the other run itself may do.
        """
        if new_key is not None and self._claims_keys:
            await self._ask(cluster.claim_beside(key, new_key))
        started = await self._ask(fork_query(self._envelopes, key, new_key, options))
        if started.is_new:
            self._started(started)
        return started.key
