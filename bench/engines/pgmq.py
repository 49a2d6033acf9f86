"""pgmq, installed from the SQL that comes with its client: batches are read, and archived when they
are done.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from pgmq import PGMQueue
from pgmq.install import install_pgmq_from_sql

from bench.engines import jobs, kit

QUEUE = "bench"
BATCH = 100


class Queue:
    """See :class:`bench.engines.jobs.Jobs`."""

    done = f"select count(*) from pgmq.a_{QUEUE}"
    table = f"pgmq.a_{QUEUE}"

    async def open(self, bench: kit.Bench) -> None:
        self.queue = client_of(bench)

    async def close(self) -> None:
        self.queue.pool.close()

    async def put(self, payload: dict[str, Any], delay_seconds: float = 0) -> None:
        self.queue.send(QUEUE, payload, delay=int(delay_seconds))

    async def put_many(self, payloads: list[dict[str, Any]]) -> None:
        self.queue.send_batch(QUEUE, payloads)


def client_of(bench: kit.Bench) -> PGMQueue:
    return PGMQueue(conn_string=bench.dsn, init_extension=False, pool_size=2)


def install(bench: kit.Bench) -> None:
    """Tables and functions, and a queue."""
    install_pgmq_from_sql(dsn=bench.dsn)
    client_of(bench).create_queue(QUEUE)


def work(bench: kit.Bench) -> None:
    """A worker process; with a batch of one it waits for messages, as a latency asks for."""
    queue = client_of(bench)
    kit.ready(wait=bench.sizes.get("wait", False))
    while True:
        if "starts" in bench.sizes:
            messages = queue.read_with_poll(QUEUE, vt=30, qty=10) or []
        else:
            messages = queue.read_batch(QUEUE, vt=30, batch_size=BATCH) or []
        for message in messages:
            jobs.body(message.message)
        if messages:
            queue.archive_batch(QUEUE, [message.msg_id for message in messages])
        else:
            time.sleep(0.05)


drain = partial(jobs.drain, jobs=Queue())
enqueue = partial(jobs.enqueue, jobs=Queue())
latency = partial(jobs.start_latency, jobs=Queue())
accounts = partial(jobs.accounts, jobs=Queue())


if __name__ == "__main__":
    kit.main(globals())
