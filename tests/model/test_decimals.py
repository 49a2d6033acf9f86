"""Amounts that others write as numbers of JSON: they are read to the last digit, or refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated

import pydantic
import pytest
from typing_extensions import TypedDict

from pgflow._model.codecs import codec_for
from pgflow.errors import NotStorable


@dataclass
class Amount:
    """An amount."""

    cents: Decimal
    rate: float = 0.0
    parts: list[Amount] | None = None


class Paid(pydantic.BaseModel):
    """A kind of a union, which refers to the union."""

    cents: Decimal
    before: Refunded | Paid | None = None


class Refunded(pydantic.BaseModel):
    """The other kind."""

    back: Decimal
    before: list[Paid | Refunded] = []


@dataclass
class Measured:
    """Takes the same as an Amount that has only cents, as floats."""

    cents: float


class Cents(TypedDict):
    """A kind that compares as equal to the next."""

    cents: Decimal
    rounds: int


class Floats(TypedDict):
    """The same as floats."""

    cents: float


LONG = Decimal("12345678901234567890.12")


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (Decimal, "12345678901234567890.12", Decimal("12345678901234567890.12")),
        (Decimal, "0.10", Decimal("0.1")),
        (dict[str, Decimal], '{"1.2": 1.000000000000000001}', {"1.2": Decimal("1." + "0" * 17 + "1")}),
        (
            Amount,
            '{"cents": -9007199254740993.25, "rate": 0.1, "parts": [{"cents": 2e-30}]}',
            Amount(Decimal("-9007199254740993.25"), 0.1, [Amount(Decimal("2e-30"))]),
        ),
        (Amount, '{"cents": 1, "rate": 1.000000000000000001}', Amount(Decimal(1), 1.0)),
        # The kinds of a union compete; a Decimal of ours is a string.
        (Decimal | str, '"5.50"', Decimal("5.50")),
        (list[str | Decimal], '["5", 1.000000000000000001]', ["5", Decimal("1." + "0" * 17 + "1")]),
        (Paid | Refunded, f'{{"back": {LONG}}}', Refunded(back=LONG)),
        (
            list[Refunded | Paid],
            f'[{{"cents": 0.5, "before": {{"back": 1, "before": [{{"cents": {LONG}}}]}}}}]',
            [Paid(cents=Decimal("0.5"), before=Refunded(back=Decimal(1), before=[Paid(cents=LONG)]))],
        ),
        (Measured | Amount, f'{{"cents": {LONG}}}', Measured(float(LONG))),
        (Measured | Amount, f'{{"cents": {LONG}, "rate": 0.5}}', Amount(LONG, 0.5)),
        (dict[str, Cents | Floats], f'{{"a": {{"cents": {LONG}}}}}', {"a": {"cents": float(LONG)}}),
        (Cents | str, f'{{"cents": {LONG}, "rounds": 2}}', {"cents": LONG, "rounds": 2}),
        (Annotated[Decimal, pydantic.Field(le=LONG)] | None, str(LONG), LONG),
    ],
)  # fmt: skip
def test_a_number_of_many_digits_is_read_as_it_is_written(annotation, text, value):
    assert codec_for(annotation).decode(text, "it") == value


class Scanned(pydantic.BaseModel, strict=True):
    """Holds what JSON has as a text, and takes nothing else for it."""

    cents: Decimal
    image: bytes
    due: date


def test_what_is_beside_an_exact_amount_is_read_as_json_has_it():
    codec = codec_for(Scanned, "a value")
    scanned = Scanned(cents=Decimal("12345678901234567.89"), image=b"\xff\0", due=date(2026, 1, 2))
    text = codec.encode(scanned, "it").replace('"12345678901234567.89"', "12345678901234567.89")
    assert codec.decode(text, "it") == scanned


def test_a_union_says_where_a_text_does_not_fit():
    with pytest.raises(NotStorable, match=r"1\.Refunded\.back: Field required"):
        codec_for(list[Refunded | Paid]).decode(f'[{{"cents": {LONG}}}, {{"cents": "x"}}]', "it")


def test_numbers_that_no_float_tells_apart_are_refused():
    with pytest.raises(NotStorable, match="are the same float: write one as a string"):
        codec_for(list[Decimal]).decode("[1.000000000000000001, 1.0]", "it")
