"""Arguments of jobs: signatures, conversion from and to JSON, messages about wrong ones."""

from __future__ import annotations

import datetime
import enum
import json
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Optional, TypedDict, Union

import pydantic
import pytest

from tenure import ConfigurationError, Job, PayloadError
from tenure.arguments import Signature
from tenure.plain import plain

UTC = datetime.timezone.utc


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: float
    y: float = 0.0
    tags: list[str] = field(default_factory=list)


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


class Part(TypedDict, total=False):
    size: int


class Order(Part):
    name: str


class Model(pydantic.BaseModel):
    count: int
    when: datetime.datetime


Unary = Any


def _round_trip(hint: Unary, value: object) -> object:
    def handler(value: Any) -> None: ...

    handler.__annotations__ = {"value": hint}
    signature = Signature(handler)
    encoded = signature.encode([value], {})
    return signature.decode(json.loads(json.dumps(encoded)))["value"]


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (str, "a"),
        (int, 5),
        (float, 5.5),
        (bool, True),
        (None, None),
        (Any, {"a": [1, None]}),
        (Optional[int], None),
        (Union[int, str], "a"),
        (int | None, 7),
        (Literal["a", 1], 1),
        (list[int], [1, 2]),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], (1, 2, 3)),
        (set[str], {"a", "b"}),
        (frozenset[int], frozenset({1})),
        (dict[str, int], {"a": 1}),
        (dict[int, str], {1: "a"}),
        (dict, {"a": 1}),
        (list, [1, "a"]),
        (Colour, Colour.BLUE),
        (datetime.datetime, datetime.datetime(2026, 1, 2, 3, tzinfo=UTC)),
        (datetime.date, datetime.date(2026, 1, 2)),
        (uuid.UUID, uuid.UUID(int=7)),
        (Decimal, Decimal("1.50")),
        (Path, Path("/tmp/a")),
        (Point, Point(1.0, 2.0, ["a"])),
        (list[Point], [Point(1.0)]),
        (Tree, Tree("a", [Tree("b", [Tree("c")])])),
        (Order, {"name": "a", "size": 3}),
        (Order, {"name": "a"}),
        (Model, Model(count=3, when=datetime.datetime(2026, 1, 2, tzinfo=UTC))),
    ],
)
def test_argument_survives_json(hint: Unary, value: object) -> None:
    assert _round_trip(hint, value) == value


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (str, 5, "value: expected text, got an integer '5'"),
        (int, True, "value: expected an integer, got a boolean 'True'"),
        (int, 1.5, "value: expected an integer, got a number '1.5'"),
        (float, "1", "value: expected a number, got text '1'"),
        (list[int], [1, "a"], "value[1]: expected an integer, got text 'a'"),
        (dict[str, int], {"a": "b"}, "value.a: expected an integer, got text 'b'"),
        (tuple[int, str], [1], "value: expected 2 items, got 1"),
        (Literal["a", "b"], "c", "value: expected one of 'a', 'b', got text 'c'"),
        (Colour, "green", "value: expected one of 'red', 'blue', got text 'green'"),
        (uuid.UUID, "no", "value: expected text of a UUID, got text 'no'"),
        (Point, {"y": 1}, "value: the field 'x' is missing"),
        (Point, {"x": 1, "z": 2}, "value: unknown field 'z'"),
        (Tree, {"name": "a", "children": [{}]}, "value.children[0]: the field 'name' is missing"),
        (Order, {"size": 1}, "value: the field 'name' is missing"),
        (Model, {"count": "many"}, "value: 2 validation errors for Model"),
        (Union[int, None], "a", "value: no type of"),
    ],
)
def test_wrong_argument_is_named(hint: Unary, value: object, message: str) -> None:
    def handler(value: Any) -> None: ...

    handler.__annotations__ = {"value": hint}
    with pytest.raises(PayloadError) as wrong:
        Signature(handler).decode({"value": value})
    assert str(wrong.value).startswith(message)


def test_arguments_are_bound_by_signature() -> None:
    def handler(to: str, job: Job, *, body: str = "") -> None: ...

    signature = Signature(handler)
    assert signature.job_parameter == "job"
    assert signature.encode(["a"], {}) == {"to": "a"}
    assert signature.encode([], {"to": "a", "body": "b"}) == {"to": "a", "body": "b"}
    for args, kwargs in (([], {}), (["a", "b"], {}), (["a"], {"more": 1})):
        with pytest.raises(TypeError, match="handler"):
            signature.encode(args, kwargs)
    with pytest.raises(PayloadError, match="to: expected text, got an integer"):
        signature.encode([5], {})


class Locked(pydantic.BaseModel):
    text: str

    @pydantic.field_serializer("text")
    def serialize(self, _text: str) -> str:
        raise KeyError("locked")


@dataclass
class Strict:
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise LookupError("no such number")


def test_argument_that_is_no_json_is_payload_error() -> None:
    def handler(value: Any) -> None: ...

    circle: list[Any] = []
    circle.append(circle)
    values = [object(), float("nan"), "\ud800", circle, Locked(text="a"), {1.5: "a"}]
    for value in values:
        with pytest.raises(PayloadError, match=r"is no JSON|is no text"):
            Signature(handler).encode([value], {})


def test_error_of_users_type_is_payload_error() -> None:
    def handler(value: Strict) -> Strict: ...

    signature = Signature(handler)
    for use in (lambda: signature.decode({"value": {"number": -1}}),
                lambda: signature.decode_result({"number": -1})):  # fmt: skip
        with pytest.raises(PayloadError, match="LookupError: no such number"):
            use()


def test_result_has_annotated_type() -> None:
    def handler() -> Point: ...

    signature = Signature(handler)
    assert signature.decode_result({"x": 1.0}) == Point(1.0)
    # There is none, or the client may not read it.
    assert signature.decode_result(None) is None


def test_handler_without_names_of_arguments_is_refused() -> None:
    def several(*args: int) -> None: ...

    def named(**more: int) -> None: ...

    def positional(a: int, /) -> None: ...

    def callback(a: type) -> None: ...

    for handler in (several, named, positional):
        with pytest.raises(ConfigurationError, match="passed by name"):
            Signature(handler)
    with pytest.raises(ConfigurationError, match="no form in JSON"):
        Signature(callback).compile()


def test_plain_converts_nested_values() -> None:
    value = {Colour.RED: {Point(1.0).x}, 2: (Colour.BLUE, Decimal("1.0"))}
    assert plain(value) == {"red": [1.0], "2": ["blue", "1.0"]}
    with pytest.raises(TypeError, match=r"value.a\[0\] is no JSON: bytes"):
        plain({"a": [b"x"]})
