"""JSON to objects and back without silent changes: integers are exact, values that JSON cannot represent are errors.

msgspec reads, because it supports integers of any size. orjson writes; for values of a type, msgspec does. Both write
NaN and the infinities as null, and orjson refuses integers beyond 64 bits, so checked_json looks at such values again.
"""

from __future__ import annotations

import enum
import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from decimal import Decimal
from typing import Any

import msgspec
import orjson
from msgspec import inspect

from penstock.kernel.codecs import checked_json

from ..common.numpy_values import from_numpy, is_numpy_scalar
from ..errors import SerializationError

#: The range of integers that orjson writes.
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_FINITE = frozenset((str, int, bool, type(None)))
#: Text, which is skipped, or one of the numbers that JSON does not have.
_NOT_JSON = re.compile(rb'"(?:[^"\\]++|\\.)*+"|-?Infinity|NaN', re.DOTALL)
_UNUSUAL = {b"NaN": math.nan, b"Infinity": math.inf, b"-Infinity": -math.inf}


def json_encoder(kind: object = Any, allow_nan: bool = False) -> Callable[[Any], bytes]:
    """Return a function that converts values (not None) to JSON.

    kind: the type of the values, Any for all types that orjson supports, and NumPy's scalars. allow_nan: write NaN,
    Infinity and -Infinity, which not every program can read; otherwise the function raises SerializationError for them.
    It raises TypeError or ValueError for values that cannot be written.
    """
    untyped = kind is Any
    dumps: Callable[[Any], bytes] = orjson.dumps if untyped else msgspec.json.Encoder(enc_hook=_of_python).encode

    def look_again(value: object, data: bytes | None, error: Exception | None) -> bytes:
        if error is not None and not untyped:
            raise error
        plain = value if untyped else msgspec.to_builtins(value, str_keys=True, enc_hook=_of_python)
        if data is not None and _is_finite(plain):
            return data
        return orjson.dumps(_spelled(plain, allow_nan))

    checked: Callable[[Any], bytes] = checked_json(dumps, look_again, not untyped)
    return checked


def json_decoder(kind: object = Any, allow_nan: bool = False) -> Callable[[bytes], object]:
    """Return a function that reads JSON as values of a type; allow_nan: also NaN, Infinity and -Infinity.

    It raises ValueError for invalid JSON and for JSON of another type.
    """
    strict: Callable[[bytes], object] = msgspec.json.Decoder(kind).decode
    if not allow_nan:
        return strict
    number = _decimal_or_float(kind)

    def decode(data: bytes) -> object:
        try:
            return strict(data)
        except msgspec.DecodeError:
            spelled, names = _with_names(bytes(data))  # of a part of JSON, a msgspec.Raw
            if not names:
                raise
        found = msgspec.json.Decoder(float_hook=lambda text: names.get(text) or number(text)).decode(spelled)
        return msgspec.convert(found, kind, str_keys=True)

    return decode


def _with_names(data: bytes) -> tuple[bytes, dict[str, float]]:
    """Return JSON in which numbers replace NaN and the infinities, and the value behind each of them by its text."""
    name = "0.1"
    while name.encode() in data:  # random, because a record may be made to contain any known ones
        name = f"0.{random.getrandbits(64)}"
    names: dict[str, float] = {}

    def spell(match: re.Match[bytes]) -> bytes:
        number = _UNUSUAL.get(match[0])
        if number is None:
            return match[0]
        spelled = f"{name}e{len(match[0])}"  # NaN, Infinity and -Infinity differ in length
        names[spelled] = number
        return f" {spelled} ".encode()  # blanks, because another number may be beside it, by mistake

    return _NOT_JSON.sub(spell, data), names


def _decimal_or_float(kind: object) -> Callable[[str], object]:
    """Return the function that reads a number with a fraction, for msgspec.convert to a type."""
    kinds = _kinds_in(inspect.type_info(kind))
    if inspect.DecimalType not in kinds:
        return _finite
    return _decimal if inspect.AnyType not in kinds else _exact_float


def _kinds_in(described: inspect.Type) -> set[type]:
    """Return the kinds of the types of which a type is made."""
    seen: dict[int, object] = {}
    waiting: list[object] = [described]
    while waiting:
        found = waiting.pop()
        if id(found) not in seen:
            seen[id(found)] = found
            if isinstance(found, tuple):
                waiting += found
            elif isinstance(found, inspect.Type | inspect.Field):
                waiting += [getattr(found, name) for name in found.__struct_fields__]
    return {type(found) for found in seen.values()}


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is beyond the range of a float")
    return number


def _decimal(text: str) -> Decimal:
    _finite(text)  # it may be read as a float in the end
    return Decimal(text)


def _exact_float(text: str) -> float:
    """Return a number that may be read as a Decimal, or as a float for a field of any type."""
    number = _finite(text)
    if str(Decimal(repr(number))) != str(Decimal(text)):
        raise ValueError(
            f"{text} beside a NaN may be a Decimal or a float, and a float has other digits: "
            "declare the types of all fields instead of Any"
        )
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


def _spelled(value: object, allow_nan: bool) -> object:
    """Return a value with JSON fragments in place of the numbers that orjson changes or refuses."""
    opened = _opened(value)
    if isinstance(opened, dict):
        return {name: _spelled(part, allow_nan) for name, part in opened.items()}
    if isinstance(opened, list) or type(opened) is tuple:  # orjson refuses a tuple of a class
        return [_spelled(part, allow_nan) for part in opened]
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


def _opened(value: object) -> object:
    """Return an enum's value, a dataclass as a dict, a scalar of NumPy as a number; other values unchanged."""
    if isinstance(value, enum.Enum):
        return _opened(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        names = getattr(value, "__dict__", value.__dataclass_fields__)
        return {name: getattr(value, name) for name in names if not name.startswith("_")}
    return from_numpy(value) if is_numpy_scalar(value) else value


def _of_python(value: object) -> object:
    """Return a scalar of NumPy as a number of Python, for msgspec; raises TypeError for anything else."""
    if is_numpy_scalar(value):
        return from_numpy(value)
    raise TypeError(f"Encoding objects of type {type(value).__qualname__} is unsupported")
