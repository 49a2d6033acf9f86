"""A payload that the code of a run would refuse is refused where it is sent, where the workflow
declares its signals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple, NotRequired
from uuid import UUID

import psycopg
import pydantic
import pytest
from clikit import pgflow as cli
from psycopg.types.json import Jsonb
from pydantic import AfterValidator, AliasChoices, AliasPath, BeforeValidator, ConfigDict, Field
from records import SOON, launch, settle
from sqlkit import one, rows
from typing_extensions import TypedDict

from pgflow import App, InvalidArgument, Signal, upcaster, workflow
from pgflow._model.codecs import codec_for
from pgflow.errors import DefinitionError, NotStorable

Conn = psycopg.Connection[Any]


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Open(StrEnum):
    ONE = "one"

    @classmethod
    def _missing_(cls, value: object) -> Open:
        return cls.ONE


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(Enum):
    A = "a"
    B = 2


class Item(pydantic.BaseModel):
    sku: str = Field(alias="SKU")
    count: int = Field(gt=0, le=100)
    price: Decimal | None = None


class Closed(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["closed"]
    items: list[Item] = []
    at: datetime = Field(validation_alias=AliasChoices("when", "at"))


class Anywhere(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid")
    deep: int = Field(validation_alias=AliasPath("a", 0))


class Other(pydantic.BaseModel):
    type: Literal["other"]
    note: Annotated[str, AfterValidator(str.strip)] = "none"


class Coercing(pydantic.BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)
    text: str
    inner: Point | None = None


class Checked(pydantic.BaseModel):
    n: int

    @pydantic.model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        return {"n": value} if isinstance(value, int) else value


class Tree(pydantic.BaseModel):
    name: str
    children: list[Tree] = []


class Old(pydantic.BaseModel):
    items: list[str]


@upcaster(Old)
def _item_became_items(old: dict[str, Any]) -> dict[str, Any]:
    return {"items": [old["item"]]}


class Words(pydantic.RootModel[list[str]]):
    pass


@dataclass
class Point:
    x: float
    y: float = 0.0
    made: int = field(init=False, default=1)


class Row(TypedDict):
    id: int
    note: NotRequired[str]


class Pair(NamedTuple):
    a: int
    b: str = "b"


Coercing.model_rebuild()

ANNOTATIONS: list[Any] = [
    Any, None, bool, int, float, str, bytes, Decimal, UUID, date, datetime, timedelta, Colour, Open, Level, Mixed, Literal["a", "b"], Literal[1, "x"],
    Item, Closed, Anywhere, Other, Coercing, Checked, Tree, Old, Words, Point, Row, Pair, int | None, Item | None, list[int], set[str],
    tuple[int, str], tuple[int, ...], dict[str, int], dict[str, Item], Closed | Other, Annotated[Closed | Other, Field(discriminator="type")],
    Annotated[int, Field(ge=0)], Annotated[int, BeforeValidator(len)], Annotated[float, Field(lt=1.5)], list[Point | None], Point | int,
    pydantic.HttpUrl, pydantic.StrictInt, pydantic.Json, pydantic.SecretStr, frozenset[Colour],
]  # fmt: skip

PLAIN: list[Any] = [
    None, True, False, 0, 1, 2, 5, -3, 1.0, 1.5, 1e300, 2**70, "", "5", " 5 ", "five", "five5", "true", "YES", "maybe", "inf", "NaN", "red", "RED", "green", "a",
    "x", "one", "2026-01-02", "2026-01-02T03:04:05Z", "P1D", "01:02:03", "3e9", "Zm9v", "http://a.example", "9b2f1c1e-0000-4000-8000-000000000000",
    [], [1], ["1"], ["a", "b"], [1, "x"], [1, None], [[1]], [0, [1], 3], {}, {"a": 1}, {"a": "1"}, {"a": [1]}, {"a": ["x"]}, {"b": "x"}, {"a": 1, "b": "y"},
]  # fmt: skip

OBJECTS: list[Any] = [
    {"SKU": "s", "count": 1}, {"sku": "s", "count": "7"}, {"sku": "s", "count": 0}, {"SKU": "s", "count": 101}, {"SKU": "s"}, {"SKU": 1, "count": 1},
    {"SKU": "s", "sku": "t", "count": 1}, {"sku": "s", "count": 1, "price": "1.5"}, {"sku": "s", "count": 1, "price": "dear"}, {"sku": "s", "count": 1.5},
    {"type": "closed", "at": "2026-01-02"}, {"type": "closed", "when": 5}, {"type": "closed", "at": "soon"}, {"type": "closed", "at": 5, "more": 1},
    {"type": "closed", "at": 5, "items": [{"sku": "s", "count": 1}]}, {"type": "closed", "at": 5, "items": [{"sku": "s", "count": -1}]},
    {"type": "other"}, {"type": "other", "note": 1}, {"type": "other", "note": " n "}, {"type": "third"}, {"text": 1}, {"text": "a"}, {"text": [1]},
    {"text": 1, "inner": {"x": 1}}, {"n": 1}, {"n": "x"}, {"name": "a"}, {"name": "a", "children": [{"name": "b", "children": []}]},
    {"name": "a", "children": [{"nam": "b"}]}, {"items": ["a"]}, {"item": "a"}, {"x": 1}, {"x": "1"}, {"x": "one"}, {"x": 1, "y": None}, {"x": 1, "made": 3},
    {"x": 1, "extra": 3}, {"id": 1}, {"id": 1, "note": "n"}, {"id": 1, "note": None}, {"note": "n"}, {"id": 1, "more": 2},
    {"deep": 1}, {"a": [1], "deep": 2}, {"k": {"sku": "s", "count": 1}}, {"k": {"sku": "s"}},
]  # fmt: skip


def misfits(conn: Conn, annotation: Any, values: list[Any]) -> Iterator[tuple[Any, str]]:
    shape = codec_for(annotation).shape
    texts = [json.dumps(value) for value in values]
    query = "select t, pgflow.misfit_(%s, t::jsonb) from unnest(%s::text[]) with ordinality as u (t, n) order by n"
    for text, why in conn.execute(query, (Jsonb(shape), texts)).fetchall():
        if why is not None:
            yield text, why


def test_what_may_be_none_is_judged_by_what_it_is_otherwise():
    shape: Any = codec_for(int | None).shape
    assert shape == {"any": [{"is": ["null"]}, codec_for(int).shape]}
    assert codec_for(str).shape == {"is": ["string"]}


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_nothing_is_refused_that_the_code_would_take(db, annotation):
    for text, why in misfits(db, annotation, PLAIN + OBJECTS):
        with pytest.raises(NotStorable):
            value = codec_for(annotation).decode(text, "it")
            pytest.fail(f"{text} was refused ({why}), and is {value!r}")


@pytest.mark.parametrize(("annotation", "value", "says"), [
    (int, "five", 'it is "five", not a number'),
    (int, None, "it is null, and must be number or string or boolean"),
    (int, 1.5, "it is 1.5, not a whole number"),
    (str, 5, "it is number, and must be string"),
    (Colour, "green", 'it is "green", and must be one of ["red", "blue"]'),
    (Item, {"SKU": "s"}, "count is missing"),
    (Item, {"SKU": "s", "count": 0}, "count is 0, and must be more than 0 and at most 100"),
    (Closed, {"type": "closed", "at": 5, "more": 1}, "more is unknown"),
    (Closed, {"type": "closed", "at": 5, "items": [{"sku": "s", "count": 1}, {"count": 1}]}, "items[1].SKU is missing"),
    (dict[str, int], {"a": 1, "b": "x"}, 'b is "x", not a number'),
    (list[Point | None], [None, {"x": "one"}], ('[1] fits none of the types it may have (the last: '
                                               '[1].x is "one", not a number)')),
    (Tree, {"name": "a", "children": [{"nam": "b"}]}, "children[0].name is missing"),
    (datetime, "soon", 'it is "soon", not a time'),
    (Row, {"note": "n"}, "id is missing"),
])  # fmt: skip
def test_what_does_not_fit_is_said_with_its_place(db, annotation, value, says):
    ((_, why),) = misfits(db, annotation, [value])
    assert why == says


paid = Signal("paid", int)
word = Signal("word", str)


@workflow(signals=[paid])
async def order() -> list[Any]:
    return [await paid.wait(), await word.wait()]


@workflow(name="order", signals=[Signal("paid", str)], version="newer")
async def newer() -> str:
    return "never begun"


@workflow(name="order", version="silent")
async def silent() -> str:
    return "never begun"


VERBS = ("post_signal", "send_signal", "deliver_signal")


def mailbox(conn: Conn) -> list[tuple[str, str]]:
    return rows(conn, "select signal, payload::text from pgflow.messages order by message")


@pytest.mark.full
async def test_a_payload_of_the_wrong_type_is_refused_in_sql_python_and_on_the_command_line(
    aflow, conn, pgflow_dsn
):
    run = await settle(aflow, order.options(key="k"))
    for verb in VERBS:
        with pytest.raises(
            psycopg.Error,
            match="the payload of signal 'paid' does not fit the code of run 'k': it is \"five\", "
            "not a ",
        ) as refused:
            conn.execute(f"select pgflow.{verb}('k', 'paid', '\"five\"')")  # type: ignore[arg-type]
        assert refused.value.sqlstate == InvalidArgument.sqlstate
    with pytest.raises(InvalidArgument, match="it is null, and must be number"):
        await aflow.app.send("k", Signal("paid", type(None)), None)
    answer = cli(pgflow_dsn, "signal", "k", "paid", '"five"')
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "Nothing was sent" in answer.err
    assert mailbox(conn) == []
    assert one(conn, "select status from pgflow.runs where key = 'k'") == "waiting"
    conn.execute("select pgflow.send_signal('k', 'paid', '\"5\"')")
    await aflow.app.send("k", word, "anything")
    await aflow.until_idle()
    assert await run.result(SOON) == [5, "anything"]


async def test_a_signal_that_nobody_declares_is_sent_as_it_is(aflow, conn):
    await launch(aflow, order.options(key="k"))
    conn.execute("select pgflow.send_signal('k', 'word', '5')")
    assert mailbox(conn) == [("word", "5")]


def registered(conn: Conn, *codes: Any) -> int:
    from pgflow._worker.registration import code_of

    worker = one(conn, "select pgflow.register_worker('host', 1, '{default}', 1, 'test')")
    conn.execute(
        "select pgflow.register_code(%s, %s)",
        (worker, Jsonb([code_of("order", code) for code in codes])),
    )
    return int(worker)


def is_sent(conn: Conn, payload: str) -> bool:
    try:
        with conn.transaction():
            conn.execute("select pgflow.post_signal('k', 'paid', %s)", (payload,))
    except psycopg.Error as error:
        if error.sqlstate != InvalidArgument.sqlstate:
            raise
        return False
    return True


def test_what_one_of_the_codes_takes_that_are_served_is_sent(db):
    db.execute("select pgflow.start_run('order', key => 'k')")
    assert is_sent(db, "[]"), "nobody has said anything"
    first = registered(db, order)
    assert [is_sent(db, payload) for payload in ("5", '"five"', "[]")] == [True, False, False]
    second = registered(db, newer)
    assert [is_sent(db, payload) for payload in ("5", '"five"', "[]")] == [True, True, False]
    db.execute("select pgflow.leave_worker(%s)", (first,))
    assert [is_sent(db, payload) for payload in ("5", '"five"')] == [False, True]
    db.execute("select pgflow.leave_worker(%s)", (second,))
    found = [is_sent(db, payload) for payload in ("5", '"five"')]
    assert found == [False, True], "nobody is there, and it was served last"
    registered(db, order, silent)
    assert is_sent(db, "[]"), "a code that does not say takes anything"


def test_a_run_that_is_pinned_has_the_types_of_its_version(db):
    registered(db, order, newer)
    db.execute("select pgflow.start_run('order', key => 'k', version => 'newer')")
    assert [is_sent(db, payload) for payload in ("5", '"five"')] == [False, True]


def test_a_message_is_neither_replaced_nor_requeued_by_one_of_the_wrong_type(db):
    db.execute("select pgflow.start_run('order', key => 'k')")
    number = one(db, "select message_id from pgflow.post_signal('k', 'paid', '\"five\"')")
    registered(db, order)
    for verb in ("replace_message('k', %s, '\"six\"')", "requeue_message('k', %s)"):
        with pytest.raises(psycopg.Error, match="not a number"), db.transaction():
            db.execute(f"select pgflow.{verb}", (number,))  # type: ignore[arg-type]
    db.execute("select pgflow.replace_message('k', %s, '6')", (number,))
    assert mailbox(db) == [("paid", "6")]


def test_what_a_key_has_sent_is_answered_though_other_code_came_since(db):
    db.execute("select pgflow.start_run('order', key => 'k')")
    query = "select message_id from pgflow.post_signal('k', 'paid', '\"five\"', idempotency_key => 'once')"
    number = one(db, query)
    registered(db, order)
    assert one(db, query) == number


def test_a_signal_is_sent_by_itself_and_not_by_its_name(dsn):
    with App(dsn) as app, pytest.raises(InvalidArgument, match=r"such as Signal\('paid', int\)"):
        app.send("order-1", "paid", 500)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("signals", "says"),
    [
        ([int], "takes objects of pgflow.Signal"),
        ([paid, Signal("paid", str)], "names a signal twice"),
    ],
)
def test_what_is_no_signal_is_refused_where_it_is_declared(signals, says):
    with pytest.raises(DefinitionError, match=says):

        @workflow(signals=signals)
        async def broken() -> None:
            pass


def test_types_are_forgotten_with_their_code(db):
    db.execute("select pgflow.leave_worker(%s)", (registered(db, order),))
    assert one(db, "select count(*) from pgflow.code_signal") == 1
    db.execute("select pgflow.drop_old_code_(pgflow.now_() + interval '1 h')")
    assert one(db, "select count(*) from pgflow.code_signal") == 0
