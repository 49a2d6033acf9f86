"""What is written comes back in type and content, or is refused with its place when it is written."""

from __future__ import annotations

import collections
import cProfile
import dataclasses
import decimal
import enum
import functools
import ipaddress
import json
import math
import pathlib
import typing
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import TzInfo
from typing_extensions import TypedDict

from pgflow._model import proofs, tags
from pgflow._model.codecs import ANYTHING, codec_for, encode_by_class, encode_plain
from pgflow.errors import NotStorable

# ruff: noqa: DTZ001 - times without a zone are values too

T = TypeVar("T")
BERLIN = ZoneInfo("Europe/Berlin")


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr | None = None


class Shape(pydantic.BaseModel):
    name: str


class Circle(Shape):
    radius: float


class Ring(Circle):
    inner: Shape


@dataclasses.dataclass
class Event:
    at: int


@dataclasses.dataclass
class Paid(Event):
    cents: int = 0


class Cached(pydantic.BaseModel):
    a: int
    rows: list[int] = pydantic.Field(default_factory=list, exclude=True)


class Eur(pydantic.BaseModel):
    amount: int


class Usd(pydantic.BaseModel):
    amount: int


class Salted(pydantic.BaseModel):
    s: str

    @pydantic.field_validator("s")
    @classmethod
    def salt(cls, v: str) -> str:
        return v + "!"


class Settled(pydantic.BaseModel):
    s: str

    @pydantic.field_validator("s")
    @classmethod
    def strip(cls, v: str) -> str:
        return v.strip()


class Bounded(pydantic.BaseModel):
    quantity: int = pydantic.Field(gt=0)


class Hidden(pydantic.BaseModel):
    n: int
    _seen: int = pydantic.PrivateAttr(0)


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    n: int


class Box(pydantic.BaseModel, Generic[T]):
    of: T


class Patch(pydantic.BaseModel):
    name: str = ""
    note: str | None = None


class PatchOfMore(Patch):
    more: list[Patch] = []


class PatchOfOthers(pydantic.BaseModel):
    note: str | None = None
    name: str = ""


class Closed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    a: int = pydantic.Field(1, alias="A")
    b: int = 2


class Held(pydantic.BaseModel):
    patch: Patch = pydantic.Field(default_factory=Patch)
    by_name: dict[str, Patch | None] = {}


class Derived(pydantic.BaseModel):
    a: int = 1

    @pydantic.computed_field
    @property
    def twice(self) -> int:
        return self.a * 2

    @functools.cached_property
    def thrice(self) -> int:
        return self.a * 3


class Short(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    text: str = ""
    session: str | None = None

    @pydantic.model_serializer(mode="wrap")
    def without_nothing(self, dump: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: item for name, item in dump(self).items() if item is not None}


class Default(pydantic.RootModel[int]):
    root: int = 3


class Names(pydantic.RootModel[list[Shape]]):
    pass


class Tone(enum.StrEnum):
    LOW = "low"
    HIGH = "high"


class Rung(enum.IntEnum):
    ONE = 1


class Place(enum.Enum):
    HOME = (1, 2)
    AWAY = (3, 4)


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    a: int
    b: str


@dataclasses.dataclass(slots=True)
class Slotted(Event):
    cents: int = 0


class Nulling(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="null")
    x: float | None


class Partial(TypedDict, total=False):
    a: int
    b: datetime | str


class Counted(TypedDict):
    a: int


class Filled(TypedDict, total=False):
    a: Annotated[list[int], pydantic.Field(default_factory=list)]


class Marked(Pair):
    """A tuple with room for attributes."""


MARKED = Marked(1, "a")
MARKED.note = "x"  # type: ignore[attr-defined]


class Wrapped(NamedTuple):
    of: Patch | dict[str, str]


@dataclasses.dataclass
class Sheet(Generic[T]):
    of: T

    @functools.cached_property
    def shown(self) -> str:
        return str(self.of)


SHOWN = Sheet(1)
assert SHOWN.shown == "1"


class Either(pydantic.RootModel[Eur | Usd | Patch]):
    pass


class Text(str):
    __slots__ = ()


class Number(int):
    pass


MOMENT = datetime(2026, 3, 1, 12, 0, 0, 5)

COMES_BACK: list[tuple[Any, Any]] = [
    (Shape, Circle(name="c", radius=2)),
    (list[Shape], [Shape(name="s"), Circle(name="c", radius=2)]),
    (dict[str, Shape], {"a": Circle(name="c", radius=2)}),
    (Shape, Ring(name="r", radius=2, inner=Circle(name="c", radius=1))),
    (Box[Shape], Box[Shape](of=Circle(name="c", radius=2))),
    (Names, Names([Circle(name="c", radius=2)])), (Event, Paid(1, 2)),
    (list[Event] | None, [Paid(1, 2), Event(3)]), (Cached, Cached(a=1, rows=[1, 2])),
    (Eur | Usd, Usd(amount=5)), (list[Eur | Usd], [Eur(amount=4), Usd(amount=5)]),
    (list[Eur] | list[Usd], [Usd(amount=5)]),
    (dict[str, Eur | Usd | None], {"a": Usd(amount=5), "b": None}), (bytes | str, "aGVsbG8="),
    (bytes | str, b"hello"), (str | bytes, b"hello"), (datetime | str, "2026-01-01T00:00:00"),
    (datetime | str, MOMENT), (uuid.UUID | str, str(uuid.UUID(int=7))),
    (uuid.UUID | str, uuid.UUID(int=7)), (list[int] | set[int], {1, 2}),
    (list[int] | set[int], [1, 2]), (list[int] | tuple[int, ...], (1, 2)),
    (frozenset[str] | list[str], frozenset({"a"})), (int | float, 1), (int | float, 1.0),
    (Decimal | str, "1.50"), (Decimal | str, Decimal("1.50")), (Decimal | float, Decimal("1.5")),
    (date | datetime, date(2026, 1, 1)), (date | datetime, datetime(2026, 1, 1)),
    (Tone | str, "low"), (Tone | str, Tone.LOW), (str, Tone.LOW), (list[str], ["a", Tone.HIGH]),
    (int, Rung.ONE), (int, True), (bool | int, True), (bool | int, 1),
    (timedelta | str, timedelta(days=-1, microseconds=3)),
    (str | pathlib.Path, pathlib.Path("a/b")), (str | pathlib.Path, "a/b"),
    (ipaddress.IPv4Address | str, ipaddress.IPv4Address("10.0.0.1")),
    (ipaddress.IPv4Address, ipaddress.IPv4Address("10.0.0.1")),
    (dict[Any, str], {1: "a", "1": "b"}), (dict[int | str, str], {1: "a", "1": "b"}),
    (dict[Tone, int], {Tone.LOW: 1}), (dict[tuple[int, int], str], {(1, 2): "a"}),
    (dict[uuid.UUID, int], {uuid.UUID(int=1): 1}),
    (dict[date, list[Shape]], {date(2026, 1, 1): [Circle(name="c", radius=1)]}),
    (dict[str, tuple[int, ...]], {"a": (1, 2)}), (datetime, datetime(2026, 7, 1, tzinfo=BERLIN)),
    (datetime, datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)),
    (datetime, datetime(2026, 10, 25, 2, 30, fold=1)),
    (datetime, datetime(1850, 1, 1, tzinfo=BERLIN)),
    (list[datetime], [MOMENT.replace(tzinfo=timezone(timedelta(hours=1, seconds=7)))]),
    (datetime, MOMENT.replace(tzinfo=timezone(timedelta(hours=1), "CET"))),
    (datetime, MOMENT.replace(tzinfo=UTC)), (time, time(1, 2, 3, 4, tzinfo=UTC)),
    (time, time(1, 2, fold=1)), (Place, Place.AWAY), (dict[str, Place], {"a": Place.HOME}),
    (Right, Right.READ | Right.WRITE), (Pair, Pair(1, "a")), (list[Pair], [Pair(1, "a")]),
    (collections.deque[int], collections.deque([1, 2], maxlen=3)),
    (collections.defaultdict[str, int], collections.defaultdict(int, a=1)),
    (collections.OrderedDict[str, int], collections.OrderedDict(b=1, a=2)), (Sequence[int], (1, 2)),
    (Sequence[int], [1, 2]), (Open, Open(n=1, more={"a": [1]})), (Settled, Settled(s=" a ")),
    (Bounded, Bounded(quantity=1)), (Hidden, Hidden(n=1)), (Partial, {"a": 1}),
    (Partial, {"b": MOMENT}), (Partial, {"b": "2026-01-01"}), (float, -0.0), (complex, 1 + 2j),
    (Decimal, Decimal("1E+400")), (Decimal, Decimal("-0.00")), (Literal["low", 1], "low"),
    (Any, (1, 2)), (Any, {"a": [(1, {2, 3})]}), (Any, {1: "a", "1": "b"}),
    (Any, {"at": MOMENT.replace(tzinfo=BERLIN), "of": [b"\xff", Decimal("1.0"), uuid.UUID(int=1)]}),
    (Any, frozenset({date(2026, 1, 1)})), (Any, {"$pgflow": "tuple", "of": [1]}),
    (Any, [{"$pgflow": 1}, {"a": {"$pgflow": "nothing"}}]), (dict[str, str], {"$pgflow": "dict"}),
    (list, [(1, 2)]), (dict, {"a": (1, 2)}), (tuple[Any, ...], ([1], (2,))), (set[int], {True, 2}),
    (Iterable[int], [1, 2]), (Slotted, Slotted(1, 2)), (Nulling, Nulling(x=1.5)),
    (Literal[0] | Any, -0.0), (Patch, Patch()), (Patch, Patch(note=None)), (Patch, Patch(name="]")),
    (Patch, Patch.model_construct({"name"}, name="a", note="b")),
    (Patch, PatchOfMore(name="a", more=[Patch(note="b")])),
    (Patch | PatchOfOthers, Patch(note="a")), (Patch | PatchOfOthers, PatchOfOthers(note="a")),
    (dict[str, Patch] | list[Patch], [Patch(), Patch(name="a", note="b")]), (Closed, Closed(b=3)),
    (Held, Held()), (Held, Held(by_name={"a": Patch(note="b"), "b": None})), (Derived, Derived()),
    (Derived, Derived(a=2)), (Short, Short(session=None)),
    (list[Short], [Short(text="a", session=None), Short(text="a")]), (Default, Default()),
    (list[Default], [Default(), Default(4)]),
    (Open | None, Open.model_construct({"n"}, n=1, more=2)), (Box[Patch], Box[Patch](of=Patch())),
    (Patch | dict, {"name": "a"}), (dict | Patch, Patch(name="a", note=None)),
    (list[dict[str, Any] | Eur], [{"amount": 1}, Eur(amount=1)]), (Any | Eur, {"amount": 1}),
    (tuple[Any, Patch], ({"$pgflow": ["a"]}, Patch())), (Filled, {"a": [1]}),
    (tuple[Patch | dict, ...], ({"name": "a"}, Patch())), (Wrapped, Wrapped({"name": "a"})),
    (Marked, Marked(1, "a")), (Sheet[date], Sheet[date](date(2026, 1, 1))),
    (list[Sheet[Any]], [Sheet[int](1), SHOWN]),
    (typing.OrderedDict[str, int], typing.OrderedDict[str, int](b=1, a=2)),
    (typing.Counter[str], typing.Counter[str]("aab")), (Either, Either(Usd(amount=1))),
    (Either, Either(Patch())), (list[Either], [Either(Patch(note=None)), Either(Eur(amount=1))]),
    (str, "$pgflow"), (str | None, "$pgflow"), (list[str], ["$pgflow", '"$pgflow"']),
    (Any, "$pgflow"), (Literal["$pgflow"], "$pgflow"), (dict[str, int], {"\ufffd": 1}),
]  # fmt: skip


def own_vars(value: Any) -> dict[str, Any]:
    """Leave out what `Sheet[int](1)` notes of its call, and what is computed from the rest."""
    return {name: part for name, part in vars(value).items() if name not in NOTES}


NOTES = ("__orig_class__", "shown")


def is_same(value: Any, back: Any) -> bool:
    """Equal in type and content, judged apart from the engine."""
    if type(value) is not type(back):
        return False
    if isinstance(value, pydantic.BaseModel):
        is_given = value.model_fields_set == back.model_fields_set
        return (
            is_given
            and value == back
            and all(is_same(item, getattr(back, name)) for name, item in dict(value).items())
        )
    if dataclasses.is_dataclass(value):
        return is_same(own_vars(value), own_vars(back))
    if isinstance(value, dict):
        return (
            value.keys() == back.keys()
            and {key: type(key) for key in value} == {key: type(key) for key in back}
            and all(is_same(item, back[key]) for key, item in value.items())
        )
    if isinstance(value, (list, tuple, collections.deque)):
        return len(value) == len(back) and all(map(is_same, value, back))
    if isinstance(value, (set, frozenset)):
        return value == back and {type(item) for item in value} == {type(item) for item in back}
    if isinstance(value, (datetime, time)):
        return (repr(value), str(value.tzinfo)) == (repr(back), str(back.tzinfo)) or (
            value == back and value.fold == back.fold and str(value.tzinfo) == str(back.tzinfo)
        )
    return repr(value) == repr(back)


def test_unions_of_another_order_have_readers_of_their_own():
    """They are equal, so a worker that met the other order first would read another type."""
    for annotation in (Eur | Usd, Usd | Eur):
        first = annotation.__args__[0]
        assert type(codec_for(annotation).decode('{"amount":1}', "it")) is first
        assert type(codec_for(list[annotation]).decode('[{"amount":1}]', "it")[0]) is first


@pytest.mark.parametrize(("annotation", "value"), COMES_BACK, ids=lambda value: str(value)[:50])
def test_a_value_comes_back_in_type_and_content(annotation, value):
    codec = codec_for(annotation)
    text = codec.encode(value, "it")
    back = codec.decode(text, "it")
    assert is_same(value, back), (text, back)
    assert codec.encode(back, "it") == text


@pytest.mark.parametrize("value", [{"b": "2026-01-01", "a": 1}, {"b": MOMENT, "a": 1}])
def test_the_fields_of_a_dict_may_be_given_in_any_order(value):
    codec = codec_for(list[Partial])
    assert is_same([value], codec.decode(codec.encode([value], "it"), "it"))


def test_a_model_that_is_read_without_its_class_has_no_mark_of_fields_that_were_left_out():
    value = [Held(), Held(by_name={"a": Patch()})]
    text = codec_for(list[Held]).encode(value, "it")
    assert ANYTHING.decode(text, "it") == [one.model_dump() for one in value]
    root = codec_for(list[Default]).encode([Default()], "it")
    assert ANYTHING.decode(root, "it") == [3]


def test_a_payload_for_other_programs_has_no_mark_of_fields_that_were_left_out():
    found = encode_by_class({"a": [Patch()]}, "it")
    assert found == '{"a":[{"name":"","note":null,"$pgflow":["name","note"]}]}'
    found = encode_by_class({"a": [Patch()]}, "it", may_mark=False)
    assert found == '{"a":[{"name":"","note":null}]}'


@pytest.mark.parametrize("count", [1, 20])
def test_fields_that_were_left_out_cost_a_few_calls_however_many_models_there_are(count):
    def calls(value: list[Patch]) -> int:
        text = codec.encode(value, "it")
        codec.decode(text, "it")
        profile = cProfile.Profile(builtins=False)
        profile.runcall(lambda: codec.decode(codec.encode(value, "it"), "it"))
        return sum(entry.callcount for entry in profile.getstats())

    codec = codec_for(list[Patch])
    whole = calls([Patch(name="a", note="b")] * count)
    assert calls([Patch(name="a")] * count) <= whole + count + 15


SECRET = pydantic.SecretStr("hunter2")
HOLDS_MORE = Slotted(1, 2)
HOLDS_MORE.__dict__["note"] = "x"

SecretDate = pydantic.Secret[date]


class Shown(pydantic.BaseModel):
    password: pydantic.SecretStr

    @pydantic.field_serializer("password", when_used="json")
    def dump(self, password: pydantic.SecretStr) -> str:
        return password.get_secret_value()


SECRETS: list[tuple[Any, Any]] = [
    (Login, Login(user="u", password=SECRET)),
    (list[Login], [Login(user="u", password=SECRET), Login(user="v")]),
    (pydantic.SecretStr, SECRET), (pydantic.SecretStr | None, SECRET),
    (int | pydantic.SecretStr, SECRET),
    (pydantic.SecretBytes, pydantic.SecretBytes(b"\xff\x00hunter2")),
    (pydantic.Secret[int], pydantic.Secret[int](4711)), (SecretDate, SecretDate(date(2026, 1, 2))),
    (Shown, Shown(password=SECRET)), (dict[str, pydantic.SecretStr], {"a": SECRET}),
    (tuple[pydantic.SecretStr, ...], (SECRET,)),
    (Any, {"a": SECRET, "b": [pydantic.SecretBytes(b"hunter2")], "c": pydantic.Secret("x")}),
    (Any, SECRET),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "value"), SECRETS)
def test_a_secret_comes_back_where_the_text_is_encrypted(annotation, value):
    codec = codec_for(annotation)
    text = codec.encode(value, "it", is_hidden=True)
    back = codec.decode(text, "it")
    assert back == value
    assert type(back) is type(value)
    assert "hunter2" not in json.dumps(tags.masked(json.loads(text)))
    with pytest.raises(NotStorable, match=r"is a Secret\w*, and .* App\(codec=") as refused:
        codec.encode(value, "it")
    assert "\n" not in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_text_without_secrets_is_the_same_where_it_is_encrypted():
    for annotation, value in ((Any, {"a": (1, b"x")}), (Login, Login(user="u")), (int, 7)):
        codec = codec_for(annotation)
        assert codec.encode(value, "it") == codec.encode(value, "it", is_hidden=True)


REFUSED: list[tuple[Any, Any, str]] = [
    (Login, Login(user="u", password=SECRET), r"^it cannot be .*: \.password is a SecretStr"),
    (list[Login], [Login(user="u", password=SECRET)], r"\[0\]\.password is a SecretStr"),
    (pydantic.SecretBytes, pydantic.SecretBytes(b"x"), "is a SecretBytes"),
    (Any, {"a": SECRET}, r"\['a'\] is a SecretStr"),
    (pydantic.AwareDatetime, MOMENT, "should have timezone info"),
    (Annotated[time, pydantic.Field(ge=time(12))], time(1), "greater than or equal to"),
    (Annotated[Decimal, pydantic.Field(ge=2)], Decimal(1), "greater than or equal to"),
    (Patch, Patch.model_construct(name=5), r"name: Input should be a valid string"),
    (Patch, Patch.model_construct({"name", "nobody"}), "it would come back as another value"),
    (Salted, Salted(s="a"), r"\.s would come back as another value"),
    (str, Text("a"), "it is a Text and would come back as a str"),
    (int, Number(1), "it is a Number and would come back as a int"),
    (dict[str, int], collections.OrderedDict(a=1), "it is a OrderedDict"),
    (tuple[int, str], Pair(1, "a"), "it is a Pair"),
    (list[int], (1, 2), "it is a tuple and would come back as a list"),
    (Any, Shape(name="a"), "it is a Shape and would come back as a dict"),
    (Any, [Tone.LOW], r"\[0\] is a Tone and would come back as a str"),
    (float, 2**60 + 1, "it is a int and would come back as a float"),
    (Decimal, Decimal("NaN"), "finite"), (Decimal, Decimal("sNaN"), "finite"),
    (Decimal, Decimal("-Infinity"), "finite"), (float, math.nan, "not JSON"),
    (complex, complex(-0.0, 1), "it would come back as another value"),
    (dict[str, int], {1: 1}, r"\[1\] \(the key\) is a int and would come back as a str"),
    (dict[str, int] | None, {True: 1}, r"\(the key\) is a bool and would come back as a str"),
    (dict[bytes, int], {True: 1}, r"\(the key\) is a bool and would come back as a bytes"),
    (dict[str | int, int], {1.5: 1}, r"\(the key\) is a float and would come back as a str"),
    (Filled, {}, "it would come back as another value"),
    (list[Filled], [{}], r"\[0\] would come back as another value"),
    (tuple[Eur, Salted], ({"amount": 1}, Salted(s="a")), r"\[1\]\.s would come back"),
    (dict[str, Eur | Salted], {"a": {"amount": 1}, "b": Salted(s="a")}, r"\['b'\]\.s would"),
    (collections.defaultdict[str, dict], {"a": {"$pgflow": ["b"]}}, "it is a dict"),
    (Marked, MARKED, "it would come back as another value"),
    (Bounded, Bounded.model_construct(quantity=0), "quantity: Input should be greater than 0"),
    (Counted, {Text("a"): 1}, r"\['a'\] \(the key\) is a Text and would come back as a str"),
    (Slotted, HOLDS_MORE, r"\.note would come back as another value"),
    (Nulling, Nulling(x=math.nan), r"\.x is a float and would come back as a NoneType"),
    (Iterable[int], (1, 2), "it is a tuple and would come back as a list"),
    (list[float], [True], r"\[0\] is a bool and would come back as a float"),
    (complex | pydantic.Json[int], 1, "it is a int and would come back as a complex"),
    (bytes | pydantic.Base64Str, "hello", "it is a str and would come back as a bytes"),
    (datetime, MOMENT.replace(tzinfo=TzInfo(3601)), "it would come back as another value"),
    (dict[str, int], {"\ud800": 1}, r"\['\\ud800'\]"),
    (dict[str, list[dict[str, str]]], {"a": [{"\udfff": "b"}]}, r"\['a'\]\[0\]\['\\udfff'\]"),
    (dict[str, Patch], {"\ud800": Patch()}, r"\['\\ud800'\]"),
    (Open, Open.model_construct(None, n=1, **{"\ud800": 2}), "surrogate|another value"),
    (Any, {"a": [{"\ud800": 1}]}, "surrogate"), (Any, {"a": ({"\ud800": 1},)}, "surrogate"),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "value", "says"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_would_come_back_as_another_value_is_refused_with_its_place(annotation, value, says):
    with pytest.raises(NotStorable, match=says) as refused:
        codec_for(annotation).encode(value, "it")
    assert "hunter2" not in str(refused.value)


def test_a_key_that_cannot_even_be_shown_is_refused():
    with pytest.raises(NotStorable, match="limit"):
        codec_for(dict[int, str]).encode({10**5000: "a"}, "it")


def test_a_private_attribute_that_would_be_lost_is_refused():
    value = Hidden(n=1)
    value._seen = 7
    with pytest.raises(NotStorable, match=r"\._seen would come back as another value"):
        codec_for(Hidden).encode(value, "it")


@pytest.mark.parametrize("encode", [encode_plain, encode_by_class])
@pytest.mark.parametrize(
    "value",
    [
        *((1, 2), {1: 2}, {"a": {1}}, [SECRET], {"a": Salted(s="x")}, object()),
        *({"\ud800": 1}, [{"a": {"\udc00": "\ufffd"}}], {"\ud800": Patch()}),
    ],
)
def test_what_others_read_as_json_is_json_or_refused(encode, value):
    with pytest.raises(NotStorable):
        encode(value, "it")


def test_what_is_published_of_a_class_is_written_as_its_class_is():
    value = {"shape": Circle(name="c", radius=2), "at": MOMENT, "all": [Cached(a=1, rows=[2])]}
    assert json.loads(encode_by_class(value, "it")) == {
        "shape": {"name": "c", "radius": 2.0},
        "at": "2026-03-01T12:00:00.000005",
        "all": [{"a": 1, "rows": [2]}],
    }


@pytest.mark.parametrize(("annotation", "text", "says"), [
    (Shape, '{"$pgflow": "Eur", "amount": 1}', "no subclass of Shape of that name"),
    (Shape, '{"$pgflow": "Circle", "name": "c", "radius": "x"}', "radius"),
    (Bounded, '{"$pgflow": "Bounded", "quantity": 0}', "greater than 0"),
    (Bounded, '{"quantity": {"$pgflow": "int", "of": 0}}', "greater than 0"),
    (Bounded, '{"quantity": {"$pgflow": "bool", "of": true}}', "tagged as bool"),
    (str, '{"$pgflow": "int", "of": 1}', "tagged as a int"),
    (int, '{"$pgflow": "str", "of": "x"}', "tagged as a str"),
    (list[int], '{"$pgflow": "list", "of": ["x"]}', "integer"),
    (dict[str, int], '{"$pgflow": "dict", "of": [["a", "x"]]}', "integer"),
    (datetime, '{"$pgflow": "datetime", "of": "2026-01-01", "zone": "../etc"}', "time zone"),
    (datetime, '{"$pgflow": "datetime", "of": "2026-01-01", "zone": "No/Where"}', "time zone"),
    (Tone, '{"$pgflow": "Tone", "name": "none"}', "no such member"),
    (Any, '{"$pgflow": "os.system", "of": "ls"}', "needs an annotation"),
    (Any, '{"$pgflow": "Circle", "name": "c"}', "needs an annotation"),
    (Any, '{"$pgflow": "dict", "of": [[[1], 2]]}', "not as tags are"),
    (Any, '{"$pgflow": "dict", "of": [1]}', "not as tags are"),
    (Any, '{"$pgflow": "set", "of": [[]]}', "not as tags are"),
    (Any, '{"$pgflow": "deque", "of": [], "maxlen": "x"}', "not as tags are"),
    (Any, '{"$pgflow": "Ref", "kind": 1}', "id"),
    (Any, '{"$pgflow": "tuple"}', "needs an annotation"),
    (dict[Any, int], '{"$pgflow": "dict", "of": [[[1], 2]]}', "not as tags are"),
    (Right, '{"$pgflow": "Right", "of": []}', "is not a valid Right"),
    (datetime, '{"$pgflow": "datetime", "of": "2026-01-01", "offset": [1e9]}', "not as tags"),
    (datetime, '{"$pgflow": "datetime", "of": "2026-01-01", "offset": "x"}', "not as tags"),
    (datetime, '{"$pgflow": "datetime", "of": "2026-01-01", "fold": 7}', "fold"),
])  # fmt: skip
def test_a_tag_passes_no_validator_and_names_no_stranger(annotation, text, says):
    with pytest.raises(NotStorable, match=says):
        codec_for(annotation).decode(text, "it")


def test_a_validator_sees_what_a_tag_chose():
    seen: list[Any] = []

    def look(value: Any) -> Any:
        seen.append(value)
        return value

    codec = codec_for(Annotated[bytes | str, pydantic.AfterValidator(look)])
    text = codec.encode("aGVsbG8=", "it")
    seen.clear()
    assert codec.decode(text, "it") == "aGVsbG8="
    assert seen == ["aGVsbG8="]


def test_json_that_was_given_is_read_as_the_annotation_says():
    codec = codec_for(Shape)
    text = codec.encode({"name": "a"}, "it")  # type: ignore[arg-type]
    assert codec.decode(text, "it") == Shape(name="a")


texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=5
) | st.sampled_from(
    [
        "aGVsbG8=",
        "2026-01-01",
        "2026-01-01T00:00:00",
        "1",
        "1.5",
        "low",
        "P1D",
        str(uuid.UUID(int=1)),
    ]
)
zones = st.sampled_from(
    [None, UTC, BERLIN, ZoneInfo("Asia/Kathmandu"), timezone(timedelta(seconds=3601))]
)
moments = st.builds(
    lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold),
    st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)),
    zones,
    st.sampled_from([0, 0, 1]),
)
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(10**30), 10**30)),
    (float, st.floats(allow_nan=False, allow_infinity=False)), (bool, st.booleans()), (str, texts),
    (type(None), st.none()), (bytes, st.binary(max_size=6)),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)), (uuid.UUID, st.uuids()),
    (date, st.dates()), (datetime, moments), (time, st.times()), (timedelta, st.timedeltas()),
    (Tone, st.sampled_from(Tone)), (Rung, st.sampled_from(Rung)), (Place, st.sampled_from(Place)),
    (Right, st.sampled_from([Right.READ, Right.READ | Right.WRITE])),
    (Eur, st.builds(Eur, amount=st.integers())), (Usd, st.builds(Usd, amount=st.integers())),
    (Shape, st.builds(Shape, name=texts) | st.builds(Circle, name=texts, radius=st.just(1.5))),
    (Event, st.builds(Event, st.integers()) | st.builds(Paid, st.integers(), st.integers())),
    (Cached, st.builds(Cached, a=st.integers(), rows=st.lists(st.integers(), max_size=2))),
    (Settled, st.builds(Settled, s=texts)), (Pair, st.builds(Pair, st.integers(), texts)),
    (Open, st.builds(lambda n, more: Open(n=n, more=more), st.integers(), texts)),
    (Patch, st.builds(Patch, name=texts) | st.builds(Patch)),
    (dict, st.sampled_from([{"amount": 1}, {"name": "a"}, {1: 2}, {"$pgflow": ["amount"]}])),
    (Partial, st.sampled_from([{}, {"b": "2026-01-01", "a": 1}, {"b": MOMENT}])),
]  # fmt: skip
HASHABLE = [
    leaf
    for leaf in LEAVES
    if leaf[0] not in (Eur, Usd, Shape, Event, Cached, Settled, Open, Patch, dict, Partial)
]
Typed = tuple[Any, st.SearchStrategy[Any]]
leaves = st.sampled_from(LEAVES)
hashables = st.sampled_from(HASHABLE)


def lists_of(typed: Typed) -> Typed:
    return list[typed[0]], st.lists(typed[1], max_size=3)  # type: ignore[misc]


def rows_of(typed: Typed) -> Typed:
    return tuple[typed[0], ...], st.lists(typed[1], max_size=3).map(tuple)  # type: ignore[misc]


def dicts_of(key: Typed, typed: Typed) -> Typed:
    return dict[key[0], typed[0]], st.dictionaries(key[1], typed[1], max_size=3)  # type: ignore[misc]


def unions_of(first: Typed, second: Typed) -> Typed:
    return first[0] | second[0], first[1] | second[1]


def sets_of(typed: Typed) -> Typed:
    return set[typed[0]], st.sets(typed[1], max_size=3)  # type: ignore[misc]


def boxes_of(typed: Typed) -> Typed:
    cls: Any = Box[typed[0]]  # type: ignore[misc]
    return cls, typed[1].map(lambda value: cls.model_construct(of=value))


def dataclasses_of(first: Typed, second: Typed) -> Typed:
    cls: Any = dataclasses.make_dataclass("Made", [("a", first[0]), ("b", second[0])])
    return cls, st.builds(cls, first[1], second[1])


annotations: st.SearchStrategy[Typed] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(lists_of),
        inner.map(rows_of),
        hashables.map(sets_of),
        st.builds(dicts_of, hashables, inner),
        st.builds(unions_of, inner, inner),
        inner.map(boxes_of),
        st.builds(dataclasses_of, inner, inner),
    ),
    max_leaves=5,
)
COUNTS: collections.Counter[str] = collections.Counter()


def check_any_value(data: st.DataObject) -> None:
    annotation, values = data.draw(annotations)
    codec = codec_for(annotation)
    for _ in range(4):
        value = data.draw(values)
        COUNTS["values"] += 1
        try:
            text = codec.encode(value, "it")
        except NotStorable:
            COUNTS["refused"] += 1
            continue
        COUNTS["tagged" if tags.MARK in text else "plain"] += 1
        COUNTS["proven"] += codec._write is not None and codec._proof(value)
        assert is_same(value, codec.decode(text, "it")), (annotation, value, text)


def played(count: int) -> None:
    COUNTS.clear()
    settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )(given(st.data())(check_any_value))()
    print(f"{count} annotations: {dict(COUNTS)}")
    assert COUNTS["values"] >= count
    assert COUNTS["refused"] < COUNTS["values"] / 5, COUNTS


def test_values_of_any_annotation_come_back_or_are_refused():
    played(40)


@pytest.mark.full
def test_values_of_thousands_of_annotations_come_back_or_are_refused():
    played(1500)


@pytest.mark.parametrize("annotation", [int, str, list[int], dict[str, str], Eur, Event, Any])
def test_what_is_as_common_as_this_is_not_read_again(annotation):
    """The proof is what keeps the codec fast: without one, each value is read and compared."""
    value = {
        int: 1, str: "a", list[int]: [1], dict[str, str]: {"a": "b"},
        Eur: Eur(amount=1), Event: Event(1), Any: {"a": [1, "b", None]},
    }[annotation]  # fmt: skip
    codec = codec_for(annotation)
    assert codec._write is not None
    assert codec._proof(value)


def test_numbers_of_json_are_of_its_own_types_only():
    assert proofs.is_json({"a": [1, 2.5, None, True, "x", {"b": []}]})
    for value in [(1,), {1: 2}, [Tone.LOW], {"a": Text("x")}, {"a": {1}}, decimal.Decimal(1)]:
        assert not proofs.is_json(value)
    assert ANYTHING.encode([1, "a"], "it") == '[1,"a"]'


@pytest.mark.parametrize("annotation", [Any, list[Any], "itself"])
def test_a_value_that_its_own_class_cannot_read_is_refused_after_a_few_tries(annotation):
    reads: list[Any] = []

    class Torn(pydantic.BaseModel):
        needed: int
        other: str = "x"

        @pydantic.model_validator(mode="before")
        @classmethod
        def count(cls, given: Any) -> Any:
            reads.append(given)
            if len(reads) > 99:
                pytest.fail("it is asked again and again")
            return given

    torn: Any = Torn.model_construct()
    codec = codec_for(Torn if annotation == "itself" else annotation)
    with pytest.raises(NotStorable):
        codec.encode([torn] if annotation == list[Any] else torn, "it")
    assert reads
