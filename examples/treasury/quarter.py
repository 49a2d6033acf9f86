"""A quarter of treasury days, with crashes: starts everything,
watches, kills, and proves the books.

    database   the one that is named, else the embedded server
    bank       a process, on a fresh book
    workers    two processes of ``pgflow workers``
    days       started in one transaction: a quarter starts whole or not at all

The days share a database with those of earlier quarters. Their keys begin with the name of their
books, their queue has that name too, so no worker of this quarter touches what an interrupted one
has left.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from pgflow_cli.shop.chaos import Chaos
from pgflow_cli.shop.processes import Server, Workers

from examples.treasury import client, ledger, world
from examples.treasury.bank import COUNTED, create_book
from examples.treasury.proof import bank_book_of, count_tries, prove, table
from examples.treasury.rates import business_days
from examples.treasury.workflow import cfo_ack, key_of, opening, treasury_day
from pgflow import App
from pgflow._db.dsn import resolve_dsn
from pgflow.schema import migrate_dsn
from pgflow.texts import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from decimal import Decimal

    from pgflow_cli.shop.chaos import Kill
    from pgflow_cli.shop.proof import Proof

    from examples.treasury.proof import Tries
    from pgflow import Workflow

FIRST_DAY = date(2024, 1, 2)
LOOK_SECONDS = 0.02
PROGRESS_SECONDS = 2.0
WORKER_COUNT = 2


@dataclass(frozen=True)
class Options:
    """Options of a quarter.

    Attributes:
        dsn: The database; else ``PGFLOW_DSN``, else ``DATABASE_URL``, else the embedded server.
        days: Number of business days, from 2 January 2024 on; 63 are the quarter.
        kills: Number of workers to kill.
        seed: Of the flows, and of which acknowledgements are lost.
        folder: Folder for the bank's book and the logs; a new temporary one if not given.
        latency_ms: Time of a message to or from the bank, on average.
        lost_acks: Share of the bank's acknowledgements that is lost.
        concurrency: Number of runs that a worker works on at once.
        dead_after_seconds: Without a sign of life for so long, a worker is dead.
        patience_seconds: Time after which runs that do not end are given up.
    """

    dsn: str | None = None
    days: int = 63
    kills: int = 3
    seed: int = 2024
    folder: Path | None = None
    latency_ms: float = 60.0
    lost_acks: float = 0.05
    concurrency: int = 6
    dead_after_seconds: float = 1.5
    patience_seconds: float = 75.0


class TreasuryError(Exception):
    """The quarter cannot be run here; the message says why."""


# ---------------------------------------------------------------- the program


def run_quarter(options: Options, say: Callable[[str], None] = print) -> bool:
    """Runs a quarter and proves its books.

    Args:
        options: Options of the quarter.
        say: Takes one line of what happens.

    Returns:
        Whether every proof holds.

    Raises:
        TreasuryError, PgflowError, psycopg.Error: It could not be run.
    """
    began = time.monotonic()
    with database(options.dsn, say) as dsn:
        report = close_quarter(dsn, options, say)
    print_figures(report, say)
    holds = _print_proofs(report.proofs, say)
    say(
        f"{len(report.days)} days in {time.monotonic() - began:.1f} s; the bank's book and the "
        f"logs are in {report.folder}"
    )
    return holds


@dataclass(frozen=True)
class Report:
    """Report of a quarter.

    Attributes:
        name: Of its books.
        days: Its business days.
        folder: Folder with the bank's book and the logs.
        kills: The workers that were killed.
        counts: Counts of the bank.
        tries: Numbers of calls and tries of each step.
        proofs: Results of the proof.
    """

    name: str
    days: Sequence[date]
    folder: Path
    kills: Sequence[Kill]
    counts: dict[str, int]
    tries: Sequence[Tries]
    proofs: Sequence[Proof]


def close_quarter(
    dsn: str,
    options: Options,
    say: Callable[[str], None],
) -> Report:
    """Runs a quarter to its end and proves its books.

    Args:
        dsn: The database, with the schema installed.
        options: Options of the quarter.
        say: Takes one line of what happens.

    Raises:
        TreasuryError, PgflowError, psycopg.Error: It could not be run.
    """
    days = business_days(FIRST_DAY, options.days)
    with ExitStack() as stack:
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        be_alone(conn)
        folder = options.folder or Path(tempfile.mkdtemp(prefix="treasury-"))
        book = folder / "bank-book.jsonl"
        name = open_books(conn, book, days, options.seed)
        bank = stack.enter_context(
            closing(
                start_bank(
                    book,
                    latency_ms=options.latency_ms,
                    lost_acks=options.lost_acks,
                    seed=options.seed,
                )
            )
        )
        say(f"bank     pid {bank.pid} at {bank.address}, its book is {book}")
        environment = {"PGFLOW_DSN": dsn, client.ADDRESS: bank.address}
        with closing(
            Workers(
                "examples.treasury.workflow:app",
                folder,
                environment,
                queue=name,
                concurrency=options.concurrency,
                dead_after_seconds=options.dead_after_seconds,
            )
        ) as workers:
            chaos = Chaos(conn, workers, kills=options.kills, total=len(days), say=say)
            quarter = Quarter(
                conn, stack.enter_context(App(dsn)), workers, chaos, name=name, days=days, say=say
            )
            quarter.start()
            quarter.watch(options.patience_seconds)
        counts = asyncio.run(client.read_counts(bank.address))
        return Report(
            name,
            days,
            folder,
            chaos.kills,
            counts,
            count_tries(conn),
            [*chaos.proofs(), *prove(conn, book)],
        )


def start_bank(
    book: Path, *, latency_ms: float = 0.0, lost_acks: float = 0.05, seed: int = 0
) -> Server:
    """Start the bank on a book that exists.

    Args:
        book: Its book.
        latency_ms: Time of a message each way, on average.
        lost_acks: Share of its acknowledgements that is lost.
        seed: Of which ones these are.
    """
    options = {
        "--book": book,
        "--latency-ms": latency_ms,
        "--lost-acks": lost_acks,
        "--seed": seed,
    }
    words = [str(word) for pair in options.items() for word in pair]
    return Server("examples.treasury.bank", *words, log=book.with_name("bank.log"))


def prove_only(
    dsn: str | None = None, book: Path | None = None, say: Callable[[str], None] = print
) -> bool:
    """Proves the books of the last quarter once more, as they are now.

    Args:
        dsn: As in :class:`Options`.
        book: The bank's book; where the quarter left it if not given.
        say: Takes one line.

    Returns:
        Whether every proof holds.

    Raises:
        LookupError: There are no books in this database.
        TreasuryError: The bank's book cannot be read.
    """
    with database(dsn, say) as found, psycopg.connect(found, autocommit=True) as conn:
        path = book or bank_book_of(conn)
        try:
            proofs = prove(conn, path)
        except (OSError, ValueError) as error:
            raise TreasuryError(f"the bank's book {path} cannot be read: {error}") from error
    return _print_proofs(proofs, say)


@contextmanager
def database(dsn: str | None, say: Callable[[str], None]) -> Iterator[str]:
    """The database, with the schema installed."""
    named = resolve_dsn(dsn)
    with ExitStack() as stack:
        if named is None:
            from pgflow.embedded import acquire

            named = stack.enter_context(acquire()).dsn
            say(f"postgres the embedded server, {named}")
        else:
            say(f"postgres {without_secrets(named)}")
        migrate_dsn(named)
        yield named


def be_alone(conn: psycopg.Connection[Any]) -> None:
    """Makes sure that there is one treasury in a database while the connection is open;
    TreasuryError if there is another.
    """
    if conn.execute(
        "select pg_try_advisory_lock(hashtextextended('pgflow treasury', 0))"
    ).fetchone() != (True,):
        raise TreasuryError(
            "another treasury is running in this database: wait for it, "
            "or name another one with --dsn"
        )


def open_books(
    conn: psycopg.Connection[Any], bank_book: Path, days: Sequence[date], seed: int
) -> str:
    """Begins a new set of books, the bank's and an empty ledger; answers its name.

    Raises:
        TreasuryError: Something is there that must not be overwritten, or is in use.
    """
    earlier = conn.execute(
        "select count(distinct labels->>'books') from pgflow.runs where labels ? 'books'"
    ).fetchone()
    assert earlier is not None
    name = "treasury" if earlier == (0,) else f"treasury-{earlier[0] + 1}"
    try:
        bank_book.parent.mkdir(parents=True, exist_ok=True)
        create_book(bank_book, world.opening_lines(days, seed))
        ledger.create(conn, name, seed, str(bank_book.resolve()))
    except (OSError, ValueError) as error:
        raise TreasuryError(f"no new books: {error}") from error
    except psycopg.errors.LockNotAvailable as error:
        raise TreasuryError(
            "no new books: an open transaction still reads the old ones, end it first"
        ) from error
    return name


def print_figures(report: Report, say: Callable[[str], None]) -> None:
    """Print how often the bank was asked, and how often each step was tried."""
    say("bank     " + ", ".join(f"{report.counts.get(word, 0)} {word}" for word in COUNTED))
    say("step             calls  attempts  most for one call")
    for tries in report.tries:
        say(f"{tries.step:15} {tries.calls:6} {tries.attempts:9} {tries.most:18}")


def _print_proofs(proofs: Sequence[Proof], say: Callable[[str], None]) -> bool:
    for line in table(proofs):
        say(line)
    failed = sum(not proof.holds for proof in proofs)
    say(
        f"{failed} of {len(proofs)} proofs FAILED"
        if failed
        else f"all {len(proofs)} proofs hold: every day closed exactly once"
    )
    return failed == 0


# ---------------------------------------------------------------- the quarter


_PROGRESS = """
select count(*) filter (where status = 'queued'), count(*) filter (where status = 'running'),
  count(*) filter (where status = 'waiting'), count(*) filter (where status = 'completed'),
  count(*) filter (where status in ('failed', 'cancelled', 'stuck')),
  (select count(distinct day) from treasury.gl_entry)
from pgflow.runs where labels->>'books' = %s
"""

_WAITING = (
    "select key from pgflow.runs where status = 'waiting' and reason = %s "
    "and labels->>'books' = %s order by key"
)


@dataclass(frozen=True)
class Progress:
    """Progress of the work, as the database has it."""

    queued: int
    running: int
    waiting: int
    closed: int
    broken: int
    posted: int

    def __str__(self) -> str:
        """As it is printed."""
        runs = f"{self.running} running, {self.waiting} waiting, {self.queued} queued"
        return f"{self.posted} days posted, {self.closed} closed; runs: {runs}"


class Quarter:
    """The days of one set of books, with the CFO who signs and the chaos that kills workers.

    Attributes:
        conn: A connection to look through.
        workers: The worker processes.
        chaos: The killer of workers.
        name: Of the books.
        days: Their days.
    """

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        app: App,
        workers: Workers,
        chaos: Chaos,
        *,
        name: str,
        days: list[date],
        say: Callable[[str], None],
    ) -> None:
        self.conn = conn
        self.workers = workers
        self.chaos = chaos
        self.name = name
        self.days = days
        self._app = app
        self._say = say
        self._acknowledged: set[str] = set()

    def start(self) -> None:
        """Starts the workers; then every day, with the fund that the first one begins with,
        in one transaction.
        """
        for _ in range(WORKER_COUNT):
            self._say(f"worker   pid {self.workers.start_one()}")
        with psycopg.connect(self._app.dsn) as conn:
            books = self._app.using(conn)
            for priority, (day, next_day) in enumerate(
                itertools.zip_longest(self.days, self.days[1:])
            ):
                books.start(self._day(day, priority), day, next_day)
            books.send(key_of(self.name, self.days[0]), opening, world.FUND)
        self._app.nudge()
        self._say(
            f"start    {len(self.days)} runs, {key_of(self.name, self.days[0])} to "
            f"{key_of(self.name, self.days[-1])}"
        )

    def _day(self, day: date, priority: int) -> Workflow[[date, date | None], Decimal]:
        """Return the workflow for a day; earlier days go first, also when they come back from a
        wait or a dead worker.
        """
        labels = {"books": self.name, "day": str(day)}
        return treasury_day.options(
            key=key_of(self.name, day), queue=self.name, priority=priority, labels=labels
        )

    def watch(self, patience_seconds: float) -> None:
        """Watch the work until it is over or takes too long; kill workers, and answer for the CFO.

        Args:
            patience_seconds: Time after which it is too late.

        Raises:
            TreasuryError: A worker ended by itself.
        """
        deadline = time.monotonic() + patience_seconds
        next_line = 0.0
        while True:
            progress = self._look()
            self._acknowledge()
            self.chaos.strike(progress.posted)
            is_over = (
                progress.closed == len(self.days)
                or progress.broken > 0
                or time.monotonic() > deadline
            )
            if is_over or time.monotonic() > next_line:
                self._say(f"progress {progress}")
                next_line = time.monotonic() + PROGRESS_SECONDS
            if is_over:
                return
            if log := self.workers.find_ended():
                raise TreasuryError(f"a worker has ended by itself: see {log}")
            time.sleep(LOOK_SECONDS)

    def _look(self) -> Progress:
        row = self.conn.execute(_PROGRESS, (self.name,)).fetchone()
        assert row is not None
        return Progress(*row)

    def _acknowledge(self) -> None:
        """For the CFO: whatever run waits for an acknowledgement gets it."""
        for (key,) in self.conn.execute(_WAITING, (f"signal {cfo_ack.name}", self.name)).fetchall():
            if key not in self._acknowledged:
                self._acknowledged.add(key)
                questions = self._app.get(key, treasury_day).state()["questions"]
                self._say(f"cfo      acknowledges {key}: {'; '.join(questions)}")
                self._app.send(key, cfo_ack, "cfo")
