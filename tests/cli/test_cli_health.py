"""``pgflow health``, and the endpoint of a worker: what each answers, and when."""

from __future__ import annotations

import asyncio
import re
import signal
import urllib.request

import cli_jobs
from clikit import finish, pgflow, process
from psycopg.conninfo import make_conninfo
from servers import HANG_SECONDS

from pgflow import AsyncApp
from pgflow._worker.options import WorkerOptions
from pgflow.app.probes import Probes


def test_a_database_that_fits_is_healthy(dsn):
    said = pgflow(dsn, "health", tty=True)
    assert (said.code, said.out[:15]) == (0, "healthy: schema")
    assert pgflow(dsn, "health", "--json").data["healthy"] is True


def test_a_database_without_the_schema_and_one_that_is_away_are_not(empty_dsn):
    missing = pgflow(empty_dsn, "health", tty=True)
    assert (missing.code, "pgflow migrate" in missing.err) == (2, True)
    away = pgflow(make_conninfo(empty_dsn, port=1), "health", tty=True)
    assert (away.code, "cannot be reached" in away.err) == (69, True)


async def ask(port: int, request: str) -> tuple[int, str]:
    """Status and body of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{request} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.strip()


def test_a_worker_is_live_while_it_starts_and_stops_and_ready_in_between(dsn):
    async def main() -> None:
        asked = asyncio.Event()
        probes = Probes(5.0, asked)
        server = await asyncio.start_server(probes.answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        assert await ask(port, "GET /live") == (200, "live")
        assert await ask(port, "GET /ready") == (503, "starting")
        app = AsyncApp(dsn, include=[cli_jobs])
        async with app, app._work(WorkerOptions(queues=app.queues)) as worker:
            probes.worker = worker
            assert await ask(port, "GET /ready?x=1") == (200, f"worker {worker.worker_id} is ready")
            assert await ask(port, "HEAD /ready") == (200, "")
            assert (await ask(port, "POST /ready"))[0] == 405
            assert (await ask(port, "GET /metrics"))[0] == 404
            silent = Probes(-1.0, asked)
            silent.worker = worker
            assert silent.judge("/ready")[0] == 503
            assert silent.judge("/live")[0] == 200
            asked.set()
            assert await ask(port, "GET /ready") == (503, "stopping")
            assert await ask(port, "GET /live") == (200, "live")
            broken = Probes(5.0, asyncio.Event())
            broken.worker = worker
            worker.failed.set()
            assert broken.judge("/live") == (503, "a part of the worker has failed")
            assert broken.judge("/ready")[0] == 503
        server.close()

    asyncio.run(main())


def test_workers_answers_probes_and_a_port_that_is_taken_is_a_mistake(dsn):
    working = process(dsn, "workers", "cli_jobs", "--health-port", "0")
    try:
        said = next(line for line in working.stderr if "probes at" in line)
        url = re.search(r"(http://\S+)/live", said)[1]
        with urllib.request.urlopen(f"{url}/live", timeout=HANG_SECONDS) as answer:
            assert (answer.status, answer.read()) == (200, b"live\n")
        taken = finish(process(dsn, "workers", "cli_jobs", "--health-port", url.rpartition(":")[2]))
        assert (taken.code, "no probes at 127.0.0.1" in taken.err) == (2, True)
    finally:
        working.send_signal(signal.SIGTERM)
    assert finish(working).code == 0
