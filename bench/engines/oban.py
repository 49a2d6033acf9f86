"""Oban for Python, by its public surface and its defaults, with ten jobs at a time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from oban import Oban, worker
from oban.schema import install as install_schema
from psycopg_pool import AsyncConnectionPool

from bench.engines import jobs, kit, rules

CONCURRENCY = 10
NAME = "bench"


@worker(queue="default", oban=NAME)
class Job:
    """The only kind of job."""

    async def process(self, job: Any) -> None:
        jobs.body(job.args)


@worker(queue="ruled", oban=NAME)
class Ruled:
    """Job of the queue with a limit."""

    async def process(self, job: Any) -> None:
        await rules.async_body(job.args)


class Queue:
    """See :class:`bench.engines.jobs.Jobs`."""

    done = "select count(*) from oban_jobs where state = 'completed'"
    table = "oban_jobs"

    async def open(self, bench: kit.Bench, queues: dict[str, int] | None = None) -> None:
        self.pool = AsyncConnectionPool(bench.dsn, open=False, min_size=2, max_size=10)
        await self.pool.open()
        self.oban = Oban(pool=self.pool, queues=queues or {}, name=NAME)

    async def close(self) -> None:
        await self.pool.close()

    async def put(self, payload: dict[str, Any], delay_seconds: float = 0) -> None:
        await self.oban.enqueue(
            Job.new(payload, schedule_in=delay_seconds) if delay_seconds else Job.new(payload)
        )

    async def put_many(self, payloads: list[dict[str, Any]]) -> None:
        await self.oban.enqueue_many([Job.new(payload) for payload in payloads])


class LimitedQueue(Queue):
    """See :class:`bench.engines.rules.RuledJobs`: limits are those of one process, and each gets
    its share.
    """

    async def rule(self, bench: kit.Bench, rules: dict[str, Any]) -> None:
        """Says nothing to the database."""

    async def put_many(self, payloads: list[dict[str, Any]]) -> None:
        await self.oban.enqueue_many([Ruled.new(payload) for payload in payloads])


def install(bench: kit.Bench) -> None:
    """Tables."""

    async def main() -> None:
        queue = Queue()
        await queue.open(bench)
        await install_schema(queue.pool)
        await queue.close()

    asyncio.run(main())


def work(bench: kit.Bench) -> None:
    """A worker process."""

    async def main() -> None:
        queue = Queue()
        limit = bench.sizes.get("rules", {}).get("limit")
        await queue.open(
            bench, {"ruled": limit // rules.PROCESSES} if limit else {"default": CONCURRENCY}
        )
        if bench.sizes.get("wait"):
            kit.ready(wait=True)
        async with queue.oban:
            if not bench.sizes.get("wait"):
                kit.ready()
            await asyncio.Event().wait()

    asyncio.run(main())


drain = partial(jobs.drain, jobs=Queue())
enqueue = partial(jobs.enqueue, jobs=Queue())
latency = partial(jobs.start_latency, jobs=Queue())
timers = partial(jobs.timers, jobs=Queue())
accounts = partial(jobs.accounts, jobs=Queue())
limited = partial(rules.limited, jobs=LimitedQueue())


if __name__ == "__main__":
    kit.main(globals())
