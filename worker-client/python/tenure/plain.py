"""Python values as JSON."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import pathlib
import uuid
from collections.abc import Mapping, Set
from decimal import Decimal
from typing import Any


class NotJson(TypeError):
    """A value is no JSON. The message begins with its place."""


def plain(value: Any, place: str = "value") -> Any:
    """Return a value as JSON: dataclasses, pydantic models, enums, dates and sets are converted.

    Raises:
        NotJson: The value is no JSON.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value, place)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: plain(getattr(value, f.name), f"{place}.{f.name}") for f in fields}
    if is_model(type(value)):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {_key(key, place): plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{place}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Set):
        return [plain(item, f"an item of {place}") for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (uuid.UUID, Decimal, pathlib.PurePath)):
        return str(value)
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return base(value)
    raise NotJson(f"{place} is no JSON: {type(value).__qualname__}")


def _key(key: Any, place: str) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, str):
        return str(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise NotJson(f"a key of {place} is no text: {key!r}")


def is_model(hint: Any) -> bool:
    """Return True for a pydantic model. pydantic is not imported, as it is no dependency."""
    return isinstance(hint, type) and any(
        base.__module__ == "pydantic.main" and base.__name__ == "BaseModel" for base in hint.__mro__
    )
