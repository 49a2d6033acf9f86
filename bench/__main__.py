"""`python -m bench [--quick] [--dsn DSN] [--json FILE]`: pgflow's own figures on one database.

They are made in a database of their own, which is dropped afterwards. The machine is what it is: compare
figures of one run with each other, not with those of another day.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import platform
import uuid
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from bench import jobs, metrics
from pgflow.dsn import resolve_dsn
from pgflow.schema import migrate_dsn


async def measure(dsn: str, *, quick: bool) -> metrics.Figures:
    """All figures, one after the other."""
    share = 4 if quick else 1
    app = jobs.app.on(dsn)
    figures: metrics.Figures = {}
    async with app:
        for measured in (
            metrics.steps(app, 128, 3000 // share), metrics.steps(app, 32, 1600 // share), metrics.lone_run(app, 120 // share),
            metrics.transactions(app, 80 // share), metrics.enqueue(app, 20_000 // share), metrics.drain(app, 20_000 // share),
            metrics.start_latency(app, 200 // share),
        ):
            figures.update(await measured)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn", help="a server on which a database may be made; else PGFLOW_DSN, DATABASE_URL, the embedded one")
    parser.add_argument("--quick", action="store_true", help="a quarter of the work")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    server = resolve_dsn(options.dsn)
    if server is None:
        from pgflow.embedded import acquire

        server = acquire().dsn
    name = f"pgflow_bench_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        try:
            dsn = make_conninfo(server, dbname=name)
            migrate_dsn(dsn)
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute("create table bench_app (id bigint generated always as identity primary key, v jsonb)")
                shown = {s: conn.execute(f"show {s}").fetchone()[0] for s in ("server_version", "fsync", "synchronous_commit")}  # type: ignore[index]
            figures = asyncio.run(measure(dsn, quick=options.quick))
        finally:
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
    print(f"Python {platform.python_version()}, Postgres {shown['server_version']}, fsync {shown['fsync']}, synchronous_commit {shown['synchronous_commit']}")
    for metric, value in figures.items():
        print(f"{metric:<50} {value:>12,.3f}" if value < 10 else f"{metric:<50} {value:>12,.0f}")
    if options.json:
        options.json.write_text(json.dumps({"environment": shown, "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
