"""The visible parts of a class, for a comparison of two copies of it."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

#: By name: the findings, as tuples of strings.
Outline = dict[str, Any]
#: Where classes keep their names and slots, and the usual kinds of data classes their fields.
FIELD_TABLES = (
    "__annotations__",
    "__attrs_attrs__",
    "__dataclass_fields__",
    "__match_args__",
    "__optional_keys__",
    "__pydantic_fields__",
    "__qualname__",
    "__required_keys__",
    "__slots__",
    "_fields",
)
ATTRIBUTES = "attributes"
#: Attributes that the class statement or the creation of a class sets, or that are caches. Where a class keeps its
#: annotations differs by version of Python; FIELD_TABLES has their values.
_OWN = {
    *("__annotate_func__", "__annotations__", "__annotations_cache__", "__dict__", "__firstlineno__"),
    *("__msgspec_cache__", "__static_attributes__", "__weakref__", "_abc_impl"),
}


def outline(kind: type) -> Outline:
    """Return a class's attributes, its constructor's parameters, its tables of fields, and what its metaclass adds."""
    found: Outline = {ATTRIBUTES: tuple(sorted(set(vars(kind)) - _OWN))}
    found["constructor"] = _safely(lambda: tuple(map(_parameter, inspect.signature(kind).parameters.values())))
    for name in (*FIELD_TABLES, *_of_metaclass(type(kind))):
        found[name] = _safely(lambda name=name: _text(getattr(kind, name, None)))  # type: ignore[misc]
    return found


def difference(before: Outline, after: Outline) -> str:
    """Return a description of what a class has lost, "" if it has lost nothing."""
    lost = set(before[ATTRIBUTES]) - set(after[ATTRIBUTES])
    if lost:
        return f"it would be without {', '.join(sorted(lost))} there"
    for name, value in before.items():
        if name != ATTRIBUTES and after[name] != value:
            return f"its {name} would be {after[name]} there, not {value}"
    return ""


def _of_metaclass(metaclass: type) -> Iterator[str]:
    """Yield the names of a metaclass's data: for a Struct these are the fields."""
    for base in metaclass.__mro__[: metaclass.__mro__.index(type)]:
        yield from (name for name, attribute in vars(base).items() if inspect.isdatadescriptor(attribute))


def _parameter(parameter: inspect.Parameter) -> tuple[str, ...]:
    optional = "required" if parameter.default is parameter.empty else "optional"
    return parameter.name, parameter.kind.name, optional


def _text(value: object) -> object:
    """Return a value that can be compared between processes: without addresses and the order of sets."""
    if isinstance(value, dataclasses.Field):
        return value.default is dataclasses.MISSING, value.default_factory is dataclasses.MISSING
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, Mapping):
        return tuple((str(name), _text(part)) for name, part in value.items())
    if isinstance(value, Set):
        return tuple(sorted(map(str, value)))
    if isinstance(value, tuple | list):
        return tuple(map(_text, value))
    return type(value).__name__


def _safely(get: Callable[[], object]) -> object:
    """Return the result of get, or the name of its exception, which is also the same in both processes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return get()
        except Exception as error:  # noqa: BLE001  of a user's property
            return type(error).__name__
