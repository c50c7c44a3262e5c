"""The named functions of penstock-golden/1, FORMAT.md section 4. A spec is ``name`` or ``name:argument``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock import Windowed

KeyValueFunction = Callable[[Any, Any], Any]
Aggregator = Callable[[Any, Any, Any], Any]


class UnknownFunctionError(Exception):
    """A case names an unknown function."""


def split(spec: str) -> tuple[str, str]:
    """Return name and argument; the argument is the text after the first colon."""
    name, _, argument = spec.partition(":")
    return name, argument


def _find(table: dict[str, Any], spec: str) -> tuple[Any, str]:
    name, argument = split(spec)
    if name not in table:
        raise UnknownFunctionError(f"unknown function {spec}")
    return table[name], argument


def text(value: Any) -> str:
    """Return text(x) of FORMAT.md; raises TypeError for doubles and bytes, as the recorder does."""
    if value is None:
        return "null"
    if isinstance(value, Windowed):
        return f"{text(value.key)}@{value.start}/{value.end}"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    raise TypeError(f"text() of {type(value).__name__}")


def as_long(value: Any) -> int:
    """Return a number, or the number in a text, as Java's long."""
    return int(wrap(int(value)))


def wrap(number: Any) -> Any:
    """Let whole numbers overflow like Java's long; others stay."""
    return (number + 2**63) % 2**64 - 2**63 if isinstance(number, int) else number


def _number(value: Any) -> Any:
    """Return a number; raises TypeError for anything else, as Java's casts do."""
    if isinstance(value, int | float):
        return value
    raise TypeError(f"{type(value).__name__} is no number")


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"{type(value).__name__} is no string")


def _or_zero(value: Any) -> int:
    return 0 if value is None else as_long(value)


def _like(sample: Any, number: str) -> Any:
    return float(number) if isinstance(sample, float) else int(number)


def _plus(one: Any, other: Any) -> Any:
    return wrap(_number(one) + _number(other))


def _times(one: Any, other: Any) -> Any:
    return wrap(_number(one) * _number(other))


def _length(value: str) -> int:
    return len(_string(value).encode("utf-16-le")) // 2


def _first_char(value: Any) -> str | None:
    return _string(value)[:1] or None if value is not None else None


def _remove(whole: str, part: str) -> str:
    return whole.replace(part, "", 1)


def _words(value: Any) -> list[str]:
    return [] if value is None else [word for word in _string(value).split(" ") if word]


_PREDICATES: dict[str, Callable[[Any, Any, str], bool]] = {
    "always": lambda k, v, a: True,
    "never": lambda k, v, a: False,
    "value_even": lambda k, v, a: v is not None and as_long(v) % 2 == 0,
    "value_gt": lambda k, v, a: v is not None and _number(v) > float(a),
    "value_not_null": lambda k, v, a: v is not None,
    "key_not_null": lambda k, v, a: k is not None,
    "key_starts_with": lambda k, v, a: isinstance(k, str) and k.startswith(a),
    "value_contains": lambda k, v, a: isinstance(v, str) and a in v,
}


def predicate(spec: str) -> KeyValueFunction:
    """Return a predicate (key, value)."""
    function, argument = _find(_PREDICATES, spec)
    return lambda key, value: function(key, value, argument)


def _fail_if(value: Any, argument: str) -> Any:
    if text(value) == argument:
        raise RuntimeError(f"fail_if {argument}")
    return value


#: For values that are not null; null stays null.
_VALUES: dict[str, Callable[[Any, str], Any]] = {
    "identity": lambda v, a: v,
    "value_plus": lambda v, a: _plus(v, _like(v, a)),
    "value_times": lambda v, a: _times(v, _like(v, a)),
    "value_to_string": lambda v, a: text(v),
    "value_to_long": lambda v, a: as_long(v),
    "value_to_integer": lambda v, a: (as_long(v) + 2**31) % 2**32 - 2**31,
    "value_to_double": lambda v, a: float(_number(v)),
    "value_length": lambda v, a: _length(v),
    "upper": lambda v, a: _string(v).upper(),
    "null_if": lambda v, a: None if v == a else v,
    "null_if_even": lambda v, a: None if as_long(v) % 2 == 0 else v,
    "fail_if": _fail_if,
}

#: Also for null values, and for keys.
_KEYED_VALUES: dict[str, Callable[[Any, Any, str], Any]] = {
    "constant": lambda k, v, a: a,
    "key_value": lambda k, v, a: f"{text(k)}:{text(v)}",
    "value_from_key": lambda k, v, a: k,
}


def value(spec: str) -> KeyValueFunction:
    """Return a value function (key, value) -> value."""
    if split(spec)[0] in _KEYED_VALUES:
        keyed, argument = _find(_KEYED_VALUES, spec)
        return lambda key, value: keyed(key, value, argument)
    function, argument = _find(_VALUES, spec)
    return lambda key, value: None if value is None else function(value, argument)


_KEYS: dict[str, Callable[[Any, Any, str], Any]] = {
    "same_key": lambda k, v, a: k,
    "key_from_value": lambda k, v, a: v,
    "key_from_value_first_char": lambda k, v, a: _first_char(v),
    "key_first_char": lambda k, v, a: _first_char(k),
    "key_upper": lambda k, v, a: None if k is None else _string(k).upper(),
    "value_mod": lambda k, v, a: None if v is None else str(as_long(v) % int(a)),
    "const_key": lambda k, v, a: a,
    "null_key": lambda k, v, a: None,
    "unwindow": lambda k, v, a: k.key,
    "window_string": lambda k, v, a: text(k),
}


def key(spec: str) -> KeyValueFunction:
    """Return a key function (key, value) -> key."""
    function, argument = _find(_KEYS, spec)
    return lambda key, value: function(key, value, argument)


def _prefix(value: Any) -> str | None:
    return value[: value.index(":")] if isinstance(value, str) and value.find(":") > 0 else None


_FOREIGN_KEYS: dict[str, KeyValueFunction] = {
    "fk_first_char": lambda k, v: _first_char(v),
    "fk_value": lambda k, v: v,
    "fk_prefix": lambda k, v: _prefix(v),
    "fk_key_first_char": lambda k, v: _first_char(k),
}


def foreign_key(spec: str) -> KeyValueFunction:
    """Return a foreign key function (key, value) -> foreign key."""
    function, _ = _find(_FOREIGN_KEYS, spec)
    found: KeyValueFunction = function
    return found


_FLAT_VALUES: dict[str, Callable[[Any, str], list[Any]]] = {
    "split_words": lambda v, a: list(_words(v)),
    "twice": lambda v, a: [v, v],
    "expand": lambda v, a: [None] if v is None else [_plus(v, _like(v, str(i))) for i in range(int(a))],
}


def flat_values(spec: str) -> KeyValueFunction:
    """Return a function (key, value) -> values."""
    function, argument = _find(_FLAT_VALUES, spec)
    return lambda key, value: function(value, argument)


def flat_map(spec: str) -> Callable[[Any, Any], Iterable[tuple[Any, Any]]]:
    """Return a function (key, value) -> (key, value) pairs."""
    if spec == "words_as_keys":
        return lambda key, value: [(word, value) for word in _words(value)]
    values = flat_values(spec)
    return lambda key, value: [(key, item) for item in values(key, value)]


def _add_present(left: Any, right: Any) -> Any:
    if left is None or right is None:
        return right if left is None else left
    return _plus(left, right)


def _concat(left: Any, right: Any) -> str:
    return f"{text(left)}|{text(right)}"


_JOINERS: dict[str, Aggregator] = {
    "concat": lambda k, left, right: _concat(left, right),
    "concat_key": lambda k, left, right: f"{text(k)}:{_concat(left, right)}",
    "sum": lambda k, left, right: _add_present(left, right),
    "left": lambda k, left, right: left,
    "right": lambda k, left, right: right,
    "null_if_equal": lambda k, left, right: None if left == right else _concat(left, right),
}


def joiner(spec: str) -> Aggregator:
    """Return a joiner (key, left, right) -> value."""
    function, _ = _find(_JOINERS, spec)
    found: Aggregator = function
    return found


_REDUCERS: dict[str, Callable[[Any, Any, str], Any]] = {
    "sum": lambda a, v, arg: _plus(a, v),
    "subtract": lambda a, v, arg: wrap(_number(a) - _number(v)),
    "max": lambda a, v, arg: v if _number(v) > _number(a) else a,
    "min": lambda a, v, arg: v if _number(v) < _number(a) else a,
    "concat": lambda a, v, arg: text(a) + text(v),
    "remove": lambda a, v, arg: _remove(text(a), text(v)),
    "first": lambda a, v, arg: a,
    "last": lambda a, v, arg: v,
    "sum_or_null": lambda a, v, arg: None if _plus(a, v) == int(arg) else _plus(a, v),
}


def reducer(spec: str) -> KeyValueFunction:
    """Return a reducer (aggregate, value) -> aggregate; a null value leaves the aggregate, except for last."""
    function, argument = _find(_REDUCERS, spec)
    if spec == "last":
        return lambda aggregate, value: value
    return lambda aggregate, value: aggregate if value is None else function(aggregate, value, argument)


def initializer(spec: str) -> Callable[[], Any]:
    """Return an initializer."""
    found, _ = _find({"zero": 0, "empty": "", "null": None}, spec)
    return lambda: found


_AGGREGATORS: dict[str, Callable[[Any, Any, str], Any]] = {
    "sum": lambda v, a, arg: wrap(_or_zero(a) + _or_zero(v)),
    "subtract": lambda v, a, arg: wrap(_or_zero(a) - _or_zero(v)),
    "sum_length": lambda v, a, arg: _or_zero(a) + (0 if v is None else _length(v)),
    "subtract_length": lambda v, a, arg: _or_zero(a) - (0 if v is None else _length(v)),
    "count": lambda v, a, arg: _or_zero(a) + 1,
    "max": lambda v, a, arg: max(_or_zero(a), _or_zero(v)),
    "concat": lambda v, a, arg: ("" if a is None else text(a)) + text(v),
    "remove": lambda v, a, arg: None if a is None else _remove(text(a), text(v)),
    "last": lambda v, a, arg: v,
    "keep": lambda v, a, arg: a,
    "sum_or_null": lambda v, a, arg: None if _or_zero(a) + _or_zero(v) == int(arg) else _or_zero(a) + _or_zero(v),
}


def aggregator(spec: str) -> Aggregator:
    """Return an aggregator (key, value, aggregate) -> aggregate."""
    function, argument = _find(_AGGREGATORS, spec)
    return lambda key, value, aggregate: function(value, aggregate, argument)


_MERGERS: dict[str, Aggregator] = {
    "sum": lambda k, one, other: wrap(_or_zero(one) + _or_zero(other)),
    "max": lambda k, one, other: max(_or_zero(one), _or_zero(other)),
    "concat": lambda k, one, other: ("" if one is None else text(one)) + ("" if other is None else text(other)),
}


def merger(spec: str) -> Aggregator:
    """Return a session merger (key, one aggregate, other) -> aggregate."""
    function, _ = _find(_MERGERS, spec)
    found: Aggregator = function
    return found


def topic(spec: str) -> Callable[..., str]:
    """Return a topic function (key, value, metadata) -> topic, called by its spec so that describe() shows that."""
    if spec != "out_by_key":
        raise UnknownFunctionError(f"unknown function {spec}")

    def out_by_key(key: Any, value: Any, metadata: Any) -> str:
        return f"out-{text(key)}"

    return out_by_key
