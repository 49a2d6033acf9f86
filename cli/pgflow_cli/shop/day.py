"""A day of the shop: starts everything, watches, kills workers, and compares the books.

Each day has a name, ``shop-1`` and so on. Its runs have the name as a label, its queue is called
so, and its key prefixes theirs: no worker of this day touches what an interrupted one has left.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from pgflow import App, inspect
from pgflow.schema import migrate_dsn
from pgflow.texts import hide_secrets
from pgflow_cli.shop.chaos import Chaos
from pgflow_cli.shop.flows import Order, delivered, fulfil
from pgflow_cli.shop.processes import Server, Workers
from pgflow_cli.shop.proof import Counts, Proof, prove, read_counts
from pgflow_cli.shop.provider import ADDRESS

if TYPE_CHECKING:
    from pgflow_cli.shop.chaos import Kill

LOOK_SECONDS = 0.02
PROGRESS_SECONDS = 2.0
PATIENCE_SECONDS = 90.0
"""Seconds without any progress after which the day is over."""

ITEMS = {"lamp": 4_950, "chair": 12_900, "kettle": 3_495, "rug": 18_999, "clock": 2_750}
"""Items of the shop, with their prices in cents."""

CUSTOMERS = ("Ada", "Grace", "Edsger", "Barbara", "Tony", "Leslie", "Radia")


class ShopError(Exception):
    """The day cannot be run here; the message says why."""


@dataclass(frozen=True)
class Options:
    """Options of a day.

    Attributes:
        orders: Number of orders.
        kills: Number of workers to kill.
        seed: Of the orders, and of which answers are lost.
        folder: Folder for the provider's book and the logs; a new temporary one if not given.
        latency_ms: Time that the provider takes, on average.
    """

    orders: int = 60
    kills: int = 3
    seed: int = 1
    folder: Path | None = None
    latency_ms: float = 150.0


@dataclass(frozen=True)
class Report:
    """Report of a day: its name, its folder, and what came of it."""

    name: str
    folder: Path
    kills: Sequence[Kill]
    counts: Counts
    proofs: Sequence[Proof]


@dataclass(frozen=True)
class Progress:
    """Progress of the work, as the database has it."""

    queued: int
    running: int
    waiting: int
    ended: int
    broken: int
    paid: int

    def __str__(self) -> str:
        """As it is printed."""
        runs = f"{self.running} running, {self.waiting} with the courier, {self.queued} queued"
        return f"{self.ended} orders ended; {runs}"


@contextmanager
def database(dsn: str | None, say: Callable[[str], None]) -> Iterator[str]:
    """The database, with the schema installed; the embedded one if none is named."""
    named = inspect.resolve_dsn(dsn)
    with ExitStack() as stack:
        if named is None:
            from pgflow.embedded import acquire

            named = stack.enter_context(acquire()).dsn
            say(f"postgres the embedded server, {named}")
        else:
            say(f"postgres {hide_secrets(named)}")
        migrate_dsn(named)
        yield named


def run_day(
    dsn: str,
    options: Options,
    say: Callable[[str], None],
    looked: Callable[[Day, Progress], None] | None = None,
) -> Report:
    """Run a day to its end and compare its books.

    Args:
        dsn: The database, with the schema installed.
        options: Options of the day.
        say: Takes one line of what happens.
        looked: Called after each look at the work.

    Raises:
        ShopError, PgflowError, psycopg.Error: It could not be run.
    """
    with ExitStack() as stack:
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        be_alone(conn)
        folder = options.folder or Path(tempfile.mkdtemp(prefix="pgflow-shop-"))
        folder.mkdir(parents=True, exist_ok=True)
        name = open_day(conn, book := (folder / "provider.db").resolve())
        words = (str(book), str(options.latency_ms), str(options.seed))
        server = Server("pgflow_cli.shop.provider", *words, log=book.with_name("provider.log"))
        provider = stack.enter_context(closing(server))
        say(f"provider pid {provider.pid} at {provider.address}, its book is {book}")
        environment = {"PGFLOW_DSN": dsn, ADDRESS: provider.address}
        workers = stack.enter_context(
            closing(Workers("pgflow_cli.shop.flows:app", folder, environment, queue=name))
        )
        chaos = Chaos(conn, workers, kills=options.kills, total=options.orders, say=say)
        day = Day(conn, stack.enter_context(App(dsn)), chaos, name, say)
        day.start(workers, options)
        day.watch(options.orders, workers, looked)
        proofs = [*chaos.proofs(), *prove(conn, name, book)]
        return Report(name, folder, chaos.kills, read_counts(book), proofs)


def be_alone(conn: psycopg.Connection[Any]) -> None:
    """Make sure that there is one shop in a database while the connection is open."""
    lock = "select pg_try_advisory_lock(hashtextextended('pgflow shop', 0))"
    if conn.execute(lock).fetchone() != (True,):
        raise ShopError(
            "another demo is running in this database: wait for it, or name another one with --dsn"
        )


def open_day(conn: psycopg.Connection[Any], book: Path) -> str:
    """Begin a day, with tables for the first; return its name."""
    if book.exists():
        raise ShopError(f"{book} is the book of an earlier demo: name another --folder")
    with conn.transaction():
        conn.execute(
            "create schema if not exists shop; "
            "create table if not exists shop.day (id bigint primary key, provider_book text); "
            "create table if not exists shop.payment (key text, order_number int, "
            "reference text, cents bigint, paid_at timestamptz default now())"
        )
        row = conn.execute(
            "insert into shop.day select coalesce(max(id), 0) + 1, %s from shop.day returning id",
            (str(book),),
        ).fetchone()
    assert row is not None
    return f"shop-{row[0]}"


def prove_last(dsn: str | None, say: Callable[[str], None]) -> list[Proof]:
    """Compare the books of the last day once more, as they are now.

    Raises:
        ShopError: There was no day in this database, or the provider's book is gone.
    """
    with database(dsn, say) as found, psycopg.connect(found, autocommit=True) as conn:
        if conn.execute("select to_regclass('shop.day')").fetchone() == (None,):
            raise ShopError("no demo has run in this database yet")
        query = "select id, provider_book from shop.day order by id desc limit 1"
        for number, book in conn.execute(query).fetchall():
            if Path(book).exists():
                return prove(conn, f"shop-{number}", Path(book))
            raise ShopError(f"the provider's book {book} is gone: run the demo again")
    raise ShopError("no demo has run in this database yet")


_PROGRESS = """
select count(*) filter (where status = 'queued'), count(*) filter (where status = 'running'),
  count(*) filter (where status = 'waiting'), count(*) filter (where status = 'completed'),
  count(*) filter (where status in ('failed', 'cancelled', 'stuck')),
  (select count(*) from shop.payment where key like %(shop)s || '/%%' and cents > 0)
from pgflow.runs where labels->>'shop' = %(shop)s
"""

_WITH_COURIER = """
select key from pgflow.runs
where status = 'waiting' and reason = 'signal delivered' and labels->>'shop' = %s order by key
"""


@dataclass
class Day:
    """The orders of one day, with the courier who delivers and the chaos that kills workers."""

    conn: psycopg.Connection[Any]
    app: App
    chaos: Chaos
    name: str
    say: Callable[[str], None]
    delivered: set[str] = field(default_factory=set)

    def start(self, workers: Workers, options: Options) -> None:
        """Start two workers, then every order in one transaction."""
        for _ in range(2):
            self.say(f"worker   pid {workers.start_one()}")
        chance = random.Random(options.seed)  # noqa: S311 - orders of a made-up shop
        with psycopg.connect(self.app.dsn) as conn:
            client = self.app.using(conn)
            for number in range(1, options.orders + 1):
                item = chance.choice(list(ITEMS))
                order = Order(number, chance.choice(CUSTOMERS), item, ITEMS[item])
                key, labels = f"{self.name}/order-{number}", {"shop": self.name}
                client.start(fulfil.options(key=key, queue=self.name, labels=labels), order)
        self.app.nudge()
        self.say(f"start    {options.orders} orders, {self.name}/order-1 and so on")

    def watch(
        self, orders: int, workers: Workers, looked: Callable[[Day, Progress], None] | None
    ) -> None:
        """Watch until the work is over or gets no further. Kill workers, and deliver parcels."""
        last, deadline, next_line = None, 0.0, 0.0
        while True:
            row = self.conn.execute(_PROGRESS, {"shop": self.name}).fetchone()
            assert row is not None
            progress = Progress(*row)
            self._deliver()
            self.chaos.strike(progress.paid)
            if looked is not None:
                looked(self, progress)
            now = time.monotonic()
            if progress != last:
                last, deadline = progress, now + PATIENCE_SECONDS
            is_over = progress.ended == orders or progress.broken > 0 or now > deadline
            if is_over or now > next_line:
                self.say(f"progress {progress}")
                next_line = now + PROGRESS_SECONDS
            if is_over:
                return
            if log := workers.find_ended():
                raise ShopError(f"a worker has ended by itself: see {log}")
            time.sleep(LOOK_SECONDS)

    def _deliver(self) -> None:
        for (key,) in self.conn.execute(_WITH_COURIER, (self.name,)).fetchall():
            if key not in self.delivered:
                self.delivered.add(key)
                self.app.send(key, delivered, "the neighbour")
