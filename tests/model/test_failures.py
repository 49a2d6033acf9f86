"""Errors as data: what is kept of them, as what they come back, and that they can always be
stored.
"""

from __future__ import annotations

import asyncio
import builtins
import json
from pathlib import Path
from typing import Any, Self

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import settle

import pgflow
from pgflow import errors as pgflow_errors
from pgflow import step, workflow
from pgflow._model.codecs import MAX_BYTES
from pgflow._model.durations import duration, seconds
from pgflow._model.exceptions import (
    MAX_MESSAGE_CHARS,
    ErrorClasses,
    clean,
    encode_error,
    rebuild_error,
)
from pgflow.errors import NotStorable, PgflowError, RunFailed, StepFailed

NOBODY = ErrorClasses()


class Declined(Exception):
    """Its constructor asks for more than its arguments keep."""

    constructed = 0

    def __init__(self, code: int, *, reason: str) -> None:
        type(self).constructed += 1
        super().__init__(f"declined with {code}")
        self.code = code
        self.reason = reason


class DeclinedForever(Declined):
    pass


class Terse(Exception):
    """It never calls the constructor of its base."""

    def __init__(self, code: int) -> None:
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


class BadRow(ValueError):
    """Its text is its own, and its arguments are none."""

    def __init__(self, row: int) -> None:
        super().__init__()
        self.row = row

    def __str__(self) -> str:
        return f"row {self.row} is bad"


class Unspeakable(LookupError):
    def __str__(self) -> str:
        raise RuntimeError("not even this")

    __repr__ = __str__


class Picky(ValueError):
    """Its ``__new__`` needs what its arguments do not keep."""

    def __new__(cls, first: int, second: int) -> Self:
        return super().__new__(cls, first, second)

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first)


class Finished(StopIteration):
    pass


def through_json(error: BaseException) -> dict[str, Any]:
    return json.loads(json.dumps(encode_error(error)))


def there_and_back(error: BaseException, *known: type[Exception]) -> Exception:
    return rebuild_error(through_json(error), ErrorClasses(known))


def caught(act: Any) -> Exception:
    try:
        act()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_builtin_error_comes_back_as_itself():
    error = there_and_back(ValueError("no", {"a": [1, None]}))
    assert type(error) is ValueError
    assert error.args == ("no", {"a": [1, None]})


def test_a_known_class_comes_back_without_its_constructor():
    original = Declined(402, reason="too much")
    before = Declined.constructed
    error = there_and_back(original, Declined)
    assert type(error) is Declined
    assert (error.code, error.reason, str(error)) == (402, "too much", "declined with 402")
    assert Declined.constructed == before


def test_an_unknown_subclass_comes_back_as_its_nearest_known_class():
    error = there_and_back(DeclinedForever(402, reason="too much"), Declined)
    assert type(error) is Declined
    assert error.reason == "too much"


def test_a_class_of_which_nothing_is_known_comes_back_as_a_failed_step():
    error = rebuild_error(through_json(Declined(402, reason="too much")), NOBODY, attempts=3)
    assert isinstance(error, StepFailed)
    assert (error.error_type, error.message, error.attempts) == (
        f"{__name__}.Declined",
        "declined with 402",
        3,
    )
    assert str(error) == f"{__name__}.Declined: declined with 402"


def test_a_plain_exception_comes_back_as_a_failed_step():
    error = there_and_back(Exception("plain"))
    assert isinstance(error, StepFailed)
    assert error.error_type == "Exception"


def test_a_class_is_known_by_module_and_name_and_nothing_is_imported():
    data = encode_error(ValueError("x"))
    data["mro"] = ["os.ValueError", "nonexistent.module.Error", "builtins.LookupError"]
    assert type(rebuild_error(data, NOBODY)) is LookupError


@pytest.mark.parametrize(
    "cls",
    [
        c
        for c in vars(builtins).values()
        if isinstance(c, type)
        and issubclass(c, Exception)
        and not issubclass(c, (ExceptionGroup, StopIteration, StopAsyncIteration))
        and c is not Exception
        and not issubclass(c, UnicodeError)
    ],
)
def test_every_builtin_error_comes_back_with_its_class_and_text(cls):
    original = cls("the text")
    error = there_and_back(original)
    assert type(error) is type(original)
    assert str(error) == str(original)


@pytest.mark.parametrize(
    "cls",
    [
        c
        for c in vars(pgflow_errors).values()
        if isinstance(c, type) and issubclass(c, PgflowError) and c is not StepFailed
    ],
)
def test_every_error_of_ours_comes_back(cls):
    error = there_and_back(cls("the text"))
    assert type(error) is cls
    assert str(error) == "the text"


def test_a_failed_step_comes_back_as_it_was():
    error = there_and_back(StepFailed("shop.Declined", "no", 3))
    assert isinstance(error, StepFailed)
    assert (error.error_type, error.message, error.attempts) == ("shop.Declined", "no", 3)


def test_a_key_error_keeps_its_key():
    error = there_and_back(KeyError("name"))
    assert (type(error), error.args, str(error)) == (KeyError, ("name",), "'name'")


def test_an_os_error_keeps_number_and_reason():
    error = there_and_back(caught(Path("/nonexistent/file").read_text))
    assert isinstance(error, FileNotFoundError)
    assert (error.errno, error.strerror) == (2, "No such file or directory")


def test_an_os_error_keeps_its_file():
    original = caught(Path("/nonexistent/file").read_text)
    error = there_and_back(original)
    assert error.filename == "/nonexistent/file"
    assert str(error) == str(original)


def test_an_exception_group_comes_back_as_a_failed_step_that_names_it():
    error = there_and_back(ExceptionGroup("both", [ValueError(1), KeyError(2)]))
    assert isinstance(error, StepFailed)
    assert str(error) == "ExceptionGroup: both (2 sub-exceptions)"


@pytest.mark.parametrize("original", [
    StopIteration(1), StopAsyncIteration(1), asyncio.CancelledError("x"), SystemExit(3),
    KeyboardInterrupt(), GeneratorExit(),
])  # fmt: skip
def test_what_steers_python_itself_never_comes_back_as_itself(original):
    assert isinstance(there_and_back(original), StepFailed)


def test_no_error_that_a_future_refuses_comes_back_though_it_was_declared():
    assert isinstance(there_and_back(Finished(1), Finished), StepFailed)


def test_a_class_that_cannot_be_made_without_its_constructor_gives_way_to_its_base():
    assert type(there_and_back(Picky(1, 2), Picky)) is ValueError


def test_a_known_class_that_makes_its_text_from_fields_has_its_text():
    assert str(there_and_back(Terse(7), Terse)) == "code 7"


def test_an_unknown_class_that_makes_its_text_from_fields_has_its_text_in_the_failed_step():
    assert str(there_and_back(Terse(7))) == f"{__name__}.Terse: code 7"


@pytest.mark.parametrize("original", [
    BadRow(7), caught(lambda: pydantic.TypeAdapter(int).validate_python("x")),
    caught(b"\xff".decode), caught("\ud800".encode),
], ids=["own text", "pydantic", "UnicodeDecodeError", "UnicodeEncodeError"])  # fmt: skip
def test_an_error_that_comes_back_as_a_base_class_keeps_its_text(original):
    error = there_and_back(original)
    assert isinstance(error, ValueError)
    assert str(error) == clean(str(original))


def test_an_error_whose_text_cannot_be_read_is_stored_all_the_same():
    error = there_and_back(Unspeakable())
    assert "text cannot be read" in str(through_json(Unspeakable())["message"])
    assert isinstance(error, LookupError)


def test_arguments_that_are_not_json_are_kept_as_text():
    error = there_and_back(ValueError(b"\xff", (1, 2), float("nan"), 10**5000, object))
    assert error.args == ("b'\\xff'", [1, 2], "nan", "(int)", "<class 'object'>")


def test_fields_that_are_not_json_are_left_out():
    original = ValueError("x")
    original.code, original.connection = 7, object()  # type: ignore[attr-defined]
    assert through_json(original)["fields"] == {"code": 7}


def test_a_traceback_names_lines_and_no_values():
    def fail() -> None:
        secret = "hunter2"
        raise ValueError(len(secret))

    data = through_json(caught(fail))
    assert any("fail: raise ValueError(len(secret))" in line for line in data["traceback"])
    found = json.dumps([line for line in data["traceback"] if "secret = " not in line])
    assert "hunter2" not in found


def test_one_line_of_the_engine_says_no_more_than_the_call_above_it():
    (line,) = through_json(caught(lambda: duration("soon", "a nap")))["traceback"][1:]  # type: ignore[call-overload]
    assert "<lambda>: (line,) = " in line


def test_what_the_engine_came_to_itself_keeps_its_lines():
    lines = through_json(caught(lambda: seconds("soon", "a nap")))["traceback"]
    assert [line.split(":")[0].rsplit("/", 1)[-1] for line in lines[-2:]] == ["durations.py"] * 2


@pytest.mark.full
def test_a_traceback_leaves_out_the_engine_that_runs_the_code(flow, conn):
    @step
    async def declines() -> None:
        raise ValueError("no")

    @workflow
    async def asks() -> None:
        await declines()

    @workflow
    def asks_sync() -> None:
        declines.sync()

    flow.include(asks, asks_sync)
    for code, line in ((asks, "asks: await declines()"), (asks_sync, "asks_sync: declines.sync()")):
        settle(flow, code.options(key=line))
        of_run = conn.execute(
            "select error->'traceback' from pgflow.runs where key = %s", (line,)
        ).fetchone()
        assert of_run is not None
        assert [told.split(" ", 1)[1] for told in of_run[0]] == [line]
    of_step = conn.execute(
        "select payload->'traceback' from pgflow.unit where kind = 'f'"
    ).fetchone()
    assert of_step is not None
    assert [line.split(" ", 1)[1] for line in of_step[0]] == ['declines: raise ValueError("no")']


def test_a_deep_recursion_leaves_a_short_traceback():
    def dig(n: int) -> None:
        dig(n + 1)

    data = through_json(caught(lambda: dig(0)))
    assert data["type"] == "builtins.RecursionError"
    assert len(data["traceback"]) <= 30


class Odd(Exception):
    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args)
        vars(self).update(fields)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
odd_errors = st.builds(
    lambda cls, args, fields: Odd(*args, **fields) if cls is Odd else cls(*args),
    st.sampled_from(
        [Odd, ValueError, KeyError, RuntimeError, ConnectionError, RunFailed, NotStorable]
    ),
    st.lists(anything, max_size=3),
    st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), anything, max_size=3),
)


def likeness(error: Exception) -> tuple[Any, ...]:
    return type(error), repr(error.args), repr(vars(error)), str(error)


@pytest.mark.full
@settings(max_examples=300, deadline=None)
@given(odd_errors)
def test_an_error_comes_back_the_same_from_the_same_data_and_a_second_journey_changes_nothing(
    original,
):
    data = through_json(original)
    once = rebuild_error(data, ErrorClasses([Odd]))
    found = likeness(once)
    assert found == likeness(rebuild_error(json.loads(json.dumps(data)), ErrorClasses([Odd])))
    assert likeness(there_and_back(once, Odd)) == likeness(once)
    assert type(once) is type(original)


def test_the_data_is_not_changed_by_who_rebuilds_from_it():
    data = through_json(Odd(1, inner={"a": 1}))
    before = json.dumps(data)
    error = rebuild_error(data, ErrorClasses([Odd]))
    error.extra = 1  # type: ignore[attr-defined]
    error.args += (2,)
    assert json.dumps(data) == before


def test_the_first_run_sees_what_a_replay_will_see():
    data = encode_error(Odd((1, 2), inner={1: (2,)}))
    found = likeness(rebuild_error(data, ErrorClasses([Odd])))
    assert found == likeness(rebuild_error(json.loads(json.dumps(data)), ErrorClasses([Odd])))


def raised_from(error: Exception, cause: BaseException | None) -> Exception:
    error.__cause__ = cause
    return error


def causes_of(error: BaseException) -> list[BaseException]:
    found = []
    while error.__cause__ is not None:
        error = error.__cause__
        found.append(error)
    return found


def test_causes_come_back_as_themselves_one_behind_the_other():
    original = raised_from(
        RunFailed("child"),
        raised_from(Declined(402, reason="x"), raised_from(KeyError("k"), Odd(1))),
    )
    error = there_and_back(original, Declined)
    assert [type(cause) for cause in causes_of(error)] == [Declined, KeyError, StepFailed]
    assert str(error.__cause__) == "declined with 402"


def test_the_cause_of_an_error_of_which_nothing_is_known_comes_back_too():
    error = there_and_back(raised_from(Odd("x"), ValueError("why")))
    assert isinstance(error, StepFailed)
    assert repr(error.__cause__) == "ValueError('why')"


def test_causes_that_go_round_or_on_for_ever_are_cut():
    one, other = ValueError(1), ValueError(2)
    raised_from(one, raised_from(other, one))
    assert len(causes_of(there_and_back(one))) == 1
    endless: Exception | None = None
    for number in range(10_000):
        endless = raised_from(ValueError(number), endless)
    assert endless is not None
    assert 3 < len(causes_of(there_and_back(endless))) < 20


HORRORS: dict[str, Any] = {
    "NUL": lambda: ValueError("a\0b", {"\0": "\0"}),
    "surrogate": lambda: ValueError("a\ud800b", {"\udfff": "\ud800"}),
    "NUL in a field": lambda: Odd("x", field="\0", other=["\0"]),
    "NUL in the name of a field": lambda: Odd("x", **{"a\0": 1, "b\ud800": 1}),
    "a huge text": lambda: ValueError("x" * 5_000_000),
    "many large arguments": lambda: ValueError(*["x" * 60_000] * 40),
    "many large fields": lambda: Odd("x", **{f"f{i}": "x" * 60_000 for i in range(40)}),
    "many arguments": lambda: ValueError(*range(500_000)),
    "nested deeply": lambda: ValueError(json.loads("[" * 900 + "]" * 900)),
    "holding itself": lambda: ValueError(holding_itself()),
    "a name that is no text": lambda: type(
        "A", (ValueError,), {"__module__": "m\0", "__qualname__": "A\ud800"}
    )("x"),
    "a long name": lambda: type("A" * 100_000, (ValueError,), {})("x"),
    "a long line of classes": lambda: long_family()("x"),
    "a group": lambda: ExceptionGroup("g" * 100_000, [ValueError("\0" * 10_000)] * 100),
    "broken text": Unspeakable,
    "no text at all": lambda: type("E", (ValueError,), {"__str__": lambda _: 5})("x"),
    "fields without names": lambda: with_numbered_field(),  # noqa: PLW0108 - it is defined below
    "arguments that fail": lambda: type("E", (ValueError,), {"args": property(lambda _: 1 / 0)})(
        "x"
    ),
    "an argument that fails": lambda: ValueError(FailingDict(a=1)),
    "huge causes": lambda: raised_from(
        ValueError("ä" * 99_999),
        raised_from(Odd(*["x" * 60_000] * 9), raised_from(Odd(*["y" * 60_000] * 9), Odd("\0"))),
    ),
    "all at once": lambda: with_everything(),  # noqa: PLW0108 - as above
    "fields that cannot be had": lambda: type(
        "E", (ValueError,), {"__dict__": property(lambda _: 1 / 0)}
    )("x"),
    "an argument whose class lies": lambda: ValueError(
        type("L", (), {"__class__": property(lambda _: 1 / 0)})()
    ),
}


class FailingDict(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items today")

    __repr__ = __str__ = items  # type: ignore[assignment]


def holding_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def long_family(tail: str = "x" * 10_000) -> type[Exception]:
    cls: type[Exception] = ValueError
    for i in range(150):
        cls = type(f"E{i}{tail}", (cls,), {})
    return cls


def with_numbered_field() -> Exception:
    error = ValueError("x")
    vars(error)[1] = "x"  # type: ignore[index]
    return error


def with_everything() -> Exception:
    """As much as can be of every part, in characters that JSON writes with twelve bytes each."""
    cls = long_family("\U0001f600" * 500)
    many = ["\U0001f600" * 5_000] * 50

    def dig(depth: int) -> None:
        if depth == 0:
            raise raised_from(cls(*many, "\U0001f600" * 99_999), cls(*many))
        dig(depth - 1)

    error = caught(lambda: dig(40))
    vars(error).update({f"f{i}": text for i, text in enumerate(many)})
    return error


@pytest.mark.parametrize("name", HORRORS)
def test_encoding_an_error_never_fails_and_its_data_can_always_be_stored(conn, name):
    text = json.dumps(encode_error(HORRORS[name]()))
    assert len(text.encode()) <= MAX_BYTES
    assert conn.execute("select (%s::json)::jsonb is not null", (text,)).fetchone() == (True,)
    error = rebuild_error(json.loads(text), NOBODY)
    assert isinstance(str(error), str)


def test_nul_and_lone_surrogates_are_replaced_in_texts():
    data = through_json(ValueError("a\0b\ud800c"))
    assert data["message"] == "a\ufffdb?c"
    assert data["args"] == ["a\ufffdb?c"]


def test_a_huge_text_is_cut():
    data = through_json(ValueError("x" * 1_000_000))
    assert len(data["message"]) == MAX_MESSAGE_CHARS
    assert data["message"].endswith("…")


class OfAnIntegration(Exception):
    pass


def test_what_an_integration_has_registered_is_rebuilt_in_every_app(monkeypatch):
    monkeypatch.setattr("pgflow._model.exceptions._registered", {})
    data = through_json(OfAnIntegration("no"))
    assert type(rebuild_error(data, NOBODY)) is StepFailed
    pgflow.extensions.register_errors(OfAnIntegration, Declined)
    error = rebuild_error(data, NOBODY)
    assert type(error) is OfAnIntegration
    assert error.args == ("no",)
    assert type(rebuild_error(through_json(DeclinedForever(402, reason="x")), NOBODY)) is Declined


@pytest.mark.parametrize(
    "wrong", [ValueError("an instance"), int, KeyboardInterrupt, StopIteration, "pgflow.errors"]
)
def test_only_classes_of_exceptions_are_registered(wrong):
    with pytest.raises(pgflow_errors.DefinitionError, match="register_errors"):
        pgflow.extensions.register_errors(wrong)
