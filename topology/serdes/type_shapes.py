"""The shapes (see shape_changes) of types of Python, as msgspec writes and reads them in JSON.

They are what ``msgspec.json.schema`` returns, but that cannot distinguish all types, and refuses some that can be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import inspect

from .shape_keywords import KEYS, KIND, MAX_BYTES, MIN_BYTES, NAMES, OMITTED, RULES, Rules, Shape

_PLAIN: Mapping[type, Shape] = {
    inspect.AnyType: {},
    inspect.RawType: {},
    inspect.NoneType: {"type": "null"},
    inspect.BoolType: {"type": "boolean"},
    inspect.IntType: {"type": "integer"},
    inspect.FloatType: {"type": "number"},
    inspect.StrType: {"type": "string"},
    inspect.BytesType: {"type": "string", "contentEncoding": "base64"},
    inspect.ByteArrayType: {"type": "string", "contentEncoding": "base64"},
    inspect.MemoryViewType: {"type": "string", "contentEncoding": "base64"},
    inspect.DateType: {"type": "string", "format": "date"},
    inspect.TimeDeltaType: {"type": "string", "format": "duration"},
    inspect.UUIDType: {"type": "string", "format": "uuid"},
    inspect.DecimalType: {"type": "string", "format": "decimal"},
}
#: By whether they have a zone; None: either.
_DATE_TIMES: Mapping[bool | None, Shape] = {
    True: {"type": "string", "format": "date-time"},
    False: {"type": "string", KIND: "string (date-time, no zone)"},
    None: {"type": "string", KIND: "string (date-time, any zone)"},
}
_TIMES: Mapping[bool | None, Shape] = {
    True: {"type": "string", "format": "time"},
    False: {"type": "string", "format": "partial-time"},
    None: {"type": "string", KIND: "string (time, any zone)"},
}
_NUMBER_LIMITS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_BYTES = (inspect.BytesType, inspect.ByteArrayType, inspect.MemoryViewType)
#: msgspec has frozen ones since 0.21.
_MAPS = tuple(getattr(inspect, name) for name in ("DictType", "FrozenDictType") if hasattr(inspect, name))
_CLASSES = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)
_SETS = (inspect.SetType, inspect.FrozenSetType)


def type_shape(kind: object) -> Shape:
    """Return the shape of a type that msgspec accepts."""
    types = _Types()
    shape = types.shape(inspect.type_info(kind))
    return {RULES: Rules.JSON.value, **shape, **({"$defs": types.defined} if types.defined else {})}


class _Types:
    """defined: the shapes of classes and enums, by name."""

    def __init__(self) -> None:
        self.defined: dict[str, Shape] = {}
        self._names: dict[Any, str] = {}

    def shape(self, kind: object) -> dict[str, Any]:
        """Return the shape of a type."""
        match kind:
            case inspect.Metadata():
                return self.shape(kind.type)
            case inspect.DateTimeType():
                return {**_DATE_TIMES[kind.tz]}
            case inspect.TimeType():
                return {**_TIMES[kind.tz]}
            case inspect.LiteralType():
                return {"enum": list(kind.values)}
            case inspect.UnionType():
                return {"anyOf": [self.shape(one) for one in kind.types]}
            case inspect.CustomType():
                # Without a hook msgspec reads a class that it does not know from none of JSON's values.
                return {} if kind.cls is object else {KIND: f"{kind.cls.__module__}.{kind.cls.__qualname__}"}
        if isinstance(kind, (*_CLASSES, inspect.EnumType)):
            return self._define(kind)
        if isinstance(kind, (inspect.CollectionType, inspect.TupleType)):
            return self._array(kind)
        if isinstance(kind, _MAPS):
            return self._map(kind)
        return {**_PLAIN.get(type(kind), {KIND: type(kind).__name__}), **_limits(kind)}

    def _array(self, kind: Any) -> dict[str, Any]:
        if isinstance(kind, inspect.TupleType):
            count = len(kind.item_types)
            fixed = {"prefixItems": [self.shape(one) for one in kind.item_types], "items": False} if count else {}
            return {"type": "array", "minItems": count, "maxItems": count, **fixed}
        items = {} if isinstance(kind.item_type, inspect.AnyType) else {"items": self.shape(kind.item_type)}
        unique = {"uniqueItems": True} if isinstance(kind, _SETS) else {}
        return {"type": "array", **items, **_lengths(kind, "minItems", "maxItems"), **unique}

    def _map(self, kind: Any) -> dict[str, Any]:
        any_value = isinstance(kind.value_type, inspect.AnyType)
        values = {} if any_value else {"additionalProperties": self.shape(kind.value_type)}
        keys = self._key(kind.key_type)
        return {
            "type": "object",
            **({} if keys in ({}, {"type": "string"}) else {KEYS: keys}),
            **values,
            **_lengths(kind, "minProperties", "maxProperties"),
        }

    def _key(self, kind: object) -> dict[str, object]:
        """Return the shape of a map's keys, which are texts in JSON."""
        match kind:
            case inspect.Metadata():
                return self._key(kind.type)
            case inspect.UnionType():
                return {"anyOf": [self._key(one) for one in kind.types]}
            case inspect.LiteralType():
                return {"enum": [str(value) for value in kind.values]}
            case inspect.EnumType():
                return {"enum": sorted(str(one.value) for one in kind.cls)}
        shape = self.shape(kind)
        if shape.get("type") in ("integer", "number"):
            return {**shape, "type": "string", KIND: f"string ({shape['type']})"}
        return shape

    def _define(self, kind: Any) -> dict[str, Any]:
        if kind.cls not in self._names:
            name = self._names[kind.cls] = self._name(kind.cls)
            self.defined[name] = {}  # it may contain itself
            self.defined[name] = self._enum(kind) if isinstance(kind, inspect.EnumType) else self._class(kind)
        return {"$ref": f"#/$defs/{self._names[kind.cls]}"}

    def _name(self, kind: Any) -> str:
        """Return a unique name for a class."""
        origin = _origin(kind)
        given = getattr(kind, "__args__", ())
        arguments = ", ".join(one.__name__ if isinstance(one, type) else repr(one) for one in given)
        name = re.sub(r"[^a-zA-Z0-9.\-_]", "_", f"{origin.__name__}[{arguments}]" if given else origin.__name__)
        taken = sum(other == name or other.startswith(f"{name}-") for other in self.defined)
        return f"{name}-{taken}" if taken else name

    @staticmethod
    def _enum(kind: inspect.EnumType) -> Shape:
        return {"enum": sorted(one.value for one in kind.cls)}

    def _class(self, kind: Any) -> Shape:
        fields = [*self._tag(kind), *((field.encode_name, self._field(kind, field), field) for field in kind.fields)]
        is_closed = getattr(kind, "forbid_unknown_fields", False)
        if isinstance(kind, inspect.NamedTupleType) or getattr(kind, "array_like", False):
            at_end = next((i for i, field in enumerate(reversed(kind.fields)) if field.required), len(kind.fields))
            most = {"maxItems": len(fields)} if is_closed or isinstance(kind, inspect.NamedTupleType) else {}
            return {
                "type": "array",
                "prefixItems": [shape for _, shape, _ in fields],
                "minItems": len(fields) - at_end,
                **most,
                NAMES: [name for name, _, _ in fields],
            }
        return {
            "type": "object",
            "properties": {name: shape for name, shape, _ in fields},
            "required": [name for name, _, field in fields if field is None or field.required],
            **({"additionalProperties": False} if is_closed else {}),
        }

    @staticmethod
    def _tag(kind: Any) -> Iterator[tuple[str, Shape, None]]:
        if getattr(kind, "tag_field", None) is not None:
            yield kind.tag_field, {"enum": [kind.tag]}, None

    def _field(self, kind: Any, field: inspect.Field) -> Shape:
        shape = self.shape(field.type)
        default = field.default
        is_made = isinstance(kind, inspect.StructType) and field.default_factory in (list, dict, set, bytearray)
        if default is msgspec.NODEFAULT and is_made:
            default = field.default_factory()
        if field.required or default is msgspec.NODEFAULT:
            return shape
        if isinstance(kind, inspect.StructType) and _origin(kind.cls).__struct_config__.omit_defaults:
            shape[OMITTED] = True
        try:
            return {**shape, "default": msgspec.to_builtins(default, str_keys=True)}
        except TypeError:  # an object that JSON cannot represent; without a text it counts as made by a function
            return shape


def _origin(kind: Any) -> Any:
    """Return the class of a generic one with arguments."""
    return getattr(kind, "__origin__", kind)


def _limits(kind: object) -> dict[str, object]:
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return _given({keyword: getattr(kind, name) for name, keyword in _NUMBER_LIMITS.items()})
    if isinstance(kind, inspect.StrType):
        return {**_lengths(kind, "minLength", "maxLength"), **_given({"pattern": kind.pattern})}
    return _lengths(kind, MIN_BYTES, MAX_BYTES) if isinstance(kind, _BYTES) else {}


def _lengths(kind: Any, least: str, most: str) -> dict[str, object]:
    return _given({least: kind.min_length, most: kind.max_length})


def _given(limits: dict[str, object]) -> dict[str, object]:
    return {keyword: limit for keyword, limit in limits.items() if limit is not None}
