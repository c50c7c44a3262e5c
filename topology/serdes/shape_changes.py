"""Compares the values of a serde with those that an earlier version of it has written, field by field.

A shape is a JSON Schema (2020-12), or an object of the shapes of the serdes that a serde consists of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

Shape = Mapping[str, Any]

#: The key of a shape of several serdes.
PARTS = "parts"
#: The keyword with the names under which a field is read as well, as in Avro.
ALIASES = "aliases"
#: Keywords that limit values; any other limit than before may refuse existing ones.
_LIMITS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "minItems", "maxItems", "minProperties", "maxProperties"),
)


#: Pairs of kinds of which the first is read as the second, by JSON and by Avro.
_PROMOTIONS = frozenset(
    (
        *(("integer", "number"), ("enum", "string")),
        *(("integer (int)", kind) for kind in ("integer (long)", "number (float)", "number (double)")),
        *(("integer (long)", kind) for kind in ("number (float)", "number (double)")),
        ("number (float)", "number (double)"),
        *(("string", "string (bytes)"), ("string (bytes)", "string")),
    )
)


class Effect(IntEnum):
    """The effect of a change on existing rows."""

    #: All of them are read, as the text says.
    COMPATIBLE = 0
    #: They can be read, but some of their contents are lost when they are written again.
    LOSSY = 1
    #: Some cannot be read.
    BREAKING = 2


class Change(NamedTuple):
    """One change. path: the field, e.g. ``value.customer.name``; text: the change and its effect."""

    effect: Effect
    path: str
    text: str


def shape_changes(old: Shape, new: Shape, path: str) -> Iterator[Change]:
    """Yield the changes from the shape of existing rows to a new one. path: names the value in the changes."""
    if PARTS in old and PARTS in new:
        for name in sorted(old[PARTS].keys() & new[PARTS].keys()):
            yield from shape_changes(old[PARTS][name], new[PARTS][name], f"{path}.{name}")
    else:
        yield from _Comparison(old.get("$defs", {}), new.get("$defs", {})).values(old, new, path)


class _Comparison:
    """Of two schemas. old_types, new_types: their named types."""

    def __init__(self, old_types: Shape, new_types: Shape) -> None:
        self._types = old_types, new_types
        self._seen: set[tuple[str, str]] = set()  # pairs of named types; they may contain themselves

    def values(self, old: Shape, new: Shape, path: str) -> Iterator[Change]:
        """Yield the changes of a value. Each of the old alternatives must fit one of the new ones."""
        names = old.get("$ref", ""), new.get("$ref", "")
        if all(names):
            if names in self._seen:
                return
            self._seen.add(names)
        old_ones, new_ones = _alternatives(old, self._types[0]), _alternatives(new, self._types[1])
        for one in old_ones:
            same = [other for other in new_ones if _kind(other) == _kind(one)]
            fitting = same or [other for other in new_ones if _reads(_kind(other), _kind(one))]
            if not fitting:
                what = " or ".join(map(_kind, new_ones))
                yield Change(Effect.BREAKING, path, f"was {_kind(one)} and is {what}, which cannot read it")
            elif same:
                yield from self._of_one_kind(one, _most_alike(one, same), path)

    def _of_one_kind(self, old: Shape, new: Shape, path: str) -> Iterator[Change]:
        for keyword in () if "prefixItems" in new else _LIMITS:
            if new.get(keyword) is not None and new.get(keyword) != old.get(keyword):
                text = f"{keyword} was {old.get(keyword)} and is {new[keyword]}, which may refuse existing values"
                yield Change(Effect.BREAKING, path, text)
        if "enum" in old and (gone := [value for value in old["enum"] if value not in new["enum"]]):
            yield Change(Effect.BREAKING, path, f"{', '.join(map(repr, gone))} is no longer one of its values")
        if "properties" in old or "properties" in new:
            yield from self._fields(old, new, path)
        elif _is_schema(old.get("additionalProperties")) and _is_schema(new.get("additionalProperties")):
            yield from self.values(old["additionalProperties"], new["additionalProperties"], f"{path}[…]")
        if "prefixItems" in old and "prefixItems" in new:
            yield from self._positions(old["prefixItems"], new["prefixItems"], path)
        elif _is_schema(old.get("items")) and _is_schema(new.get("items")):
            yield from self.values(old["items"], new["items"], f"{path}[…]")

    def _positions(self, old: list[Shape], new: list[Shape], path: str) -> Iterator[Change]:
        if len(old) != len(new):
            yield Change(Effect.BREAKING, path, f"had {len(old)} items and has {len(new)}")
        for number, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from self.values(one, other, f"{path}[{number}]")

    def _fields(self, old: Shape, new: Shape, path: str) -> Iterator[Change]:
        after, required = new.get("properties", {}), new.get("required", ())
        read_as = _read_as(old.get("properties", {}), after)
        before = {read_as[name]: field for name, field in old.get("properties", {}).items()}
        was_required = {read_as[name] for name in old.get("required", ())}
        for name in sorted(before.keys() - after.keys()):
            if new.get("additionalProperties") is False:
                yield Change(Effect.BREAKING, f"{path}.{name}", "is gone, and unknown fields are refused")
            else:
                text = "was removed: its values in existing rows are lost when they are written again"
                yield Change(Effect.LOSSY, f"{path}.{name}", text)
        for name in sorted(after.keys() - before.keys()):
            if name in required:
                yield Change(Effect.BREAKING, f"{path}.{name}", "is new and required, and existing rows lack it")
            else:
                text = f"is new: existing rows read as {_default(after[name])}"
                yield Change(Effect.COMPATIBLE, f"{path}.{name}", text)
        for name in sorted(before.keys() & after.keys()):
            yield from self.values(before[name], after[name], f"{path}.{name}")
            needs = name in was_required, name in required
            yield from self._optional(before[name], after[name], *needs, f"{path}.{name}")

    @staticmethod
    def _optional(old: Shape, new: Shape, was_required: bool, is_required: bool, path: str) -> Iterator[Change]:
        if is_required and not was_required:
            yield Change(Effect.BREAKING, path, "is required now, and existing rows may lack it")
        elif not was_required and not is_required and _default(old) != _default(new):
            text = f"rows without it read as {_default(new)} instead of {_default(old)}"
            yield Change(Effect.COMPATIBLE, path, text)


def _read_as(before: Shape, after: Shape) -> dict[str, str]:
    """Return, by the name of an old field, that of the new one that reads it."""
    names = {alias: name for name, field in after.items() for alias in field.get(ALIASES, ()) if name not in before}
    return {name: names.get(name, name) for name in before}


def _is_schema(given: object) -> bool:
    return isinstance(given, Mapping)


def _default(field: Shape) -> str:
    """Return the default of an optional field; a default that JSON cannot represent is made by a function."""
    return repr(field["default"]) if "default" in field else "its default"


def _alternatives(schema: Shape, types: Shape) -> list[Shape]:
    """Return the schemas of which a value fits one, without references."""
    if "$ref" in schema:
        named = types.get(schema["$ref"].rpartition("/")[2], {})  # a type of another schema is like any type
        return _alternatives(named, types)
    if "anyOf" in schema:
        return [found for one in schema["anyOf"] for found in _alternatives(one, types)]
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": one} for one in schema["type"]]
    return [schema]


def _kind(schema: Shape) -> str:
    if "enum" in schema or "const" in schema:
        return "enum"
    kind = str(schema.get("type", "any"))
    if kind == "object" and "properties" not in schema:
        kind = "map"
    form = schema.get("format") or schema.get("contentEncoding")
    return f"{kind} ({form})" if form else kind


def _reads(new: str, old: str) -> bool:
    """Return whether a value of one kind is read where another kind is expected."""
    return new == "any" or (old, new) in _PROMOTIONS or old.startswith(f"{new} (")


def _most_alike(one: Shape, others: list[Shape]) -> Shape:
    """Return the alternative with the most fields in common: classes of a union differ in their tag first."""
    fields = one.get("properties", {})

    def common(other: Shape) -> int:
        theirs = other.get("properties", {})
        return sum(1 + (theirs[name] == fields[name]) for name in fields if name in theirs)

    return max(others, key=common)
