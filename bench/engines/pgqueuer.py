"""PgQueuer over asyncpg, by its public surface and its defaults."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from functools import partial
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from bench.engines import jobs, kit, rules


class Queue:
    """See :class:`bench.engines.jobs.Jobs`."""

    done = "select count(*) from pgqueuer_log where status = 'successful'"
    table = "pgqueuer"

    async def open(self, bench: kit.Bench) -> None:
        self.connection = await asyncpg.connect(bench.dsn)
        self.driver = AsyncpgDriver(self.connection)
        self.queries = Queries(self.driver)

    async def close(self) -> None:
        await self.connection.close()

    async def put(self, payload: dict[str, Any], delay_seconds: float = 0) -> None:
        delay = timedelta(seconds=delay_seconds) if delay_seconds else None
        await self.queries.enqueue("job", json.dumps(payload).encode(), 0, delay)

    async def put_many(self, payloads: list[dict[str, Any]]) -> None:
        await self._put_many("job", payloads)

    async def _put_many(self, entrypoint: str, payloads: list[dict[str, Any]]) -> None:
        count = len(payloads)
        await self.queries.enqueue(
            [entrypoint] * count,
            [json.dumps(payload).encode() for payload in payloads],
            [0] * count,
        )


class LimitedQueue(Queue):
    """See :class:`bench.engines.rules.RuledJobs`: an entrypoint has a limit, and its workers say
    it.
    """

    async def rule(self, bench: kit.Bench, rules: dict[str, Any]) -> None:
        """Says nothing to the database."""

    async def put_many(self, payloads: list[dict[str, Any]]) -> None:
        await self._put_many("ruled", payloads)


def install(bench: kit.Bench) -> None:
    """Tables and functions."""

    async def main() -> None:
        queue = Queue()
        await queue.open(bench)
        await queue.queries.install()
        await queue.close()

    asyncio.run(main())


def work(bench: kit.Bench) -> None:
    """A worker process."""

    async def main() -> None:
        queue = Queue()
        await queue.open(bench)
        manager = PgQueuer(queue.driver)

        @manager.entrypoint("job")
        async def job(given: Any) -> None:
            jobs.body(json.loads(given.payload))

        limit = bench.sizes.get("rules", {}).get("limit", 0)

        @manager.entrypoint("ruled", concurrency_limit=limit)
        async def ruled(given: Any) -> None:
            await rules.async_body(json.loads(given.payload))

        kit.ready(wait=bench.sizes.get("wait", False))
        # With a limit, as many a claim as may run at once: ten, as by default, would do less.
        await (manager.run(batch_size=limit) if limit else manager.run())

    asyncio.run(main())


drain = partial(jobs.drain, jobs=Queue())
enqueue = partial(jobs.enqueue, jobs=Queue())
latency = partial(jobs.start_latency, jobs=Queue())
timers = partial(jobs.timers, jobs=Queue())
accounts = partial(jobs.accounts, jobs=Queue())
limited = partial(rules.limited, jobs=LimitedQueue())


if __name__ == "__main__":
    kit.main(globals())
