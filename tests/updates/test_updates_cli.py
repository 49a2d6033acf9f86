"""Updates and queries from a shell."""

from __future__ import annotations

import json

from clikit import pgflow
from records import SOON, settle
from test_updates import shop, shop_state


def test_a_person_at_a_terminal_asks_a_run_and_reads_the_answer(flow, pgflow_dsn):
    run = settle(flow, shop.options(key="s"))
    assert pgflow(pgflow_dsn, "query", "s", "items").code == 2
    done = pgflow(pgflow_dsn, "update", "s", "put", '{"sku": "tea"}', "--id", "1", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["status"], told["value"], told["id"]) == ("done", 1, "1")
    assert pgflow(pgflow_dsn, "update", "s", "put", '{"sku": "tea"}', "--id", "1").code == 0
    other = pgflow(pgflow_dsn, "update", "s", "put", '{"sku": "oil"}', "--id", "1")
    assert (other.code, "was used for another update" in other.err) == (2, True)
    rejected = pgflow(pgflow_dsn, "update", "s", "put", '{"sku": "tea"}', "--table")
    assert (rejected.code, "tea is in the cart" in rejected.out) == (1, True)
    assert pgflow(pgflow_dsn, "update", "s", "put", "[1]").code == 2
    assert pgflow(pgflow_dsn, "update", "nobody", "put").code == 2
    assert json.loads(pgflow(pgflow_dsn, "query", "s", "items").out) == ["tea"]
    assert json.loads(pgflow(pgflow_dsn, "query", "s").out) == {"items": ["tea"]}
    assert "update" in pgflow(pgflow_dsn, "show", "s", "--table").out
    assert pgflow(pgflow_dsn, "update", "s", "put", '{"sku": "milk"}').code == 0
    assert run.result(SOON) == ["tea", "milk"]
    late = pgflow(pgflow_dsn, "update", "s", "put", '{"sku": "oil"}', "--table")
    assert (late.code, "is refused" in late.out) == (1, True)
    assert "update_taken" in pgflow(pgflow_dsn, "timeline", "s", "--units", "--json").out
    assert pgflow(pgflow_dsn, "timeline", "s").code == 0


def test_an_update_that_nobody_takes_is_left_after_its_time(flow, pgflow_dsn):
    settle(flow, shop_state.options(key="d"))
    left = pgflow(pgflow_dsn, "update", "d", "put", "{}", "--id", "7", "--timeout", "0.1s")
    assert (left.code, "--id 7" in left.err) == (3, True)
    flow.app.cancel("d")
