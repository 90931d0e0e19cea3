"""Arguments of handlers: checked against the signature, and converted from and to JSON."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import inspect
import pathlib
import types
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, Union

from .api import to_json
from .errors import ConfigurationError, PayloadError, described
from .job import Job
from .plain import NotJson, is_model, plain

Convert = Callable[[Any, str], Any]
"""Converts a JSON value into a Python value. The text is the place of the value, for errors."""

_NAMED_BY_TEXT: dict[Any, Callable[[str], Any]] = {
    datetime.datetime: lambda text: datetime.datetime.fromisoformat(_utc(text)),
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    uuid.UUID: uuid.UUID,
    Decimal: Decimal,
    pathlib.Path: pathlib.Path,
    pathlib.PurePath: pathlib.PurePath,
}


def _utc(text: str) -> str:
    # Python 3.10 does not read a Z.
    return text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text


class Signature:
    """The parameters of a handler."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        for parameter in self._signature.parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ConfigurationError(
                    f"{function.__qualname__} has the parameter {parameter}, but arguments of "
                    "jobs are passed by name: give each a parameter of its own"
                )
        self._converters: dict[str, Convert] | None = None
        self._job_parameter: str | None = None
        self._result: Convert | None = None

    def compile(self) -> None:
        """Resolve the annotations. They may name types defined after the handler.

        Raises:
            ConfigurationError: An annotation cannot be resolved, or its type is not supported.
        """
        if self._converters is not None:
            return
        name = self._function.__qualname__
        try:
            hints = typing.get_type_hints(self._function)
        except Exception as error:
            raise ConfigurationError(f"an annotation of {name} is unknown: {error}") from error
        converters: dict[str, Convert] = {}
        for parameter in self._signature.parameters:
            hint = hints.get(parameter, Any)
            if isinstance(hint, type) and issubclass(hint, Job):
                if self._job_parameter is not None:
                    raise ConfigurationError(f"{name} has two parameters of the type Job")
                self._job_parameter = parameter
            else:
                converters[parameter] = converter(hint, f"parameter {parameter} of {name}")
        self._result = _result_converter(hints.get("return", Any), name)
        self._converters = converters

    @property
    def job_parameter(self) -> str | None:
        """Name of the parameter of the type ``Job``, if there is one."""
        self.compile()
        return self._job_parameter

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as JSON values by name.

        Raises:
            TypeError: Arguments are missing, or too many.
            PayloadError: An argument is no JSON, or does not match its annotation.
        """
        job = self.job_parameter
        signature = self._signature
        if job is not None:
            others = [p for name, p in signature.parameters.items() if name != job]
            signature = signature.replace(parameters=others)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._function.__qualname__}(): {error}") from None
        encoded = {name: _encoded(value, name) for name, value in bound.arguments.items()}
        self.decode(encoded)
        return encoded

    def decode(self, values: Any) -> dict[str, Any]:
        """Return arguments for a call by name.

        Raises:
            PayloadError: Arguments are missing, unknown, or do not match their annotations.
        """
        self.compile()
        converters = self._converters or {}
        if not isinstance(values, dict):
            raise PayloadError(f"args must be an object, not {_kind(values)}")
        unknown = [name for name in values if name not in converters]
        if unknown:
            raise PayloadError(f"unknown argument {unknown[0]!r}; known: {', '.join(converters)}")
        decoded = {}
        for name, convert in converters.items():
            if name in values:
                decoded[name] = _converted(convert, values[name], name)
            elif self._signature.parameters[name].default is inspect.Parameter.empty:
                raise PayloadError(f"the argument {name!r} is missing")
        return decoded

    def decode_result(self, value: Any) -> Any:
        """Convert a result into the annotated type of the return value.

        None stays None: the job has no result, or the client may not read it.

        Raises:
            PayloadError: The result does not match its annotation.
        """
        self.compile()
        if self._result is None or value is None:
            return value
        return _converted(self._result, value, "result")


def _encoded(value: Any, name: str) -> Any:
    """Return an argument as JSON. The methods of a user's type may raise anything."""
    try:
        encoded = plain(value, name)
        # Finds numbers that are not finite, and halves of characters.
        to_json(encoded)
    except NotJson as error:
        raise PayloadError(str(error)) from None
    except Exception as error:
        raise PayloadError(f"the argument {name!r} is no JSON: {described(error)}") from error
    return encoded


def _converted(convert: Convert, value: Any, place: str) -> Any:
    """Convert a value. The methods of a user's type may raise anything."""
    try:
        return convert(value, place)
    except PayloadError:
        raise
    except Exception as error:
        raise PayloadError(f"{place}: {described(error)}") from error


def _result_converter(hint: Any, name: str) -> Convert | None:
    try:
        return converter(hint, f"result of {name}")
    except ConfigurationError:
        # A result may have any type that is written as JSON.
        return None


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", int: "an integer",
             float: "a number", type(None): "null"}  # fmt: skip
    return names.get(type(value), type(value).__name__)


def converter(hint: Any, where: str) -> Convert:
    """Return the converter of an annotated type.

    Raises:
        ConfigurationError: The type has no form in JSON.
    """
    return _Converters(where).of(hint)


class _Converters:
    """Makes converters. Types that contain themselves are looked up at the first use."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._objects: dict[Any, Convert] = {}

    def of(self, hint: Any) -> Convert:
        if hint is Any or hint is object or isinstance(hint, typing.TypeVar):
            return _anything
        if hint is None or hint is type(None):
            return _expect(lambda value: value is None, "null")
        if hint in _SCALARS:
            return _SCALARS[hint]
        if hint in _NAMED_BY_TEXT:
            return _from_text(hint, _NAMED_BY_TEXT[hint])
        supertype = getattr(hint, "__supertype__", None)
        if supertype is not None:
            return self.of(supertype)
        origin = typing.get_origin(hint)
        if origin is not None:
            return self._of_generic(hint, origin, typing.get_args(hint))
        if isinstance(hint, type):
            return self._of_class(hint)
        raise self._unsupported(hint)

    def _unsupported(self, hint: Any) -> ConfigurationError:
        return ConfigurationError(f"{self._where} has the type {hint!r}, which has no form in JSON")

    def _of_generic(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Convert:
        if origin in (Union, types.UnionType):
            return _union([self.of(arg) for arg in args], hint)
        if origin is Literal:
            return _literal(args)
        if origin is typing.Annotated:
            return self.of(args[0])
        if origin is tuple:
            if len(args) == 2 and args[1] is Ellipsis:
                return _sequence(self.of(args[0]), tuple)
            return _fixed_tuple([self.of(arg) for arg in args])
        if isinstance(origin, type) and issubclass(origin, (Set, set, frozenset)):
            return _sequence(self.of(args[0]), frozenset if origin is frozenset else set)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return _mapping(self.of(args[0]), args[0], self.of(args[1]))
        if isinstance(origin, type) and issubclass(list, origin):
            return _sequence(self.of(args[0]), list)
        raise self._unsupported(hint)

    def _of_class(self, hint: type) -> Convert:
        if is_model(hint):
            return _model(hint)
        if issubclass(hint, enum.Enum):
            return _enum(hint)
        if hint in (list, tuple, set, frozenset):
            return _sequence(_anything, hint)
        if hint in (dict, Mapping):
            return _expect(lambda value: isinstance(value, dict), "an object")
        if typing.is_typeddict(hint) or dataclasses.is_dataclass(hint):
            return self._of_object(hint)
        raise self._unsupported(hint)

    def _of_object(self, hint: Any) -> Convert:
        if hint in self._objects:
            # Looked up later: the type contains itself.
            return lambda value, place: self._objects[hint](value, place)  # noqa: PLW0108
        self._objects[hint] = _anything
        try:
            hints = typing.get_type_hints(hint)
        except Exception as error:
            raise ConfigurationError(f"an annotation of {hint!r} is unknown: {error}") from error
        if dataclasses.is_dataclass(hint):
            fields = {f.name: f for f in dataclasses.fields(hint) if f.init}
            absent = dataclasses.MISSING
            required = {
                name
                for name, f in fields.items()
                if f.default is absent and f.default_factory is absent
            }
            make: Any = hint
        else:
            fields, required, make = hints, set(hint.__required_keys__), dict
        converters = {name: self.of(hints[name]) for name in fields}
        self._objects[hint] = _object(converters, required, make)
        return self._objects[hint]


def _wrong(place: str, expected: str, value: Any) -> PayloadError:
    shown = "" if isinstance(value, (dict, list)) or value is None else f" {str(value)[:40]!r}"
    return PayloadError(f"{place}: expected {expected}, got {_kind(value)}{shown}")


def _expect(check: Callable[[Any], bool], expected: str) -> Convert:
    def convert(value: Any, place: str) -> Any:
        if not check(value):
            raise _wrong(place, expected, value)
        return value

    return convert


def _anything(value: Any, place: str) -> Any:  # noqa: ARG001
    return value


def _float(value: Any, place: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise _wrong(place, "a number", value)


_SCALARS: dict[Any, Convert] = {
    str: _expect(lambda value: isinstance(value, str), "text"),
    int: _expect(
        lambda value: isinstance(value, int) and not isinstance(value, bool), "an integer"
    ),
    bool: _expect(lambda value: isinstance(value, bool), "a boolean"),
    float: _float,
}


def _from_text(hint: type, parse: Callable[[str], Any]) -> Convert:
    def convert(value: Any, place: str) -> Any:
        if isinstance(value, str) or (hint is Decimal and type(value) is int):
            try:
                return parse(str(value))
            except (ValueError, InvalidOperation):
                pass
        raise _wrong(place, f"text of a {hint.__name__}", value)

    return convert


def _union(options: list[Convert], hint: Any) -> Convert:
    def convert(value: Any, place: str) -> Any:
        errors = []
        for option in options:
            try:
                return option(value, place)
            except PayloadError as error:
                errors.append(str(error))
        raise PayloadError(f"{place}: no type of {hint} fits: " + "; ".join(errors))

    return convert


def _literal(allowed: tuple[Any, ...]) -> Convert:
    def convert(value: Any, place: str) -> Any:
        for option in allowed:
            if type(option) is type(value) and option == value:
                return option
        raise _wrong(place, "one of " + ", ".join(map(repr, allowed)), value)

    return convert


def _enum(hint: type[enum.Enum]) -> Convert:
    def convert(value: Any, place: str) -> Any:
        for member in hint:
            if plain(member) == value and type(plain(member)) is type(value):
                return member
        values = ", ".join(repr(plain(member)) for member in hint)
        raise _wrong(place, f"one of {values}", value)

    return convert


def _items(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(place, "a list", value)
    return value


def _sequence(item: Convert, make: Callable[[list[Any]], Any]) -> Convert:
    def convert(value: Any, place: str) -> Any:
        items = enumerate(_items(value, place))
        return make([item(element, f"{place}[{index}]") for index, element in items])

    return convert


def _fixed_tuple(items: list[Convert]) -> Convert:
    def convert(value: Any, place: str) -> Any:
        elements = _items(value, place)
        if len(elements) != len(items):
            raise PayloadError(f"{place}: expected {len(items)} items, got {len(elements)}")
        pairs = enumerate(zip(items, elements, strict=True))
        return tuple(item(element, f"{place}[{n}]") for n, (item, element) in pairs)

    return convert


def _mapping(key: Convert, key_hint: Any, item: Convert) -> Convert:
    def read_key(text: str, place: str) -> Any:
        if key_hint is int:
            try:
                return int(text)
            except ValueError:
                raise PayloadError(f"{place}: the key {text!r} is no integer") from None
        return key(text, f"a key of {place}")

    def convert(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(place, "an object", value)
        return {read_key(k, place): item(v, f"{place}.{k}") for k, v in value.items()}

    return convert


def _object(converters: dict[str, Convert], required: set[str], make: Any) -> Convert:
    def convert(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(place, "an object", value)
        missing = sorted(required - value.keys())
        if missing:
            raise PayloadError(f"{place}: the field {missing[0]!r} is missing")
        unknown = [name for name in value if name not in converters]
        if unknown:
            raise PayloadError(f"{place}: unknown field {unknown[0]!r}")
        fields = {name: converters[name](item, f"{place}.{name}") for name, item in value.items()}
        try:
            return make(**fields)
        except (TypeError, ValueError) as error:
            raise PayloadError(f"{place}: {error}") from error

    return convert


def _model(hint: Any) -> Convert:
    def convert(value: Any, place: str) -> Any:
        try:
            return hint.model_validate(value)
        except ValueError as error:
            raise PayloadError(f"{place}: {error}") from error

    return convert
