"""The proof: the shop's book against the provider's, entry by entry and to the cent.

The provider's book is read from its file. An entry that was altered, left out or written twice in
either book fails at least one proof.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg


@dataclass(frozen=True)
class Proof:
    """A sentence that holds or has faults.

    Attributes:
        name: The sentence.
        figure: Number of things that were looked at.
        faults: Facts that contradict it; empty if it holds.
    """

    name: str
    figure: str
    faults: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        """True if it is proven."""
        return not self.faults


@dataclass(frozen=True)
class Counts:
    """Counts of the provider.

    Attributes:
        entries: Orders carried out.
        lost: Answers that got lost.
        again: Times that it was asked again for an order that was carried out.
    """

    entries: int
    lost: int
    again: int


def read_counts(path: Path) -> Counts:
    """Return the counts of a provider's book."""
    sums = "select count(*), coalesce(sum(lost), 0), coalesce(sum(asked - 1), 0) from entry"
    return Counts(*_read(path, sums)[0])


def prove(conn: psycopg.Connection[Any], shop: str, path: Path) -> list[Proof]:
    """Compare the two books.

    Args:
        conn: The database of the shop.
        shop: Name of the shop's day.
        path: The provider's book.

    Raises:
        sqlite3.Error: The provider's book cannot be read.
    """
    entries = _read(path, "select 'P' || printf('%06d', id), kind, number, cents from entry")
    theirs = Counter((ref, number, cents) for ref, kind, number, cents in entries if cents)
    payments = "select reference, order_number, cents from shop.payment where key like %s || '/%%'"
    ours = Counter(conn.execute(payments, (shop,)).fetchall())
    done = Counter((kind, number) for _, kind, number, _ in entries)
    query = "select key, status from pgflow.runs where labels->>'shop' = %s"
    runs = conn.execute(query, (shop,)).fetchall()
    checked = conn.execute("select invariant, detail from pgflow.check()").fetchall()
    here = [f"only in the shop's book: {_shown(one)}" for one in (ours - theirs).elements()]
    there = [f"only in the provider's book: {_shown(one)}" for one in (theirs - ours).elements()]
    twice = [
        f"{kind} of order {n}: {times} times" for (kind, n), times in done.items() if times > 1
    ]
    open_ = [f"{key} is {status}" for key, status in runs if status != "completed"]
    broken = [f"{invariant}: {detail}" for invariant, detail in checked]
    sums = f"{len(ours)} payments: {_euros(ours)} here, {_euros(theirs)} there"
    of_provider = f"{len(entries)} entries of the provider"
    return [
        Proof("both books agree to the cent, payment by payment", sums, here + there),
        Proof("nothing was charged, refunded or sent twice", of_provider, twice),
        Proof("every order has ended", f"{len(runs)} runs", open_),
        Proof("pgflow.check() finds nothing", f"{len(checked)} findings", broken),
    ]


def _read(path: Path, query: str) -> list[Any]:
    with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as book:
        return book.execute(query).fetchall()


def _euros(payments: Counter[Any]) -> str:
    cents = sum(cents * times for (_, _, cents), times in payments.items())
    return f"{cents / 100:,.2f}"


def _shown(payment: tuple[str, int, int]) -> str:
    reference, number, cents = payment
    return f"{reference}, order {number}, {cents / 100:,.2f}"
