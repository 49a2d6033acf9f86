"""Claiming of a worker's runs: as many as it has room for, alone or together with a commit that ends some."""

from __future__ import annotations

import asyncio
import logging
import time

import psycopg

from pgflow._db.calls import claim as claim_calls
from pgflow._db.calls.claim import ClaimRequest
from pgflow._engine.execution import Execution
from pgflow._flow.scope import log_fields
from pgflow._model.claims import Claim
from pgflow._worker.claim_cursor import ClaimCursor
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.options import Definitions, WorkerOptions
from pgflow._worker.runs import Executions
from pgflow.errors import LeaseLost, PgflowError
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

MAX_CLAIM = 128


class Claiming(Executions):
    """Claims runs, and begins them."""

    failed: asyncio.Event

    def __init__(self, definitions: Definitions, options: WorkerOptions, control: WorkerConnection) -> None:
        super().__init__(definitions, options, control)
        self.worker_id = 0
        self._lanes: dict[int, claim_calls.Lane] = {}
        self._front = ClaimCursor()
        self._claiming = 0  # asked for
        self._replaced = 0  # runs whose end is on its way, together with claims for their places
        self._backlog = False
        self._running_suspect: int | None = None
        self._claim_wanted = asyncio.Event()
        self._stopping = False
        self.is_outgrown = False
        """True once the schema has been upgraded to one that this code cannot work with."""

    async def _claim_loop(self) -> None:
        while True:
            await self._claim_wanted.wait()
            self._claim_wanted.clear()
            while not self._stopping and (count := self._free()) > 0:
                try:
                    if await self._claim(count) < count:
                        break
                except LeaseLost:
                    break
                except (psycopg.Error, OSError, TimeoutError) as error:
                    log.warning("cannot claim: %s", redacted(error))
                    break

    def _free(self) -> int:
        if self.is_outgrown:
            return 0
        if self.failed.is_set():
            return 0
        free = min(MAX_CLAIM, self.options.concurrency - len(self.executions) + self._replaced - self._claiming)
        tally = self.options.tally
        return free if tally is None or tally.most is None else min(free, tally.most - len(tally.chains) - self._claiming)

    async def _claim(self, count: int) -> int:
        """Claims so many runs; finds fewer only if there are no more."""
        found, is_from_head = await self._claim_once(count)
        if found < count and not is_from_head:
            found += (await self._claim_once(count - found))[0]
        return found

    async def _claim_once(self, count: int) -> tuple[int, bool]:
        request = self._request(count)
        self._claiming += count
        claims: list[Claim] = []
        began = time.perf_counter()
        try:
            claims = await self._control.ask(claim_calls.claim_runs(request))
            if self.meter is not None:
                self.meter.claim_seconds.observe(time.perf_counter() - began)
        finally:
            self.claims_arrived(request, claims)
        return len(claims), request.after is None

    def _request(self, count: int) -> ClaimRequest:
        return ClaimRequest(self.worker_id, list(self._lanes), count, self._running_suspect is None, self._front.position())

    def claim_request(self, ending: int) -> ClaimRequest | None:
        """A claim to ride with a commit, where there is a backlog to drain; it may ask for more than is left of a tally."""
        count = min(MAX_CLAIM, self._free() + ending)
        is_limited = self.options.tally is not None and self.options.tally.most is not None
        if self._stopping or self.is_outgrown or self.failed.is_set() or not self._backlog or is_limited or count <= 0:
            return None
        self._claiming += count
        self._replaced += ending
        return self._request(count)._replace(replaces=ending)

    def claims_arrived(self, request: ClaimRequest, claims: list[Claim]) -> None:
        """The answer to a claim, however it was asked for."""
        self._claiming -= request.max_runs
        self._replaced -= request.replaces
        self._front.answered(request, claims)
        is_short = len(claims) < request.max_runs
        self._backlog = not is_short
        if is_short and request.after is not None:
            self._claim_wanted.set()
        if self.options.tally is not None:
            self.options.tally.chains.update(claim.chain_id for claim in claims)
        for claim in claims:
            claim.workflow = self._lanes[claim.lane_id].workflow
            if self.meter is not None:
                self.meter.claimed[claim.workflow] += 1
            if claim.suspect:
                self._running_suspect = claim.run_id
            if self._stopping:
                self._release_soon(claim)
            elif len(claim.units) < claim.last_seq:
                self._claiming += 1
                self.spawn(self._load_and_begin(claim))
            else:
                self._begin(claim)

    def got_on(self, execution: Execution) -> None:
        """A suspect that has got on makes room for the next. A licence is not enough: its body may be what kills."""
        if self._running_suspect == execution.run_id:
            self._running_suspect = None
            self._claim_wanted.set()

    def _left(self, execution: Execution) -> None:
        self.got_on(execution)  # a suspect makes room by leaving, too
        if self._backlog:
            self._claim_wanted.set()

    async def _load_and_begin(self, claim: Claim) -> None:
        """A journal too long for the answer of the claim comes in pages."""
        try:
            while len(claim.units) < claim.last_seq:
                page = await self._control.insist(claim_calls.load_units(claim.run_id, len(claim.units)))
                if not page:
                    break
                claim.units.extend(page)
        except PgflowError:
            raise  # the worker ends
        except Exception as error:
            log.exception("run %s: its journal cannot be read; the run is handed back", claim.key, extra=log_fields(claim))
            self._engine_failed(claim, error)
            self._release_soon(claim)
            return
        finally:
            self._claiming -= 1
        if self._stopping:
            self._release_soon(claim)
        else:
            self._begin(claim)
