"""Upkeep: releases leases that the worker does not know of, makes room for future runs, and notices
a changed schema.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from datetime import datetime

from pgflow._db.calls import claim as claim_calls
from pgflow._db.calls import outbox as outbox_calls
from pgflow._db.calls import retention as retention_calls
from pgflow._db.calls import seals as seal_calls
from pgflow._db.calls import worker as worker_calls
from pgflow._db.failures import DATABASE_ERRORS
from pgflow._worker.claims import Claims
from pgflow._worker.committer import Committer
from pgflow._worker.context import WorkerContext
from pgflow._worker.heartbeat import Heartbeat
from pgflow._worker.parts import Loop
from pgflow._worker.rounds import Rounds
from pgflow.errors import WorkerFailed
from pgflow.logs import redacted
from pgflow.schema import Standing, compare_stamp, own_assets

log = logging.getLogger("pgflow")

# Bounds one transaction, and so the time that claims wait for the shared connection.
RUNS_A_SEAL = 100
SEAL_REST = 4.0
FIRST_SEAL_SECONDS = 1.0
"""Delay of the first round of a worker, whose start has more urgent work."""
SEALING_OFF_SECONDS = 60.0
"""Interval between checks whether sealing was turned on."""


class Sealer(Rounds):
    """Seals round after round."""

    name = "the loop of seals"
    work = "seal the journal"

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(
            context, first_seconds=FIRST_SEAL_SECONDS, retry_seconds=SEALING_OFF_SECONDS
        )

    async def round(self) -> float:
        """Seal one round, and return the seconds until the next."""
        began = time.monotonic()
        sealed = await self._control.ask(seal_calls.seal_units(RUNS_A_SEAL))
        if sealed.has_more:
            return SEAL_REST * (time.monotonic() - began)
        return (
            SEALING_OFF_SECONDS if sealed.wait_seconds is None else max(sealed.wait_seconds, 0.05)
        )


FAMILIES_A_BATCH = 500  # a batch costs as much as 50 of them, however few it has
RETIRE_REST = 4.0
LOOK_REST = 20.0
"""The same after a batch in which all runs had to stay."""
RETIRE_EVERY_SECONDS = 300.0
STRAYS_EVERY_SECONDS = 5.0


class Retirer(Rounds):
    """Removes runs whose time is over by the rules of retention, a batch at a time. It rests after
    each some times as long as that took, and some minutes after the last.
    """

    name = "the loop of retention"
    work = "remove old runs"

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(
            context, first_seconds=STRAYS_EVERY_SECONDS, retry_seconds=RETIRE_EVERY_SECONDS
        )
        self._after = 0

    async def round(self) -> float:
        """Remove one batch, and return the seconds until the next."""
        began = time.monotonic()
        retired = await self._control.ask(
            retention_calls.retire_runs(FAMILIES_A_BATCH, self._after)
        )
        if retired.runs:
            log.info("%d runs removed by the rules of retention", retired.runs)
        self._after = retired.last_root or 0
        if self._after:
            rest = RETIRE_REST if retired.runs else LOOK_REST
            return rest * (time.monotonic() - began)
        return RETIRE_EVERY_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - spreads the load


# Three partitions are ahead of the newest run, so a minute is soon enough.
PARTITIONS_EVERY_SECONDS = 60.0


class Upkeep(Loop):
    """Does periodic maintenance. It keeps the stamp of the schema that it has seen last, and when
    it has last looked for strays.

    Args:
        heartbeat: Checked, because others would take the worker for dead without it.
        committer: Closes idle connections.
        claims: Stops claiming if the schema has outgrown this code.
    """

    name = "the loop of upkeep"

    def __init__(
        self,
        context: WorkerContext,
        heartbeat: Heartbeat,
        committer: Committer,
        claims: Claims,
    ) -> None:
        super().__init__(context.tasks)
        self._control = context.control
        self._life = context.life
        self._want_claims = context.wanted.claims.set
        self._heartbeat = heartbeat
        self._committer = committer
        self._claims = claims
        self._seen_stamp: str | None = str(own_assets().stamp)
        self._looked_at: datetime | None = None  # for strays, by the database's clock
        self._looked = math.inf  # when the answer was here, by that of this process

    async def loop(self) -> None:
        """Run all checks every few seconds, and the expensive ones every minute."""
        partitioned = 0.0
        while True:
            try:
                if not self._heartbeat.is_beating:
                    self._life.fail("its heartbeat has stopped")
                await self._committer.close_idle()
                self._compare_schema(await self._control.ask(worker_calls.read_stamp()))
                if time.monotonic() - partitioned > PARTITIONS_EVERY_SECONDS:
                    await self._control.ask(worker_calls.add_unit_partitions())
                    await self._control.ask(outbox_calls.add_event_partitions())
                    await self._control.ask(worker_calls.sweep_keys())
                    for shrunk in await self._control.ask(worker_calls.shrink_journal()):
                        log.info(
                            "partition %s of the journal shrunk from %d to %d bytes: %d units are "
                            "left in it",
                            *shrunk,
                        )
                    partitioned = time.monotonic()
                if await self._control.ask(worker_calls.release_outdated(self._life.worker_id)):
                    self._want_claims()
                await self._release_strays()
            except DATABASE_ERRORS as error:
                log.debug("upkeep: %s", redacted(error))
            await asyncio.sleep(STRAYS_EVERY_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311 - spreads the load

    async def _release_strays(self) -> None:
        """Hand back runs that were claimed before the last look, if each claim that was sent before
        its answer has been answered since: the answer to their claim was lost.
        """
        before = self._looked_at if self._claims.sent_since > self._looked else None
        strays, seen_at = await self._control.ask(
            claim_calls.release_strays(self._life.worker_id, self._claims.run_ids(), before)
        )
        self._looked_at, self._looked = seen_at, time.monotonic()
        if strays:
            log.warning(
                "%d runs were leased to this worker without its knowledge; handed back", strays
            )

    def _compare_schema(self, comment: str | None) -> None:
        """Log a change of the schema once, and fail the worker if this code cannot work with it."""
        if comment == self._seen_stamp:
            return
        self._seen_stamp = comment
        ours, standing = own_assets().stamp, compare_stamp(comment)
        self._claims.outgrown(is_outgrown=standing is Standing.BREAKING)
        if standing is Standing.NEWER:
            log.warning(
                "the schema is of %s; this worker is of %s and continues: start the new version "
                "in its place",
                comment,
                ours,
            )
        elif standing is Standing.BREAKING:
            why = (
                f"the schema is of {comment}, with which {ours} cannot work: "
                "this worker takes no further runs"
            )
            self._life.fail_for(WorkerFailed(why))
        elif standing is Standing.OLDER:
            log.warning(
                "the schema is of %s, older than this worker's %s: run `pgflow migrate`",
                comment or "an unknown version",
                ours,
            )
        else:
            self._want_claims()
