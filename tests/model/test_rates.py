"""Rates of queues, as Python says them."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from pgflow import InvalidArgument
from pgflow._model.queues import rules_json


@pytest.mark.parametrize(("given", "told"), [
    ("100/1m", "100/1m"), ((2, timedelta(minutes=1)), "2/1m"), ((2, 60), "2/1m"),
    ([2, 0.5], "2/0.5s"), ((10, timedelta(hours=1, minutes=30)), "10/1h30m"), (None, None),
])  # fmt: skip
def test_a_rate_is_a_count_and_a_time(given, told):
    rules = json.loads(rules_json({"rate": given, "key_rate": given}))
    assert rules == {"rate": told, "key_rate": told}


@pytest.mark.parametrize("rate", [5, (2,), (2, 60, 1), ("2", 60), (True, 60), (2, "1m"), (2, 0)])
def test_what_is_no_rate_is_refused_in_one_line(rate):
    with pytest.raises(InvalidArgument, match="rate of a queue|time of the rate") as refusal:
        rules_json({"rate": rate})
    assert "\n" not in str(refusal.value)
