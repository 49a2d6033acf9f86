"""A value that a gate asks for is written in fields, as its type has them; whatever cannot stand in one
is said at that field, and nothing that was written is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal

import pydantic
import pytest
from pydantic import Field
from records import SOON, launch, settle
from webkit import Browser, Reader

import pgflow
from pgflow import workflow
from pgflow._model.codecs import codec_for
from pgflow.web import Principal
from pgflow.web.forms import ABSENT, form_of, written

OPS = Principal("dora", ["approve"], acts_as=["ops"])


class Currency(Enum):
    EUR = "EUR"
    USD = "USD"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Line:
    sku: Annotated[str, Field(min_length=2, max_length=8, description="Of the shelf")]
    qty: Annotated[int, Field(ge=1, le=99)]


class Address(pydantic.BaseModel):
    street: str
    zip: str | None = None


class Refund(pydantic.BaseModel):
    lines: list[Line]
    total: Decimal
    currency: Currency
    level: Level = Level.LOW
    due: date | None = None
    at: datetime | None = None
    note: str = ""
    way: Literal["card", "bank"] | None = None
    meta: dict[str, int] = {}
    is_rush: bool = False
    send_to: Address | None = None
    either: int | str = 1


def refund() -> Refund:
    lines = [Line("boots", 2), Line("tent", 1)]
    return Refund(lines=lines, total=Decimal("10.50"), currency=Currency.EUR, meta={"a/b": 1})


@workflow
async def pay_back() -> str:
    verdict = await pgflow.authority.gate("refund", refund(), approvers=["ops"])
    return repr(verdict.value) if isinstance(verdict, pgflow.authority.Approved) else repr(verdict)


@workflow
async def choose() -> str:
    verdict = await pgflow.authority.gate("choose", {"of": "many"}, answer=Line, approvers=["ops"])
    return repr(verdict)


def of(
    annotation: Any,
    value: Any = ABSENT,
    typed: dict[str, str] | None = None,
    add: str | None = None,
) -> Any:
    """Return the form for a value of a type."""
    return form_of(codec_for(annotation, "a value").shape, value, typed, add)


def shown(form: Any) -> dict[str, str]:
    """Return what a browser sends of a form that nobody has touched."""
    sent = {} if form.parts else {form.input: form.text}
    if form.is_there:
        sent[f"has:{form.pointer}"] = "1"
    for part in form.parts:
        sent |= shown(part)
    return sent


PLAIN = {
    "lines": [{"sku": "boots", "qty": 2}], "total": "10.50", "currency": "EUR", "level": 1,
    "due": None, "at": None, "note": "", "way": None, "meta": {"a/b": 1}, "is_rush": False,
    "send_to": None, "either": 1, "unknown": {"to": ["all"]},
}  # fmt: skip


def test_each_type_has_a_field_of_its_kind():
    form = of(Refund, PLAIN)
    kinds = {one.pointer: one.kind for one in [*form.leaves, *form.parts]}
    assert kinds == {
        "/lines": "list",
        "/lines/0/sku": "text",
        "/lines/0/qty": "number",
        "/total": "number",
        "/currency": "choice",
        "/level": "choice",
        "/due": "date",
        "/at": "text",
        "/note": "text",
        "/way": "choice",
        "/meta": "group",
        "/meta/a~1b": "number",
        "/is_rush": "choice",
        "/send_to": "group",
        "/send_to/street": "text",
        "/send_to/zip": "text",
        "/either": "json",
    }
    fields = {one.pointer: one for one in form.leaves}
    found = fields["/lines/0/sku"].hint
    assert found == "Of the shelf, at least 2 characters, at most 8 characters"
    assert fields["/lines/0/qty"].hint == "a whole number, at least 1, at most 99"
    assert fields["/level"].choices == [("", "nothing"), ("1", "1"), ("2", "2")]
    assert fields["/way"].choices[0] == ("null", "nothing")
    assert form.result == PLAIN


def test_what_nobody_has_touched_stays_as_it_is_to_the_letter():
    odd = {
        "a": 1e-7,
        "b": 12345678901234567890,
        "c": "x\u200by",
        "d": "1\r\n2",
        "e": "",
        "f": "\nfirst",
        "g": {"h": None, "i": [1, {"j": 2}]},
        "k": True,
    }
    for annotation in (dict[str, Any], Any):
        form = of(annotation, odd)
        assert of(annotation, odd, shown(form)).result == odd
    unfit = {"sku": "", "qty": 100}
    assert of(Line, unfit, shown(of(Line, unfit))).wrong == []
    assert "\u200b" not in shown(of(dict[str, Any], odd))["value:/c"]
    assert written("x\u200by") == '"x\\u200by"'


@pytest.mark.parametrize(
    ("pointer", "text", "result"),
    [
        ("/total", "11.10", "11.10"), ("/total", "many", None), ("/total", "NaN", None),
        ("/lines/0/qty", " 3 ", 3), ("/lines/0/qty", "0", None), ("/lines/0/qty", "1.5", None),
        ("/lines/0/qty", "", None), ("/lines/0/qty", "1" * 5000, None),
        ("/lines/0/sku", "x", None), ("/lines/0/sku", "far too long", None),
        ("/currency", '"USD"', "USD"), ("/currency", '"GBP"', None), ("/level", "2", 2),
        ("/due", "2026-02-28", "2026-02-28"), ("/due", "2026-02-30", None),
        ("/at", "noon", None), ("/note", "a\nb", "a\nb"), ("/way", '"bank"', "bank"),
        ("/is_rush", "true", True), ("/is_rush", "yes", None), ("/meta/a~1b", "7", 7),
        ("/either", '"five"', "five"), ("/either", "five", None), ("/either", "[" * 100_000, None),
    ],
)  # fmt: skip
def test_a_field_takes_what_its_type_takes_and_says_so_otherwise(pointer, text, result):
    form = of(Refund, PLAIN, {**shown(of(Refund, PLAIN)), f"value:{pointer}": text})
    (one,) = [field for field in form.leaves if field.pointer == pointer]
    assert (one.text, bool(one.error)) == (text, result is None)
    assert [field.pointer for field in form.wrong] == ([pointer] if result is None else [])
    assert "\n" not in one.error
    assert len(one.error) < 150
    if result is not None:
        found = form.result
        for name in pointer.split("/")[1:]:
            found = found[int(name) if name.isdigit() else name.replace("~1", "/")]
        assert found == result


def test_what_is_cleared_is_null_empty_or_left_out():
    value = {**PLAIN, "due": "2026-01-01", "note": "x", "way": "card"}
    cleared = {"value:/due": "", "value:/note": "", "value:/way": "", "value:/level": ""}
    form = of(Refund, value, {**shown(of(Refund, value)), **cleared})
    assert not form.wrong
    assert (form.result["due"], form.result["note"], form.result["way"]) == (None, "", None)
    assert "level" not in form.result


def test_parts_that_may_be_missing_are_ticked_and_rows_are_added_and_left_out():
    typed = {**shown(of(Refund, PLAIN)), "value:/send_to/street": "Main St"}
    assert of(Refund, PLAIN, typed).result["send_to"] is None
    there = of(Refund, PLAIN, {**typed, "has:/send_to": "1"})
    assert there.result["send_to"] == {"street": "Main St"}
    typed |= {"rows:/lines": "2"}
    more = of(Refund, PLAIN, {**typed, "rows:/lines": "1"}, add="/lines")
    assert [one.pointer for one in more.leaves if one.is_new] == ["/lines/1/sku"]
    empty = of(Refund, PLAIN, typed)
    assert (empty.wrong, empty.result["lines"]) == ([], PLAIN["lines"])
    half = of(Refund, PLAIN, {**typed, "value:/lines/1/sku": "rope"})
    assert [(one.pointer, one.error) for one in half.wrong] == [("/lines/1/qty", "Fill this in.")]
    typed |= {"value:/lines/1/sku": "rope", "value:/lines/1/qty": "4", "drop:/lines/0": "1"}
    assert of(Refund, PLAIN, typed).result["lines"] == [{"sku": "rope", "qty": 4}]
    assert len(list(of(list[int], [], {"rows:": "9" * 9}).leaves)) == 0


def test_a_value_with_too_many_parts_is_written_as_json():
    assert of(Any, {str(n): n for n in range(101)}) is None
    assert of(Any, [1, 2]) is None
    assert of(list[dict[str, int]]) is not None


@pytest.mark.full
async def test_a_gate_is_answered_in_fields_and_shows_again_what_was_written(aflow, conn):
    run = await launch(aflow, pay_back.options(key="r"), beside=[choose])
    chosen = await settle(aflow, choose.options(key="c"))
    (gate, path), (other, asked) = [
        (one.gate, f"/gate?gate={one.gate}")
        for one in sorted(await aflow.gates(), key=lambda g: -len(g.name) - (g.name > "d"))
    ]
    browser = Browser(aflow.app, OPS)
    edit = {"verdict": "edit"}
    answer = await browser.submit(
        path,
        edit,
        **{"value:/total": "many", "value:/lines/0/qty": "100", "value:/note": "<b>"},
        why="so",
    )
    page = Reader(answer.text)
    assert answer.status_code == 400
    assert "2 fields cannot be as written. Nothing was answered." in page.words
    assert "many is not a number." in page.words
    assert "100 is too large: at most 99." in page.words
    assert {"#f/total", "#f/lines/0/qty"} <= set(page.links)
    form = next(one for one in page.forms if one.fields.get("verdict") == "edit")
    assert [form.fields[n] for n in ("value:/total", "value:/note", "why")] == ["many", "<b>", "so"]
    answer = await browser.send(form, turn="/lines")
    page = Reader(answer.text)
    form = next(one for one in page.forms if one.fields.get("verdict") == "edit")
    assert (answer.status_code, form.fields["value:/total"]) == (200, "many")
    changed = {
        "value:/total": "11.00",
        "value:/lines/0/qty": "3",
        "drop:/lines/1": "1",
        "value:/lines/2/sku": "rope",
        "value:/lines/2/qty": "4",
        "value:/level": "2",
    }
    late = {**form.fields, "hash": "0" * 64}
    answer = await browser.client.post(
        path, data={**late, **changed}, headers={"origin": "http://127.0.0.1"}
    )
    assert (answer.status_code, "lines/2/sku: rope" in answer.text) == (409, True)
    assert (await browser.send(form, **changed)).headers["location"] == "/gates?done=approve"
    page = await browser.get(asked)
    form = next(one for one in page.forms if "value:/sku" in one.fields)
    assert (await browser.send(form, **{"value:/sku": "mat"})).status_code == 400
    assert (await browser.send(form, **{"value:/sku": "mat", "value:/qty": "1"})).status_code == 303
    await aflow.until_idle()
    assert await run.result(SOON) == repr(
        refund().model_copy(
            update={
                "total": Decimal("11.00"),
                "lines": [Line("boots", 3), Line("rope", 4)],
                "note": "<b>",
                "level": Level.HIGH,
            }
        )
    )
    assert "Line(sku='mat', qty=1)" in await chosen.result(SOON)
