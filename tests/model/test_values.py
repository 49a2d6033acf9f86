"""Values come back as they were stored, and what could not be stored or read by everybody is
refused with a reason.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import uuid
import warnings
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import core_schema
from typing_extensions import TypedDict

from pgflow._model import coreschemas
from pgflow._model.codecs import (
    ANYTHING,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_DIGITS,
    Codec,
    check_text,
    codec_for,
    encode_plain,
    hash_arguments,
)
from pgflow.errors import DefinitionError, NotStorable

T = TypeVar("T")

often = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Line:
    item: str
    cents: int
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Order:
    order_id: uuid.UUID
    lines: list[Line]
    placed: datetime
    total: Decimal
    colour: Colour
    note: str | None = None


class Address(pydantic.BaseModel):
    street: str
    number: int
    since: date | None = None


class Customer(pydantic.BaseModel):
    name: str
    addresses: list[Address]
    scores: dict[str, float] = {}
    blob: bytes = b""


class Pair(NamedTuple):
    left: int
    right: str


class Shape(TypedDict):
    kind: Literal["round", "square"]
    size: float


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
floats = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | floats | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
moments = st.datetimes(
    timezones=st.none()
    | st.sampled_from(
        [UTC, timezone(timedelta(hours=5, minutes=45)), timezone(timedelta(hours=-3))]
    )
)
lines = st.builds(Line, texts, st.integers(), st.lists(texts, max_size=3))
orders = st.builds(
    Order,
    st.uuids(),
    st.lists(lines, max_size=3),
    moments,
    st.decimals(allow_nan=False, allow_infinity=False),
    st.sampled_from(Colour),
    st.none() | texts,
)
addresses = st.builds(Address, street=texts, number=st.integers(), since=st.none() | st.dates())
customers = st.builds(
    Customer,
    name=texts,
    addresses=st.lists(addresses, max_size=2),
    scores=st.dictionaries(texts, floats, max_size=2),
    blob=texts.map(str.encode),
)

ANNOTATED: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(10**200), 10**200)), (float, floats), (str, texts), (bool, st.booleans()),
    (None, st.none()), (bytes, st.binary(max_size=40)), (datetime, moments), (date, st.dates()),
    (time, st.times()), (timedelta, st.timedeltas()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)), (uuid.UUID, st.uuids()),
    (Colour, st.sampled_from(Colour)), (Level, st.sampled_from(Level)), (Line, lines),
    (Order, orders), (Address, addresses), (Customer, customers),
    (Pair, st.builds(Pair, st.integers(), texts)),
    (Shape, st.fixed_dictionaries({"kind": st.sampled_from(["round", "square"]), "size": floats})),
    (list[Order], st.lists(orders, max_size=2)),
    (dict[str, Customer], st.dictionaries(texts, customers, max_size=2)),
    (dict[int, bytes], st.dictionaries(st.integers(), st.binary(max_size=9), max_size=3)),
    (tuple[int, str], st.tuples(st.integers(), texts)),
    (tuple[bytes, ...], st.lists(st.binary(max_size=9), max_size=3).map(tuple)),
    (set[str], st.sets(texts, max_size=4)),
    (frozenset[int], st.frozensets(st.integers(), max_size=4)),
    (int | str | None, st.none() | st.integers() | texts),
    (list[Line | Address], st.lists(lines | addresses, max_size=3)),
]  # fmt: skip


def there_and_back(codec: Codec[Any], value: Any) -> Any:
    return codec.decode(codec.encode(value, "it"), "it")


@pytest.mark.parametrize(
    ("annotation", "values"), [pytest.param(a, v, id=str(a)[:40]) for a, v in ANNOTATED]
)
def test_an_annotated_value_comes_back_equal(annotation, values):
    codec = codec_for(annotation)

    @settings(often, max_examples=60)
    @given(values)
    def check(value: Any) -> None:
        once = there_and_back(codec, value)
        assert once == value
        assert type(once) is type(value)
        assert there_and_back(codec, once) == once

    check()


@pytest.mark.full
@often
@given(json_values)
def test_what_json_can_say_comes_back_exactly(value):
    once = there_and_back(ANYTHING, value)
    assert repr(once) == repr(value)


plain_values = st.recursive(
    json_values
    | moments
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.sampled_from(Colour)
    | st.binary(max_size=9)
    | orders
    | customers
    | st.sets(st.integers(), max_size=3),
    lambda inner: (
        st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.booleans() | st.none() | texts, inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.full
@often
@given(plain_values)
def test_without_an_annotation_a_value_comes_back_equal_or_is_refused(value):
    try:
        back = there_and_back(ANYTHING, value)
    except NotStorable:
        return
    assert (type(back), back) == (type(value), value)


@pytest.mark.parametrize(
    "value", [1e22, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 2**53 + 1, 10**40]
)
@pytest.mark.parametrize("annotation", [Any, int | float])
def test_numbers_keep_their_exact_form(annotation, value):
    assert repr(there_and_back(codec_for(annotation), value)) == repr(value)


def test_a_value_that_does_not_fit_the_annotation_is_refused_when_read():
    with pytest.raises(
        NotStorable,
        match=r"^the result of step pay does not fit its annotation int: Input should be a valid "
        r"integer",
    ):
        codec_for(int).decode(
            codec_for(int).encode("no", "the result of step pay"), "the result of step pay"
        )  # type: ignore[arg-type]


def refuse_two(value: int) -> int:
    """A validator that raises this and that."""
    if value == 2:
        raise ValueError("it is two")
    if value == 3:
        raise ValueError
    if value == 4:
        raise AssertionError("four is no choice")
    if value == 5:
        raise AssertionError
    return value


class Chosen(pydantic.BaseModel):
    value: Annotated[int, pydantic.AfterValidator(refuse_two)]


@pytest.mark.parametrize(("value", "says"), [
    (2, "it is two"), (3, "Value error"), (4, "four is no choice"), (5, "Assertion failed"),
    ('"x"', "Input should be a valid integer, unable to parse string as an integer"),
])  # fmt: skip
def test_what_a_validator_says_is_said_as_it_stands(value, says):
    with pytest.raises(NotStorable) as refused:
        Codec(Chosen).decode(f'{{"value": {value}}}', "the input")
    assert str(refused.value) == f"the input does not fit its annotation Chosen: value: {says}"


def test_the_place_inside_a_value_is_named():
    with pytest.raises(NotStorable, match=r"does not fit its annotation Order: lines\.1\.cents: "):
        order = '{"order_id":"%s","lines":[{"item":"a","cents":1},{"item":"b","cents":"x"}],"placed":"2026-01-01","total":"1","colour":"red"}'
        codec_for(Order).decode(order % uuid.UUID(int=0), "it")


def test_annotations_that_cannot_be_hashed_have_codecs_too():
    from typing import Annotated

    assert there_and_back(codec_for(Annotated[int, ["unhashable"]]), 3) == 3


class Aliased(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="orderId")


class SplitAlias(pydantic.BaseModel):
    order_id: int = pydantic.Field(validation_alias="orderId", serialization_alias="orderId")


class Computed(pydantic.BaseModel):
    side: int

    @pydantic.computed_field
    def area(self) -> int:
        return self.side**2


@dataclass
class Attachment:
    name: str
    content: bytes


class Document(pydantic.BaseModel):
    content: bytes


@pytest.mark.parametrize(
    "value",
    [Aliased(orderId=3), SplitAlias(orderId=3), Computed(side=3)],
    ids=["alias", "two aliases", "computed field"],
)
def test_a_model_comes_back_whatever_its_fields_are_called(value):
    assert there_and_back(codec_for(type(value)), value) == value
    assert there_and_back(codec_for(list[type(value)]), [value]) == [value]


class Folder(pydantic.BaseModel):
    documents: list[Document]


@pytest.mark.parametrize("value", [
    Attachment("a", b"\xff\0"), Document(content=b"\xff\0"),
    Folder(documents=[Document(content=b"\xff")]),
], ids=["dataclass", "model", "model in a model"])  # fmt: skip
def test_any_bytes_inside_a_class_come_back(value):
    assert there_and_back(codec_for(type(value)), value) == value
    assert there_and_back(codec_for(list[type(value)]), [value]) == [value]


class Hexadecimal(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        ser_json_bytes="hex", val_json_bytes="hex", ser_json_inf_nan="strings"
    )
    content: bytes
    weight: float = 1.5


def test_what_a_class_says_of_its_own_form_holds():
    assert (
        codec_for(Hexadecimal).encode(Hexadecimal(content=b"\xff", weight=math.inf), "it")
        == '{"content":"ff","weight":"Infinity"}'
    )
    assert there_and_back(codec_for(list[Hexadecimal]), [Hexadecimal(content=b"\xff")]) == [
        Hexadecimal(content=b"\xff")
    ]


class WrittenOtherwise(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    order_id: int = pydantic.Field(0, serialization_alias="orderId")

    @pydantic.computed_field
    def next_id(self) -> int:
        return self.order_id + 1


def test_names_and_fields_that_a_model_only_writes_are_not_stored():
    found = codec_for(WrittenOtherwise).encode(WrittenOtherwise(order_id=3), "it")
    assert found == '{"order_id":3}'
    assert there_and_back(codec_for(WrittenOtherwise), WrittenOtherwise(order_id=3)).order_id == 3


class PutOff(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(defer_build=True)
    content: bytes
    next: LaterDefined | None = None


class LaterDefined(pydantic.BaseModel):
    content: bytes


@pytest.mark.parametrize("annotation", [PutOff, list[PutOff]])
def test_a_model_that_was_not_built_when_it_was_defined_comes_back(annotation):
    value = PutOff(content=b"\xff", next=LaterDefined(content=b"\xfe"))
    given = value if annotation is PutOff else [value]
    assert there_and_back(codec_for(annotation), given) == given


AWKWARD = [
    "type", "default", "metadata", "config", "cls", "fields", "choices", "schema", "expected",
    "members", "ref", "serialization", "definitions", "items_schema", "computed_fields",
    "extras_schema", "function",
]  # fmt: skip


class Blob(pydantic.BaseModel):
    content: bytes


def model_of(names: list[str]) -> Any:
    with warnings.catch_warnings(action="ignore"):  # of names that are methods of every model too
        return pydantic.create_model("M", **dict.fromkeys(names, (Blob, ...)))


@pytest.mark.parametrize("names", [*([name] for name in AWKWARD), AWKWARD], ids=[*AWKWARD, "all"])
@pytest.mark.parametrize(
    "kind",
    ["model", "dataclass", "pydantic dataclass", "typed dict", "named tuple", "model in a model"],
)
def test_a_field_may_have_any_name_and_what_is_in_it_comes_back(kind, names):
    value = {name: Blob(content=b"\xff\0") for name in names}
    if kind == "typed dict":
        assert there_and_back(codec_for(TypedDict("T", dict.fromkeys(names, Blob))), value) == value
        return
    make = {
        "model": model_of,
        "model in a model": model_of,
        "dataclass": lambda names: make_dataclass("D", [(name, Blob) for name in names]),
        "pydantic dataclass": lambda names: pydantic.dataclasses.dataclass(
            make_dataclass("P", [(name, Blob) for name in names])
        ),
        "named tuple": lambda names: NamedTuple("N", [(name, Blob) for name in names]),
    }[kind]
    cls = make(names)
    if kind == "model in a model":
        cls = pydantic.create_model("Outer", type=(cls, ...))
        value = {"type": value}
    assert there_and_back(codec_for(cls), cls(**value)) == cls(**value)
    assert there_and_back(codec_for(list[cls]), [cls(**value)]) == [cls(**value)]


class Paid(pydantic.BaseModel):
    type: Literal["default"] = "default"
    receipt: bytes


class Refused(pydantic.BaseModel):
    type: Literal["metadata"] = "metadata"
    reason: bytes


class Told(pydantic.BaseModel):
    event: Annotated[Paid | Refused, pydantic.Field(discriminator="type")]


@pytest.mark.parametrize(
    "value", [Told(event=Paid(receipt=b"\xff")), Told(event=Refused(reason=b"\xfe"))]
)
def test_the_tags_of_a_union_may_be_any_text_too(value):
    assert there_and_back(codec_for(Told), value) == value
    assert there_and_back(codec_for(list[Told]), [value]) == [value]
    tagged = Annotated[Paid | Refused, pydantic.Field(discriminator="type")]
    assert there_and_back(codec_for(tagged), value.event) == value.event


def parts_of_core_schemas() -> dict[str, set[str]]:
    """Every key of pydantic's schemas, with the annotations that it has in them."""
    found: dict[str, set[str]] = {}
    for name, cls in vars(core_schema).items():
        if isinstance(cls, type) and hasattr(cls, "__required_keys__") and name != "CoreConfig":
            for base in (cls, *getattr(cls, "__orig_bases__", ())):
                for key, annotation in getattr(base, "__annotations__", {}).items():
                    found.setdefault(key, set()).add(
                        str(getattr(annotation, "__forward_arg__", annotation))
                    )
    return found


def test_every_part_of_a_core_schema_is_walked_as_what_it_is():
    """A key that a later pydantic adds to its schemas belongs into one of our lists if it holds no
    schema, or maps names to some.
    """
    holds_schemas = re.compile(r"\b(\w*Schema|\w*Field|\w*Parameter)\b")
    parts = parts_of_core_schemas()
    assert len(parts) > 60
    by_name = {
        key
        for key, annotations in parts.items()
        if any(re.search(r"dict\[\w+, (.*)\]", a) and holds_schemas.search(a) for a in annotations)
    }
    assert by_name == coreschemas.BY_NAME
    assert not {
        key
        for key in coreschemas.OPAQUE & set(parts)
        if any(holds_schemas.search(a) for a in parts[key])
    }
    of_the_user = re.compile(r"\b(Any|CoreConfig|object|dict)\b(?!\])|list\[Any\]|dict\[str, Any\]")
    plain = {
        key
        for key, annotations in parts.items()
        if all(not holds_schemas.search(a) and of_the_user.search(a) for a in annotations)
    }
    harmless = {
        "cls",
        "gt",
        "ge",
        "lt",
        "le",
        "multiple_of",
    }  # classes and numbers are not walked into
    functions = {key for key in plain if all("Callable" in a for a in parts[key])}
    assert plain - harmless - functions <= coreschemas.OPAQUE


class Animal(pydantic.BaseModel):
    model_config = {"polymorphic_serialization": True} if pydantic.VERSION >= "2.13" else {}
    photo: bytes


class Dog(Animal):
    tricks: list[str] = []


class Puppy(Dog):
    weeks: int = 0


class Kennel(pydantic.BaseModel):
    of: Animal | Dog | None = None

    @pydantic.field_validator("of", mode="before")
    @classmethod
    def one_that_is_made_already(cls, given: Any) -> Any:
        return (
            Dog(photo=b"\xfe", tricks=["sit"])
            if given == "Rex" or (isinstance(given, dict) and given.get("photo") == "Rex")
            else given
        )


def test_of_the_classes_of_a_union_an_instance_has_the_nearest():
    codec = codec_for(list[Animal | Dog])
    given = [
        Animal(photo=b"\xff"),
        Dog(photo=b"\xff", tricks=["roll"]),
        Puppy(photo=b"\xff", tricks=["bite"], weeks=9),
    ]
    assert there_and_back(codec, given) == given
    assert there_and_back(codec_for(Animal), given[1]) == given[1]


def test_a_validator_may_answer_with_an_instance():
    assert codec_for(Kennel).decode('{"of": "Rex"}', "it") == Kennel(
        of=Dog(photo=b"\xfe", tricks=["sit"])
    )
    assert codec_for(list[Kennel]).decode('[{"of": "Rex"}]', "it") == [
        Kennel(of=Dog(photo=b"\xfe", tricks=["sit"]))
    ]


class Counted(pydantic.BaseModel):
    content: bytes = b"\xff"
    _calls: list[str] = pydantic.PrivateAttr(default_factory=list)

    def model_post_init(self, context: Any) -> None:
        self._calls.append("post_init")


class Built(pydantic.BaseModel):
    name: str

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "name": given["name"].upper()})


class Root(pydantic.RootModel[dict[str, Blob]]):
    pass


class Box(pydantic.BaseModel, Generic[T]):
    type: T


@pydantic.dataclasses.dataclass(slots=True, frozen=True)
class Slotted:
    type: bytes


@pydantic.dataclasses.dataclass
class Pile(Generic[T]):
    type: T


@pytest.mark.parametrize("value", [
    Counted(), Built(name="a"), Root({"type": Blob(content=b"\xff")}),
    Box[Blob](type=Blob(content=b"\xff")), Slotted(b"\xff"), Pile(b"\xff"),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_a_class_of_any_make_comes_back_as_itself(value):
    annotation = Pile[bytes] if isinstance(value, Pile) else type(value)
    for codec, sent in ((codec_for(annotation), value), (codec_for(list[annotation]), [value])):
        back = there_and_back(codec, sent)
        assert back == sent
        back = back if back.__class__ is not list else back[0]
        assert type(back) is type(value)
        assert getattr(back, "_calls", ["post_init"]) == ["post_init"]
    with pytest.raises(NotStorable, match="does not fit its annotation"):
        codec_for(annotation).decode("[1]", "it")


def test_a_model_can_be_sent_by_the_names_that_others_know():
    assert codec_for(Aliased).decode('{"orderId":3}', "it") == Aliased(orderId=3)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


class Tree(pydantic.BaseModel):
    branch: Tree | None = None


def tree(depth: int) -> Tree:
    value = None
    for _ in range(depth):
        value = Tree.model_construct(branch=value)
    assert value is not None
    return value


@dataclass
class Loop:
    inside: Any = None


@dataclass
class Measured:
    value: float | None


class Weighed(pydantic.BaseModel):
    value: float | None


class Sketched(TypedDict):
    value: float | None


def holding_itself(kind: str) -> Any:
    if kind == "list":
        value: Any = []
        value.append(value)
    elif kind == "dict":
        value = {}
        value["a"] = value
    elif kind == "dataclass":
        value = Loop()
        value.inside = value
    else:
        value = Tree()
        value.branch = value
    return value


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("annotation", "wrap"),
    [
        (Any, lambda x: x),
        (float, lambda x: x),
        (float | None, lambda x: x),
        (Any, lambda x: {"a": [x]}),
        (list[float], lambda x: [1.0, x]),
        (dict[str, float | None], lambda x: {"a": x}),
        (list[Measured], lambda x: [Measured(x)]),
        (Sketched, lambda x: {"value": x}),
    ],
    ids=[
        "anything",
        "float",
        "optional",
        "nested anything",
        "list",
        "dict",
        "list of dataclasses",
        "typed dict",
    ],
)
def test_what_is_not_a_number_is_refused(annotation, wrap, number):
    with pytest.raises(NotStorable, match=r"it cannot be stored as JSON: .*JSON"):
        codec_for(annotation).encode(wrap(number), "it")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("annotation", "wrap"), [
    (Measured, Measured), (Weighed, lambda x: Weighed(value=x)),
    (list[Weighed], lambda x: [Weighed(value=x)]), (Any, Measured),
    (Any, lambda x: [Weighed(value=x)]),
], ids=["dataclass", "model", "list of models", "unannotated dataclass", "unannotated model"])  # fmt: skip
def test_what_is_not_a_number_is_refused_inside_a_class(annotation, wrap, number):
    with pytest.raises(NotStorable, match=r"it cannot be stored as JSON: .*JSON"):
        codec_for(annotation).encode(wrap(number), "it")


def test_a_decimal_that_is_not_a_number_is_refused():
    with pytest.raises(NotStorable, match="finite"):
        there_and_back(codec_for(Decimal), Decimal("NaN"))


@pytest.mark.parametrize("text", ["a\0b", "\0", "\\\0", '"\0"', "\\u0000\0"])
@pytest.mark.parametrize("annotation", [Any, str])
def test_nul_is_refused(annotation, text):
    with pytest.raises(NotStorable, match="it holds the character NUL"):
        codec_for(annotation).encode(text, "it")
    with pytest.raises(NotStorable, match="it holds the character NUL"):
        codec_for(dict[str, int]).encode({text: 1}, "it")


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "u0000", "\\u00000"])
@pytest.mark.parametrize("annotation", [Any, str])
def test_what_only_looks_like_nul_is_stored(annotation, text):
    assert there_and_back(codec_for(annotation), text) == text


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ude00\ud83d"])
@pytest.mark.parametrize("annotation", [Any, str, dict[str, Any]])
def test_a_lone_surrogate_is_refused(annotation, text):
    value = {"a": text} if annotation not in (Any, str) else text
    with pytest.raises(NotStorable, match="surrogate"):
        codec_for(annotation).encode(value, "it")


@pytest.mark.parametrize("annotation", [Any, str])
def test_a_mebibyte_is_stored_and_one_byte_more_is_not(annotation):
    codec = codec_for(annotation)
    assert len(codec.encode("x" * (MAX_BYTES - 2), "it")) == MAX_BYTES
    with pytest.raises(
        NotStorable,
        match="it is 1,048,577 bytes of JSON; the limit is 1 MiB: store it elsewhere and pass a "
        "reference",
    ):
        codec.encode("x" * (MAX_BYTES - 1), "it")
    with pytest.raises(NotStorable, match="the limit is 1 MiB"):
        codec.encode("ä" * (MAX_BYTES // 2), "it")


@pytest.mark.full
@pytest.mark.parametrize("annotation", [Any, list])
def test_two_hundred_levels_are_stored_and_one_more_is_not(annotation):
    codec = codec_for(annotation)
    assert there_and_back(codec, nested(MAX_DEPTH)) == nested(MAX_DEPTH)
    with pytest.raises(NotStorable, match="it is nested more than 200 levels deep"):
        codec.encode(nested(MAX_DEPTH + 1), "it")
    with pytest.raises(NotStorable, match=r"nested|depth"):
        codec.encode(nested(100_000), "it")


def test_models_obey_the_limit_on_depth():
    assert there_and_back(codec_for(Tree), tree(MAX_DEPTH)) == tree(MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 2_000):
        with pytest.raises(NotStorable, match=r"nested|depth"):
            codec_for(Tree).encode(tree(depth), "it")


def test_brackets_in_texts_are_no_depth():
    assert there_and_back(ANYTHING, "[" * 1000 + '"{' * 1000) == "[" * 1000 + '"{' * 1000


def test_digits_in_texts_are_no_number():
    assert there_and_back(ANYTHING, ['"', "1" * 5000]) == ['"', "1" * 5000]


def char_by_char(text: str) -> set[str]:
    """Return the limits that a JSON text exceeds, found by reading it one character after the
    other.
    """
    found = set()
    in_string = is_escaped = False
    depth = digits = 0
    for char in text:
        if in_string:
            if is_escaped:
                is_escaped = False
            elif char == "\\":
                is_escaped = True
            elif char == '"':
                in_string = False
            continue
        in_string = char == '"'
        depth += (char in "[{") - (char in "]}")
        digits = digits + 1 if char in "0123456789" else 0
        if depth > MAX_DEPTH:
            found.add("levels deep")
        if digits > MAX_DIGITS:
            found.add("digits")
    return found


hard_texts = st.text(st.sampled_from('\\"[]{}0189,:u\n\u00e9\U0001f600 '), max_size=30)
long_runs = st.builds(
    lambda n, around: around + "7" * n + around,
    st.integers(MAX_DIGITS - 2, MAX_DIGITS + 3),
    hard_texts,
)
long_numbers = st.builds(
    lambda n, sign: sign * (10**n - 1),
    st.integers(MAX_DIGITS - 5, MAX_DIGITS),
    st.sampled_from([1, -1]),
)
deep = st.builds(
    lambda n, inner: nest(inner, n), st.integers(MAX_DEPTH - 6, MAX_DEPTH + 3), hard_texts
)
hard_values = st.recursive(
    hard_texts
    | long_runs
    | long_numbers
    | deep
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(hard_texts, inner, max_size=4),
    max_leaves=12,
)


def nest(value: Any, levels: int) -> Any:
    for level in range(levels):
        value = {'"[\\': value} if level % 3 else [value]
    return value


@pytest.mark.full
@often
@given(hard_values, st.integers(0, MAX_DIGITS + 1), st.booleans())
def test_a_text_is_judged_as_by_reading_it_one_character_after_the_other(value, shift, longer):
    text = json.dumps([" " * shift, value], ensure_ascii=False, separators=(",", ":"))
    if longer:  # one digit more than Python itself would write
        text = text.replace("9" * MAX_DIGITS, "9" * (MAX_DIGITS + 1))
    found = char_by_char(text)
    if not found:
        assert check_text(text, "it") is text
        return
    with pytest.raises(NotStorable, match="|".join(found)):
        check_text(text, "it")


@pytest.mark.parametrize("before", [0, 1, 2, 4298, 4299, 4300, 8598, 8599])
@pytest.mark.parametrize("too_many", [0, 1])
def test_a_long_number_is_found_wherever_it_stands(before, too_many):
    text = f'["{"x" * before}",{"9" * (MAX_DIGITS + too_many)},"{"1" * 9000}"]'
    if not too_many:
        assert check_text(text, "it") == text
        return
    with pytest.raises(NotStorable, match="it holds a number of more than 4,299 digits"):
        check_text(text, "it")


@pytest.mark.parametrize("annotation", [str, dict[str, str], Any])
@pytest.mark.parametrize("word", ["NaN", 'he said "NaN"', "Infinity and -Infinity"])
def test_the_words_for_what_is_no_number_are_texts_like_others(annotation, word):
    value = word if annotation is str else {word: word}
    assert there_and_back(codec_for(annotation), value) == value


@pytest.mark.parametrize(
    "text",
    [
        '"' + "A line of prose, 42.\\n" * 8000 + '"',
        json.dumps([{"a": "b", "n": i} for i in range(8000)]),
    ],
)
def test_looking_at_a_text_takes_few_calls_whatever_it_holds(text):
    calls = []
    sys.setprofile(lambda frame, event, arg: calls.append(event))
    try:
        check_text(text, "it")
    finally:
        sys.setprofile(None)
    # A few for each 4,300 characters where a digit stands at that place, none for a character.
    assert len(calls) < len(text) / MAX_DIGITS * 8


@pytest.mark.parametrize("annotation", [Any, int])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_of_the_most_digits_is_stored_and_one_digit_more_is_not(annotation, sign):
    codec = codec_for(annotation)
    longest = sign * (10**MAX_DIGITS - 1)
    assert there_and_back(codec, longest) == longest
    with pytest.raises(NotStorable, match=r"digits"):
        codec.encode(sign * 10**MAX_DIGITS, "it")


@pytest.mark.parametrize("kind", ["list", "dict", "dataclass", "model"])
def test_what_holds_itself_is_refused(kind):
    value = holding_itself(kind)
    for annotation in (Any, type(value)):
        with pytest.raises(
            NotStorable, match=r"it cannot be stored as JSON: .*([Cc]ircular|nested|depth)"
        ):
            codec_for(annotation).encode(value, "it")


@pytest.mark.parametrize(
    "value",
    [object(), lambda: 1, {(1, 2): 3}, {b"a": 1}],
    ids=["object", "function", "tuple key", "bytes key"],
)
def test_what_json_has_no_form_for_is_refused_with_a_reason(value):
    with pytest.raises(NotStorable, match=r"^the state of a run cannot be stored as JSON: .{10,}"):
        encode_plain(value, "the state of a run")


@pytest.mark.parametrize(
    "text", ["", "{", "NaN", "[1,]", "nul", '"\ud800"', "1" * 5000, "[" * 5000]
)
@pytest.mark.parametrize("annotation", [Any, int, list[int], Order])
def test_a_text_that_is_not_such_a_value_is_refused_with_a_typed_error(annotation, text):
    if annotation is Any and text in ("NaN", '"\ud800"'):
        pytest.skip("Postgres keeps these out, and Python's reader does not")
    with pytest.raises(NotStorable, match="it does not fit its annotation"):
        codec_for(annotation).decode(text, "it")


LIMITS = [
    "x" * (MAX_BYTES - 2), nested(MAX_DEPTH), 10**MAX_DIGITS - 1, -(10**MAX_DIGITS - 1),
    "\U0001f600" * 2000 + "7" * 5000,
]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("target", ["json", "jsonb"])
def test_the_server_accepts_every_text_and_gives_it_back(conn, target):
    @settings(often, max_examples=40)
    @given(st.lists(plain_values, min_size=5, max_size=20))
    def check(values: list[Any]) -> None:
        sent = []
        for value in values:
            with contextlib.suppress(NotStorable):
                sent.append(codec_for(Any).encode(value, "it"))
        rows = conn.execute(
            f"select (t::{target})::text from unnest(%s::text[]) t", (sent,)
        ).fetchall()
        if target == "json":
            assert [text for (text,) in rows] == sent
        else:
            assert len(rows) == len(sent)

    check()


def test_the_server_accepts_values_at_every_limit(conn):
    for value in LIMITS:
        text = encode_plain(value, "it")
        assert conn.execute(
            "select (%s::json)::text, (%s::json)::jsonb is not null", (text, text)
        ).fetchone() == (text, True)


@pytest.mark.parametrize("number", range(5))
def test_the_server_finds_no_fault_with_values_at_every_limit(conn, number):
    conn.execute("select pgflow.check_json_(%s::json, 'it')", (encode_plain(LIMITS[number], "it"),))


@dataclass
class Basket:
    items: set[str]


class Shelf(pydantic.BaseModel):
    items: set[str]


WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]

ARGUMENTS: dict[str, Any] = {
    "nothing": ((), {}),
    "plain": ((1, "a", None, 1.5, True, b"\xff"), {"k": [1, {"x": (2, 3)}]}),
    "classes": ((Order(uuid.UUID(int=7), [Line("a", 1)], datetime(2026, 1, 1, tzinfo=UTC),
        Decimal("1.10"), Colour.RED),), {}),
    "set": ((set(WORDS),), {}),
    "sets within": (({"words": frozenset(WORDS), "pairs": [{(w, len(w)) for w in WORDS}]},), {}),
    "sets of sets": ((frozenset({frozenset(WORDS[:2]), frozenset(WORDS[2:])}),), {}),
    "set of enums": ((set(Colour),), {}),
    "not a number": ((math.nan, math.inf), {}),
    "lone surrogate": (("\ud800",), {}),
    "a dataclass with a set": ((Basket(set(WORDS)),), {}),
    "a model with a set": ((Shelf(items=set(WORDS)),), {}),
    "keys that are no texts": (({Colour.RED: 1, (1, 2): 2, date(2026, 1, 1): Basket(set(WORDS))},
        Loop({uuid.UUID(int=7): 1})), {}),
}  # fmt: skip


def hash_everything() -> dict[str, int]:
    return {
        name: hash_arguments(args, kwargs, "step pay") for name, (args, kwargs) in ARGUMENTS.items()
    }


@pytest.fixture(scope="module")
def hashes_elsewhere() -> list[dict[str, int]]:
    """The hashes as other processes find them, each with its own order of sets."""
    code = "import json, test_values; print(json.dumps(test_values.hash_everything()))"
    here = Path(__file__).parent
    paths = os.pathsep.join(map(str, (here, here.parent / "kits", here.parents[1])))
    found = []
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(json.loads(done.stdout))
    return found


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_hash_of_arguments_is_the_same_in_every_process(hashes_elsewhere, name):
    here = hash_everything()[name]
    assert [found[name] for found in hashes_elsewhere] == [here] * 2
    assert 0 <= here < 2**63


def test_other_arguments_have_another_hash():
    given_arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}), ((1,), {}), (("1",), {}), ((True,), {}), ((1.0,), {}), ((None,), {}),
        (([1],), {}), ((1, 1), {}), ((), {"a": 1}), ((), {"b": 1}), ((set(),), {}), (({"a"},), {}),
        (({"a", "b"},), {}), ((Line("a", 1),), {}), ((Line("a", 2),), {}),
    ]  # fmt: skip
    found = len({hash_arguments(args, kwargs, "step pay") for args, kwargs in given_arguments})
    assert found == len(given_arguments)


@given(st.lists(st.one_of(st.integers(), st.text(), st.booleans(), st.none())).map(tuple))
def test_arguments_that_need_no_encoder_have_the_hash_that_it_would_give_them(args):
    text = json.dumps(args, separators=(",", ":"))
    expected = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
    assert hash_arguments(args, {}, "step pay") == expected


class Opaque:
    """Nothing that could be stored."""


@pytest.mark.parametrize("annotation", [Opaque, list[Opaque], "Nowhere"])
def test_an_annotation_that_has_no_form_is_refused_with_what_it_is_of(annotation):
    with pytest.raises(DefinitionError, match=r"^the result of step pay cannot be stored: .{10,}"):
        codec_for(annotation, "the result of step pay")


def test_arguments_that_cannot_be_compared_are_refused_with_the_name_of_the_step():
    with pytest.raises(NotStorable, match=r"^an argument of step pay cannot be stored as JSON: "):
        hash_arguments((object(),), {}, "step pay")
