"""JSON to objects and back without silent changes: integers are exact, values that JSON cannot represent are errors.

msgspec reads, because it supports integers of any size. orjson writes; for values of a type, msgspec does. Both write
NaN and the infinities as null, and orjson refuses integers beyond 64 bits, so checked_json looks at such values again.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import msgspec
import orjson

from ..errors import SerializationError
from .codecs import checked_json

#: The range of integers that orjson writes.
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_FINITE = frozenset((str, int, bool, type(None)))


def json_encoder(kind: Any = Any, allow_nan: bool = False) -> Callable[[Any], bytes]:
    """Return a function that converts values (not None) to JSON.

    kind: the type of the values, Any for all types that orjson supports. allow_nan: write NaN, Infinity and -Infinity,
    which not every program can read; otherwise the function raises SerializationError for them. It raises TypeError or
    ValueError for values that cannot be written.
    """
    untyped = kind is Any
    dumps: Callable[[Any], bytes] = orjson.dumps if untyped else msgspec.json.Encoder().encode

    def look_again(value: Any, data: bytes | None, error: Exception | None) -> bytes:
        if error is not None and not untyped:
            raise error
        plain = value if untyped else msgspec.to_builtins(value, str_keys=True)
        if data is not None and _is_finite(plain):
            return data
        return orjson.dumps(_spelled(plain, allow_nan))

    return checked_json(dumps, look_again)


def json_decoder(kind: Any = Any, allow_nan: bool = False) -> Callable[[bytes], Any]:
    """Return a function that reads JSON as values of a type; allow_nan: also NaN, Infinity and -Infinity.

    It raises ValueError for invalid JSON and for JSON of another type.
    """
    strict: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
    if not allow_nan:
        return strict

    def decode(data: bytes) -> Any:
        try:
            return strict(data)
        except msgspec.DecodeError:
            found = json.loads(data.decode(), parse_float=_finite)
            return msgspec.convert(found, kind, str_keys=True)

    return decode


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is beyond the range of a float")
    return number


def _is_finite(value: Any) -> bool:
    """Return whether a value contains neither NaN nor an infinity. The kernel checks values of the usual types."""
    kind = type(value)
    if kind is float:
        return math.isfinite(value)
    opened = value if kind is dict or kind is list else _opened(value)
    if isinstance(opened, dict):
        opened = opened.values()
    elif not isinstance(opened, list | tuple):
        return opened is value or _is_finite(opened)
    return all(_is_finite(part) for part in opened if type(part) not in _FINITE)


def _spelled(value: Any, allow_nan: bool) -> Any:
    """Return a value with JSON fragments in place of the numbers that orjson changes or refuses."""
    opened = _opened(value)
    if isinstance(opened, dict):
        return {name: _spelled(part, allow_nan) for name, part in opened.items()}
    if isinstance(opened, list | tuple):
        return [_spelled(part, allow_nan) for part in opened] if type(opened) in (list, tuple) else opened
    if isinstance(opened, int) and not _INT_MIN <= opened <= _INT_MAX:
        return orjson.Fragment(int.__repr__(opened))
    if isinstance(opened, float) and not math.isfinite(opened):
        if not allow_nan:
            raise SerializationError(
                f"JSON has no {opened!r}. Write None instead, or use Serdes.json(allow_nan=True) if all programs "
                "that read it can read NaN and Infinity."
            )
        return orjson.Fragment(json.dumps(opened))
    return opened


def _opened(value: Any) -> Any:
    """Return an enum's value, a dataclass as a dict, other values unchanged: as orjson writes them."""
    if isinstance(value, enum.Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        names = getattr(value, "__dict__", value.__dataclass_fields__)
        return {name: getattr(value, name) for name in names if not name.startswith("_")}
    return value
