"""The keywords that shapes have beside those of JSON Schema, and the kinds of values with what reads them.

Keywords of Penstock begin with ``x-``. Shapes of an early version have none of them, not even RULES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

Shape = Mapping[str, Any]

#: The Rules of a shape, at its top.
RULES = "x-rules"
#: The kind of a value, if ``type`` and ``format`` do not distinguish it from others.
KIND = "x-kind"
#: The names of the positions of an array: of a NamedTuple or an ``array_like`` struct.
NAMES = "x-names"
#: The schema of the keys of a map that are not any string.
KEYS = "x-keys"
#: The names of types that a named type of Avro reads as well.
TYPE_ALIASES = "x-aliases"
#: Whether a field is left out of rows while it has its default: they mean the default that the type had then.
OMITTED = "x-omitted"
#: Limits of bytes; JSON Schema could only limit the characters of their base64.
MIN_BYTES, MAX_BYTES = "x-minBytes", "x-maxBytes"

#: Keywords whose values have the names of users as keys.
_OF_NAMES = frozenset(
    (
        *("properties", "patternProperties", "$defs", "definitions"),
        *("dependentSchemas", "dependentRequired", "dependencies"),
    )
)
#: Keywords whose values are data.
_OF_DATA = frozenset(("const", "enum", "default"))


class Rules(StrEnum):
    """What writes and reads the values of a shape."""

    #: msgspec, with a Python type. A value is written with the fields of its type only.
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    #: A validator, with the schema of a user. A value may have all that the schema does not refuse.
    JSON_SCHEMA = "json schema"
    #: Any of the first three, for a shape of a version that did not name them.
    EARLY = "early"


#: Pairs of kinds of which the first is read as the second.
_PROMOTIONS: Mapping[Rules, frozenset[tuple[str, str]]] = {
    Rules.JSON: frozenset(
        (
            *(("integer", kind) for kind in ("number", "string (decimal)")),
            ("number", "string (decimal)"),
            ("object", "map"),
            *((f"string ({zone})", "string (date-time, any zone)") for zone in ("date-time", "date-time, no zone")),
            *((f"string ({zone})", "string (time, any zone)") for zone in ("time", "partial-time")),
            *(("string (integer)", kind) for kind in ("string (number)", "string (decimal)")),  # keys of a map
            ("string (number)", "string (decimal)"),
        )
    ),
    Rules.AVRO: frozenset(
        (
            *(("int", kind) for kind in ("long", "float", "double")),
            *(("long", kind) for kind in ("float", "double")),
            ("float", "double"),
            ("string", "bytes"),  # Avro promotes bytes too, but not all of them are UTF-8
        )
    ),
    # Others have the same bytes, but another sign or fewer bits.
    Rules.PROTOBUF: frozenset(
        (
            *(("bool", kind) for kind in ("int32", "int64", "uint32", "uint64")),
            *(("enum", kind) for kind in ("int32", "int64")),
            *(("uint32", kind) for kind in ("int64", "uint64")),
            *(("int32", "int64"), ("sint32", "sint64"), ("string", "bytes")),
        )
    ),
    Rules.JSON_SCHEMA: frozenset((("integer", "number"),)),
    Rules.EARLY: frozenset(
        (
            ("integer", "number"),
            *(("integer (int)", kind) for kind in ("integer (long)", "number (float)", "number (double)")),
            *(("integer (long)", kind) for kind in ("number (float)", "number (double)")),
            ("number (float)", "number (double)"),
            *(("string", "string (bytes)"), ("string (bytes)", "string")),
        )
    ),
}


def kind_of(schema: Shape, rules: Rules) -> str:
    """Return the kind of values of a schema without references and unions, in words."""
    if KIND in schema:
        return str(schema[KIND])
    kind = str(schema.get("type", "any"))
    if kind == "object" and "properties" not in schema and rules is not Rules.JSON_SCHEMA:
        kind = "map"
    form = schema.get("format") or schema.get("contentEncoding")
    return f"{kind} ({form})" if form else kind


def reads(new: Shape, old: Shape, rules: Rules) -> bool:
    """Return whether a value of the kind of one schema is read where that of another is expected."""
    after, before = kind_of(new, rules), kind_of(old, rules)
    if after in ("any", before) or (before, after) in _PROMOTIONS[rules]:
        return True
    if rules is Rules.AVRO:
        return _named_alike(before, after, new.get(TYPE_ALIASES, ()))
    return before.startswith(f"{after} (")


def _named_alike(before: str, after: str, aliases: list[str]) -> bool:
    """Return whether a named type of Avro, such as ``record shop.Order``, reads another one.

    As in fastavro, which ignores namespaces.
    """
    old_sort, _, old_name = before.partition(" ")
    new_sort, _, new_name = after.partition(" ")
    last = old_name.rpartition(".")[2]
    return old_sort == new_sort and (last == new_name.rpartition(".")[2] or old_name in aliases or last in aliases)


def without_keywords(schema: object, is_gone: Callable[[str], bool]) -> Any:
    """Return a copy of a schema without some keywords. Names of fields and types are not keywords."""
    if isinstance(schema, list):
        return [without_keywords(one, is_gone) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: _inside(key, value, is_gone) for key, value in schema.items() if not is_gone(key)}


def _inside(keyword: str, value: object, is_gone: Callable[[str], bool]) -> object:
    if keyword in _OF_DATA:
        return value
    if keyword in _OF_NAMES and isinstance(value, Mapping):
        return {name: without_keywords(one, is_gone) for name, one in value.items()}
    return without_keywords(value, is_gone)
