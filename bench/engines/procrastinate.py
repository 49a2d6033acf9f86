"""procrastinate over psycopg, by its public surface and its defaults, but for ten jobs at a time
instead of one.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import procrastinate

from bench.engines import jobs, kit, rules

CONCURRENCY = 10


class Queue:
    """See :class:`bench.engines.jobs.Jobs`."""

    done = "select count(*) from procrastinate_jobs where status = 'succeeded'"
    table = "procrastinate_jobs"

    async def open(self, bench: kit.Bench) -> None:
        self.app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=bench.dsn))

        @self.app.task(name="job")
        async def job(payload: dict[str, Any]) -> None:
            jobs.body(payload)

        @self.app.task(name="ruled")
        async def ruled(payload: dict[str, Any]) -> None:
            await rules.async_body(payload)

        self._job, self._ruled = job, ruled
        await self.app.open_async()

    async def close(self) -> None:
        await self.app.close_async()

    async def put(self, payload: dict[str, Any], delay_seconds: float = 0) -> None:
        if delay_seconds:
            await self._job.configure(schedule_in={"seconds": delay_seconds}).defer_async(
                payload=payload
            )
        else:
            await self._job.defer_async(payload=payload)

    async def put_many(self, payloads: list[dict[str, Any]]) -> None:
        await self._job.batch_defer_async(*[{"payload": payload} for payload in payloads])


class LockedQueue(Queue):
    """See :class:`bench.engines.rules.RuledJobs`: a lock has one job at a time, by its name."""

    async def rule(self, bench: kit.Bench, rules: dict[str, Any]) -> None:
        """Says nothing to the database: each job names its lock."""

    async def put_many(self, payloads: list[dict[str, Any]]) -> None:
        for payload in payloads:
            await self._ruled.configure(lock=payload["key"]).defer_async(payload=payload)


def install(bench: kit.Bench) -> None:
    """Tables and functions."""

    async def main() -> None:
        queue = Queue()
        await queue.open(bench)
        await queue.app.schema_manager.apply_schema_async()
        await queue.close()

    asyncio.run(main())


def work(bench: kit.Bench) -> None:
    """A worker process."""

    async def main() -> None:
        queue = Queue()
        await queue.open(bench)
        kit.ready(wait=bench.sizes.get("wait", False))
        await queue.app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)

    asyncio.run(main())


drain = partial(jobs.drain, jobs=Queue())
enqueue = partial(jobs.enqueue, jobs=Queue())
latency = partial(jobs.start_latency, jobs=Queue())
timers = partial(jobs.timers, jobs=Queue())
accounts = partial(jobs.accounts, jobs=Queue())
keyed = partial(rules.keyed, jobs=LockedQueue())


if __name__ == "__main__":
    kit.main(globals())
