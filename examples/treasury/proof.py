"""The proof that every day was closed exactly once:
the bank's book against the ledger, in SQL (`proof.sql`).

The bank's book is loaded from its file first, so that what is compared is what is on the disk now.
An entry that was altered, left out or written twice in either book fails at least one proof.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgflow_cli.shop.proof import Proof

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

_COLUMNS = (
    "line",
    "type",
    "key",
    "reference",
    "day",
    "kind",
    "account",
    "currency",
    "cents",
    "counterparty",
)
_SHOWN = 3

_TRIES = """
select s.step, count(*), sum(s.attempts)::bigint, max(s.attempts)
from pgflow.steps s join pgflow.runs r on r.run_id = s.run_id
where r.labels->>'books' = (select name from treasury.books)
group by s.step order by min(s.call), s.step
"""


@dataclass(frozen=True)
class Tries:
    """Counts of a step: calls, tries, and most tries for one call."""

    step: str
    calls: int
    attempts: int
    most: int


def prove(conn: psycopg.Connection[Any], bank_book: Path) -> list[Proof]:
    """Compares the two books.

    Args:
        conn: The database of the ledger. The bank's book is left there in ``treasury.bank_book``.
        bank_book: The bank's file.

    Returns:
        Every proof, in the order of `proof.sql`.

    Raises:
        OSError, ValueError: The bank's book cannot be read.
    """
    with conn.transaction():
        _load(conn, bank_book)
        return [_prove(conn, name, query) for name, query in _queries().items()]


def _load(conn: psycopg.Connection[Any], bank_book: Path) -> None:
    lines = [json.loads(line) for line in bank_book.read_text().splitlines()]
    conn.execute("truncate treasury.bank_book")
    with (
        conn.cursor() as cursor,
        cursor.copy(f"copy treasury.bank_book ({', '.join(_COLUMNS)}) from stdin") as copy,
    ):
        for number, line in enumerate(lines, 1):
            copy.write_row([number, *(line.get(name) for name in _COLUMNS[1:])])


def _prove(conn: psycopg.Connection[Any], name: str, query: str) -> Proof:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None, "a proof is a query of one row"
    return Proof(name, row[0], row[1])


@cache
def _queries() -> dict[str, str]:
    """Return the queries of `proof.sql` by the sentence above each."""
    text = resources.files(__package__).joinpath("proof.sql").read_text()
    parts = (part.partition("\n") for part in text.split("-- proof: ")[1:])
    return {name: query for name, _, query in parts}


def count_tries(conn: psycopg.Connection[Any]) -> list[Tries]:
    """Return the counts of each step of these books, from the journal."""
    return [Tries(*row) for row in conn.execute(_TRIES)]


def bank_book_of(conn: psycopg.Connection[Any]) -> Path:
    """Return the path of the bank's book that belongs to this ledger; raise LookupError if there is
    no ledger.
    """
    if conn.execute("select to_regclass('treasury.books')::text").fetchone() == ("treasury.books",):
        row = conn.execute("select bank_book_path from treasury.books").fetchone()
        if row is not None:
            return Path(row[0])
    raise LookupError("this database has no treasury: run a quarter first")


def table(proofs: Sequence[Proof]) -> list[str]:
    """Return the proofs as lines to print."""
    width = max(len(proof.name) for proof in proofs)
    lines = []
    for proof in proofs:
        lines.append(f"{'PASS' if proof.holds else 'FAIL'}  {proof.name:{width}}  {proof.figure}")
        lines += [f"      - {fault}" for fault in proof.faults[:_SHOWN]]
        lines += (
            [f"      - and {len(proof.faults) - _SHOWN} more"] if len(proof.faults) > _SHOWN else []
        )
    return lines
