"""Effects that rest on what was seen: they act on that, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pydantic
import pytest
import sqlkit
from records import HOUR, SOON, result_of, settle

import pgflow
from pgflow import InvalidArgument, Retries, read, workflow
from pgflow.effects import Absent, Confirmed, StillUnknown, effect, fingerprint
from pgflow.errors import DefinitionError, Diverged, NotStorable

SLOWLY = Retries(
    max_attempts=4, first_delay=timedelta(minutes=1), backoff=1, max_delay=timedelta(minutes=1)
)


@dataclass
class Page:
    """Page of a shop, as an agent sees it."""

    title: str
    cents: int


class Site:
    """A page that changes under whoever looks at it."""

    def __init__(self) -> None:
        self.page = Page("cart", 100)
        self.presses: list[str] = []
        self.looks = 0
        self.changes_after: dict[int, Page] = {}

    def look(self) -> Page:
        self.looks += 1
        seen = self.page
        self.page = self.changes_after.get(self.looks, seen)
        return seen

    def press(self, button: str) -> str:
        self.presses.append(f"{button} at {self.page.cents}")
        return self.presses[-1]


SITES: list[Site] = []


@pytest.fixture
def site() -> Site:
    SITES.append(Site())
    return SITES[-1]


@read
async def look() -> Page:
    return SITES[-1].look()


@effect(risk="irreversible")
async def press(button: str) -> str:
    return SITES[-1].press(button)


@press.observe
async def _(button: str) -> Page:
    del button
    return SITES[-1].look()


@workflow
async def shop() -> str:
    for _ in range(3):
        page = await look()
        try:
            return await press.options(expect=fingerprint(page))("buy")
        except Diverged:
            continue
    return "gave up"


def rows(conn: psycopg.Connection[Any], columns: str) -> list[tuple[Any, ...]]:
    return conn.execute(f"select {columns} from pgflow.effects order by run_id, call").fetchall()  # type: ignore[call-overload,no-any-return]


async def test_an_effect_acts_on_what_it_expects(aflow, conn, site):
    assert await result_of(aflow, shop) == "buy at 100"
    assert site.looks == 2
    expects = sqlkit.one(conn, "select payload->>'expects' from pgflow.unit where kind = 'i'")
    assert expects == fingerprint({"cents": 100, "title": "cart"})


async def test_an_effect_does_not_act_when_what_it_expects_has_changed(aflow, conn, site):
    site.changes_after = {1: Page("cart", 150)}
    assert await result_of(aflow, shop) == "buy at 150", "it has decided again"
    assert site.presses == ["buy at 150"]
    assert rows(conn, "status, attempts") == [("failed", 1), ("confirmed", 1)]
    ((error,),) = conn.execute("select payload from pgflow.unit where kind = 'F'").fetchall()
    assert error["fields"] == {
        "expected": fingerprint(Page("cart", 100)),
        "observed": fingerprint(Page("cart", 150)),
    }
    assert "cart" not in str(error)


def test_sync_effects_expect_alike_and_a_run_may_end_by_it(flow, conn, site):
    @effect(risk="reversible")
    def click(button: str) -> str:
        return SITES[-1].press(button)

    @click.observe
    def _(button: str) -> Page:
        del button
        return SITES[-1].look()

    @workflow
    def clicker(cents: int) -> str:
        return click.options(expect=fingerprint(Page("cart", cents)))("buy")

    assert result_of(flow, clicker, 100) == "buy at 100"
    with pytest.raises(pgflow.RunFailed) as failed:
        flow.start(clicker, 90).result(SOON)
    cause = failed.value.__cause__
    assert isinstance(cause, Diverged)
    assert (cause.expected, cause.observed) == (
        fingerprint(Page("cart", 90)),
        fingerprint(Page("cart", 100)),
    )
    assert site.presses == ["buy at 100"]


async def test_what_is_observed_is_observed_again_when_observing_failed(aflow, conn, site):
    @effect(risk="reversible")
    async def click() -> str:
        return site.press("buy")

    @click.observe
    async def _() -> Page:
        page = site.look()
        if site.looks == 1:
            site.page = Page("cart", 150)
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return page

    @workflow
    async def clicker() -> str:
        try:
            return await click.options(expect=fingerprint(Page("cart", 100)))()
        except Diverged:
            return "changed"

    assert await result_of(aflow, clicker) == "changed"
    assert (site.looks, site.presses) == (2, [])


async def test_what_may_have_acted_is_not_judged_by_what_is_observed_after_it(aflow, conn, site):
    @effect(risk="compensable", dedup_window=HOUR, settle_retries=SLOWLY)
    async def click() -> str:
        site.press("buy")
        site.page = Page("thank you", 0)
        raise ConnectionResetError("no reply")

    @click.observe
    async def _() -> Page:
        return site.look()

    @click.settle
    async def _() -> Confirmed[str] | Absent | StillUnknown:
        return Confirmed("found")

    @workflow
    async def clicker() -> str:
        try:
            return await click.options(expect=fingerprint(Page("cart", 100)))()
        except Diverged:
            return "nothing was done"

    run = await settle(aflow, clicker)
    await aflow.skip(timedelta(minutes=2))
    await aflow.skip(timedelta(minutes=2))
    assert await run.result(SOON) == "found"
    assert len(site.presses) == 1


async def test_what_is_absent_is_observed_anew_before_it_is_tried_again(aflow, conn, site):
    @effect(risk="compensable", settle_retries=SLOWLY, timeout=timedelta(seconds=20))
    async def click() -> str:
        site.page = Page("sold out", 0)
        raise ConnectionResetError("it never arrived")

    @click.observe
    async def _() -> Page:
        return site.look()

    @click.settle
    async def _() -> Confirmed[str] | Absent | StillUnknown:
        return Absent()

    @workflow
    async def clicker() -> str:
        try:
            return await click.options(expect=fingerprint(Page("cart", 100)))()
        except Diverged as diverged:
            return diverged.observed

    run = await settle(aflow, clicker)
    await aflow.skip(timedelta(minutes=2))
    await aflow.skip(timedelta(minutes=2))
    assert await run.result(SOON) == fingerprint(Page("sold out", 0))
    assert rows(conn, "status, attempts") == [("failed", 2)]


async def test_expecting_something_needs_a_fingerprint_and_an_observer(aflow, site):
    @effect(risk="reversible")
    async def blind() -> None: ...

    with pytest.raises(InvalidArgument, match=r"pgflow\.effects\.fingerprint\(\)"):
        blind.options(expect="cart")
    with pytest.raises(
        DefinitionError, match="the observer of effect blind must be written with async def"
    ):
        blind.observe(lambda: None)  # type: ignore[arg-type,return-value]

    @workflow
    async def groper() -> None:
        await blind.options(expect=fingerprint(1))()

    with pytest.raises(pgflow.RunFailed, match="declare @blind.observe"):
        await result_of(aflow, groper)


class Model(pydantic.BaseModel):
    """A page as a model."""

    cents: int
    title: str


@pytest.mark.parametrize(
    "alike",
    [
        [
            Page("cart", 100),
            {"cents": 100, "title": "cart"},
            Model(title="cart", cents=100),
            {"title": "cart", "cents": 100.0},
        ],
        [(1, 2.5), [1.0, 2.5]],
        [{3, 1, 2}, {2, 3, 1}],
        [Decimal("1.10"), "1.10"],
        [date(2026, 5, 1), "2026-05-01"],
        [datetime(2026, 5, 1, tzinfo=UTC), "2026-05-01T00:00:00Z"],
        [None],
    ],
    ids=str,
)
def test_equal_values_have_equal_fingerprints(alike):
    assert len({fingerprint(value) for value in alike}) == 1


def test_a_fingerprint_is_the_same_in_every_version_and_different_for_different_values():
    found = fingerprint({"b": [1, True, None], "a": "ä"})
    assert found == "sha256:108af0d49fd6b4becc0d64f2afb8f965cd236f201d6e3a7f7c951940c64aaec8"
    different = [
        0,
        1,
        -1,
        1.5,
        "1",
        True,
        False,
        None,
        [],
        {},
        [0],
        [[]],
        {"a": 1},
        {"a": 2},
        {"b": 1},
        2**53,
        2**53 + 1,
    ]
    assert len({fingerprint(value) for value in different}) == len(different)


@pytest.mark.parametrize(
    "value", [float("nan"), object(), [float("inf")]], ids=["nan", "object", "inf"]
)
def test_what_has_no_form_as_json_has_no_fingerprint(value):
    with pytest.raises(NotStorable, match="what is to be fingerprinted"):
        fingerprint(value)
