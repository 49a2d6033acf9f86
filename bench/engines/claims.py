"""Claims of ten runs, as a worker makes them, and what stands in the tables around them."""

from __future__ import annotations

from typing import Any

import psycopg

from bench.engines import kit
from pgflow._db.calls import claim as claim_calls
from pgflow._db.calls import worker as worker_calls
from pgflow._db.query import run as ask
from pgflow._model.claims import Claim
from pgflow._worker.claims import ClaimCursor

WARM = 10
"""Claims that pay for plans and caches."""


class Claims:
    """Claims by a worker of its own, from the lanes of one workflow."""

    def __init__(self, conn: psycopg.Connection[Any], workflow: str) -> None:
        self._conn = conn
        self._worker_id = ask(conn, worker_calls.register_worker("bench", 1, ["default"], 100, "0"))
        self._lanes = [
            lane.lane_id for lane in ask(conn, claim_calls.serve_lanes(["default"], [workflow]))
        ]

    def median_ms(self, times: int = 60) -> float:
        """Return the median time of a claim whose runs are handed back."""
        seconds = []
        for _ in range(times):
            claims, span = self._claim(self._request())
            ask(self._conn, claim_calls.release_runs(claims))
            seconds.append(span.seconds)
        return kit.quantile(seconds[WARM:] or seconds, 0.5) * 1000

    def mean_ms(self, times: int, front: ClaimCursor | None = None) -> float:
        """Return the mean time of claims that follow each other: from where a worker would go on,
        or always from the head.
        """
        seconds = 0.0
        for n in range(WARM + times):
            request = self._request(None if front is None else front.position())
            claims, span = self._claim(request)
            if front is not None:
                front.answered(request, claims)
            seconds += span.seconds if n >= WARM else 0
        return seconds / times * 1000

    def _request(self, after: claim_calls.Position | None = None) -> claim_calls.ClaimRequest:
        return claim_calls.ClaimRequest(self._worker_id, self._lanes, 10, after=after)

    def _claim(self, request: claim_calls.ClaimRequest) -> tuple[list[Claim], kit.Span]:
        with kit.Span() as span:
            claims = ask(self._conn, claim_calls.claim_runs(request))
        assert len(claims) == 10, f"{len(claims)} runs claimed of 10"
        return claims, span

    def start(self, workflow: str, count: int, *, parked: bool = False) -> None:
        """Puts so many runs there, ready or waiting for their time."""
        self._conn.execute(
            """select count(pgflow.start_run(%s, '{"payload": {}}', run_at => case when %s then now() + interval '1 day' end))
               from generate_series(1, %s)""",
            (workflow, parked, count),
        )

    def finish(self, workflow: str, count: int) -> None:
        """Puts so many runs there that are over, as retention would find them."""
        self._conn.execute(
            """with made as (
                 insert into pgflow.run (run_id, chain_id, root_run_id, created_at, root, generation, lane_id, priority, tenant, key, input)
                 select i, i, i, now(), gen_random_uuid(), 1, l.lane_id, 0, '', 'finished-' || i, '{"payload": {}}'
                 from (select nextval('pgflow.run_id_seq') as i from generate_series(1, %s)) n, pgflow.lane l where l.workflow = %s
                 returning run_id, root, key
               ), keyed as (
                 insert into pgflow.run_key (chain_id, root, key) select run_id, root, key from made
               )
               insert into pgflow.outcome (run_id, finished_at, status, output) select run_id, now(), 'completed', '1' from made""",
            (count, workflow),
        )
