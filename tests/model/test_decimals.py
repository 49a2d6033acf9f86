"""Amounts that others write as numbers of JSON: they are read to the last digit, or refused."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from pgflow._model.codecs import codec_for
from pgflow.errors import NotStorable


@dataclass
class Amount:
    """An amount."""

    cents: Decimal
    rate: float = 0.0
    parts: list[Amount] | None = None


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
    ],
)  # fmt: skip
def test_a_number_of_many_digits_is_read_as_it_is_written(
    annotation: Any, text: str, value: Any
) -> None:
    assert codec_for(annotation).decode(text, "it") == value


def test_numbers_that_no_float_tells_apart_are_refused() -> None:
    with pytest.raises(NotStorable, match="are the same float: write one as a string"):
        codec_for(list[Decimal]).decode("[1.000000000000000001, 1.0]", "it")
