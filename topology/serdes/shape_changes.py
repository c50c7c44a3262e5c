"""Compares the values of a serde with those that an earlier version of it has written, field by field.

A shape is a JSON Schema (2020-12) with the keywords of shape_keywords, or an object of the shapes of the serdes that a
serde consists of. A keyword that a schema lacks allows everything.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from enum import IntEnum
from math import inf
from typing import NamedTuple

from .schema_alternatives import LOWER, UPPER, Alternatives, text_of_value
from .shape_keywords import (
    KEYS,
    KIND,
    NAMES,
    OMITTED,
    RULES,
    TYPE_ALIASES,
    Rules,
    Shape,
    kind_of,
    reads,
    without_keywords,
)

__all__ = ["ALIASES", "PARTS", "Change", "Effect", "Shape", "shape_changes"]

#: The key of a shape of several serdes.
PARTS = "parts"
#: The keyword with the names under which a field of Avro is read as well.
ALIASES = "aliases"
#: Limits that are zero where they are missing.
_FROM_ZERO = frozenset(limit for limit in LOWER if limit not in ("minimum", "exclusiveMinimum"))
#: Keywords that are compared by their meaning; of all others the text must be the same.
_UNDERSTOOD = frozenset(
    (
        *("type", "format", "contentEncoding", KIND, TYPE_ALIASES, "enum", *LOWER, *UPPER),
        *("properties", "required", "additionalProperties", "propertyNames", KEYS),
        *("prefixItems", "items", "uniqueItems", NAMES),
    )
)
#: The names of fields are texts.
_TEXT: Shape = {"type": "string"}
_EARLY = (
    "was described by an early version of Penstock, which did not distinguish all types: a change that it could not "
    "describe, such as from str to datetime, is not seen this time"
)
_NOT_FOUND = ": keys get other bytes, so existing rows are not found"
#: Rules of serdes that write the id of a schema in a registry with each value.
_OF_REGISTRY = frozenset((Rules.AVRO, Rules.PROTOBUF, Rules.JSON_SCHEMA))
#: Rules of serdes that write the fields of a type in their order, and numbers as they are.
_WITH_ORDER = frozenset((Rules.JSON, Rules.EARLY))
#: The length of a keyword's value in a text.
_TEXT_MAX = 80


class Effect(IntEnum):
    """The effect of a change on existing rows."""

    #: All of them are read, as the text says.
    COMPATIBLE = 0
    #: They can be read, but some of their contents are lost when they are written again.
    LOSSY = 1
    #: Some cannot be read, or are read as something else.
    BREAKING = 2


class Change(NamedTuple):
    """One change. path: the field, e.g. ``value.customer.name``; text: the change and its effect."""

    effect: Effect
    path: str
    text: str


def shape_changes(old: Shape, new: Shape, path: str, is_key: bool = False) -> Iterator[Change]:
    """Yield the changes from the shape of existing rows to a new one. path: names the value in the changes.

    is_key: the values are keys, which must be written with the same bytes again, or their rows are not found. A change
    of the bytes is BREAKING.
    Shapes are accepted whatever is in them. Early versions wrote them without RULES and did not distinguish all types.
    With such an old shape, what it could not say is left out of the new one too, and a change says so.
    """
    if PARTS in old and PARTS in new:
        for name in sorted(old[PARTS].keys() & new[PARTS].keys()):
            yield from shape_changes(old[PARTS][name], new[PARTS][name], f"{path}.{name}", is_key)
        return
    rules = Rules(new.get(RULES, Rules.JSON_SCHEMA))
    if RULES not in old and rules is not Rules.JSON_SCHEMA:
        rules, given = Rules.EARLY, new
        new = without_keywords(given, lambda keyword: keyword.startswith("x-"))
        if {RULES: given[RULES], **new} != given:
            yield Change(Effect.COMPATIBLE, path, _EARLY)
    differs = text_of_value(old) != text_of_value(new)
    if is_key and differs and rules in _OF_REGISTRY:
        yield Change(Effect.BREAKING, path, f"has another schema, whose id is in its bytes{_NOT_FOUND}")
    if differs or (is_key and rules in _WITH_ORDER):
        yield from _Comparison(old, new, rules, is_key).values(old, new, path)


class _Comparison:
    """Compares two schemas. old, new: the complete schemas. is_key: see shape_changes."""

    def __init__(self, old: Shape, new: Shape, rules: Rules, is_key: bool) -> None:
        self._rules, self._is_key = rules, is_key
        self._old, self._new = Alternatives(old), Alternatives(new)
        #: Compared pairs by their ids; they may contain themselves. It keeps them, so that no other gets their ids.
        self._seen: dict[tuple[int, int], tuple[object, object]] = {}

    def values(self, old: object, new: object, path: str) -> Iterator[Change]:
        """Yield the changes of a value. Each of the old alternatives must fit one of the new ones."""
        if new is True:
            return
        named = self._old.named(old), self._new.named(new)
        pair = id(named[0]), id(named[1])
        if pair in self._seen and any(isinstance(one, Mapping) for one in named):
            return
        self._seen[pair] = named
        new_ones = self._new.of(new)
        for one in map(self._as_written, self._old.of(old)):
            fitting = [other for other in new_ones if self._kind(other) == self._kind(one)]
            fitting = fitting or [other for other in new_ones if reads(other, one, self._rules)]
            if fitting:
                alike = _most_alike(one, fitting)
                if self._is_key and self._rules in _WITH_ORDER and self._is_written_otherwise(one, alike):
                    text = f"was {self._kind(one)} and is {self._kind(alike)}{_NOT_FOUND}"
                    yield Change(Effect.BREAKING, path, text)
                yield from self._plain(one, alike, path)
            else:
                kinds = " or ".join(dict.fromkeys(map(self._kind, new_ones)))
                what = f"is {kinds}, which cannot read it" if kinds else "is refused now"
                yield Change(Effect.BREAKING, path, f"was {self._kind(one)} and {what}")

    def _kind(self, schema: Shape) -> str:
        return kind_of(schema, self._rules)

    def _is_written_otherwise(self, old: Shape, new: Shape) -> bool:
        """Return whether a value that is read as another kind has other bytes then: a number, as in 1 and 1.0."""
        before, after = self._kind(old), self._kind(new)
        return before != after and any(kind in after for kind in ("number", "decimal"))

    def _with_other_bytes(self, change: Change) -> Change:
        """Return a compatible change that alters the written bytes; of a key it is breaking."""
        if not self._is_key or self._rules in _OF_REGISTRY:
            return change
        return Change(Effect.BREAKING, change.path, f"{change.text.partition(':')[0]}{_NOT_FOUND}")

    def _as_written(self, schema: Shape) -> Shape:
        """Return a schema of existing rows with what its serde did not write: other fields than those of the type."""
        if self._rules is Rules.JSON_SCHEMA:
            return schema
        closed: dict[str, object] = {"additionalProperties": False} if "properties" in schema else {}
        if "prefixItems" in schema:
            closed["maxItems"] = len(schema["prefixItems"])
        return {**schema, **closed}

    def _plain(self, old: Shape, new: Shape, path: str) -> Iterator[Change]:
        yield from _limits(old, new, path)
        yield from _enumerated(old, new, path)
        for keyword in sorted(new.keys() - _UNDERSTOOD):
            before, after = old.get(keyword), new[keyword]
            if keyword not in old or self._old.with_targets(before) != self._new.with_targets(after):
                yield _refusing(path, keyword, _short(before) if keyword in old else "not limited", _short(after))
        if old.get("type", "object") == "object":
            yield from self._fields(old, new, path)
            yield from self._keys(old, new, path)
        if old.get("type", "array") == "array":
            yield from self._positions(old, new, path)
            yield from self._unique(old, new, path)

    def _positions(self, old: Shape, new: Shape, path: str) -> Iterator[Change]:
        before, after = old.get("prefixItems", []), new.get("prefixItems", [])
        others = old.get("items", True), new.get("items", True)
        most, count = old.get("maxItems", inf), max(len(before), len(after))
        for number in range(count):
            at = f"{path}[{number}]"
            if number >= most:
                for field in after[number : number + 1]:
                    change = Change(Effect.COMPATIBLE, at, f"is new: existing rows read as {_default(field)}")
                    yield self._with_other_bytes(change)
                continue
            if number >= new.get("maxItems", inf):
                break  # reported as a limit
            if number >= len(after) and self._ignores_others(new):
                yield _lost(at)
            one = before[number] if number < len(before) else others[0]
            yield from self.values(one, after[number] if number < len(after) else others[1], at)
        if min(most, new.get("maxItems", inf)) > count:
            yield from self.values(*others, f"{path}[…]")
        for number, names in enumerate(zip(old.get(NAMES, ()), new.get(NAMES, ()), strict=False)):
            if names[0] != names[1]:
                text = f"was {names[0]} and is {names[1]}: existing rows are read as another field"
                yield Change(Effect.BREAKING, f"{path}[{number}]", text)

    def _ignores_others(self, new: Shape) -> bool:
        """Return whether an array is read as a class, which has no place for other values than its fields."""
        return self._rules is not Rules.JSON_SCHEMA and "prefixItems" in new and "items" not in new

    def _unique(self, old: Shape, new: Shape, path: str) -> Iterator[Change]:
        if not new.get("uniqueItems") or old.get("uniqueItems"):
            return
        if self._rules is Rules.JSON_SCHEMA:
            yield _refusing(path, "uniqueItems", "false", "true")
        else:
            text = "is a set now: the order of its values, and those that are equal, are lost when they are written"
            yield Change(Effect.LOSSY, path, text)

    def _keys(self, old: Shape, new: Shape, path: str) -> Iterator[Change]:
        """Yield the changes of the names of fields, which are all known if a type has written them."""
        keys: object = old.get(KEYS, old.get("propertyNames", _TEXT))
        if old.get("additionalProperties") is False and "patternProperties" not in old:
            keys = {"enum": [*old.get("properties", {})]}
        yield from self.values(keys, new.get(KEYS, new.get("propertyNames", True)), f"{path} (keys)")

    def _fields(self, old: Shape, new: Shape, path: str) -> Iterator[Change]:
        before, after = _with_required(old), _with_required(new)
        required, others = new.get("required", ()), new.get("additionalProperties", True)
        read_as = self._read_as(before, after)
        before = {read_as[name]: field for name, field in before.items()}
        was_required = {read_as[name] for name in old.get("required", ())}
        for name in sorted(before.keys() - after.keys()):
            if others is False:
                yield Change(Effect.BREAKING, f"{path}.{name}", "is gone, and unknown fields are refused")
                continue
            if "properties" in new:
                yield _lost(f"{path}.{name}")
            yield from self.values(before[name], others, f"{path}.{name}")
        for name in sorted(after.keys() - before.keys()):
            yield from self._new_field(old, after[name], name in required, f"{path}.{name}")
        yield from self._order(before, after, path)
        for name in sorted(before.keys() & after.keys()):
            yield from self.values(before[name], after[name], f"{path}.{name}")
            needs = name in was_required, name in required
            yield from self._optional(before[name], after[name], *needs, f"{path}.{name}")
        yield from self.values(old.get("additionalProperties", True), others, f"{path}[…]")

    def _order(self, before: Shape, after: Shape, path: str) -> Iterator[Change]:
        """Yield a change if the fields of a key, which are written in their order, have another one."""
        orders = [name for name in before if name in after], [name for name in after if name in before]
        if self._is_key and self._rules in _WITH_ORDER and orders[0] != orders[1]:
            yield Change(Effect.BREAKING, path, f"has its fields in another order{_NOT_FOUND}")

    def _new_field(self, old: Shape, field: object, required: bool, path: str) -> Iterator[Change]:
        if required:
            yield Change(Effect.BREAKING, path, "is new and required, and existing rows lack it")
        else:
            change = Change(Effect.COMPATIBLE, path, f"is new: existing rows read as {_default(field)}")
            is_left_out = isinstance(field, Mapping) and field.get(OMITTED) is True
            yield change if is_left_out else self._with_other_bytes(change)
        # Rows of a schema with fields may have others, but no schema could get a new field if they did.
        if "additionalProperties" in old or "properties" not in old:
            yield from self.values(old.get("additionalProperties", True), field, path)

    def _read_as(self, before: Shape, after: Shape) -> dict[str, str]:
        """Return, by the name of an old field, that of the new one that reads it."""
        if self._rules not in (Rules.AVRO, Rules.EARLY):
            return {name: name for name in before}
        names = {alias: name for name, field in after.items() for alias in field.get(ALIASES, ()) if name not in before}
        return {name: name if name in after else names.get(name, name) for name in before}

    @staticmethod
    def _optional(old: object, new: object, was_required: bool, is_required: bool, path: str) -> Iterator[Change]:
        if is_required and not was_required:
            yield Change(Effect.BREAKING, path, "is required now, and existing rows may lack it")
        elif not was_required and not is_required and _default(old) != _default(new):
            meant = isinstance(old, Mapping) and old.get(OMITTED) is True
            text = f"rows without it read as {_default(new)} instead of {_default(old)}"
            yield Change(Effect.BREAKING if meant else Effect.COMPATIBLE, path, text)


def _with_required(schema: Shape) -> dict[str, object]:
    """Return the fields of a schema; those that are only required may have any value."""
    return {**dict.fromkeys(schema.get("required", ()), True), **schema.get("properties", {})}


def _limits(old: Shape, new: Shape, path: str) -> Iterator[Change]:
    for limits, is_wider in ((LOWER, operator.le), (UPPER, operator.ge)):
        for limit in limits:
            before, after = old.get(limit, 0 if limit in _FROM_ZERO else None), new.get(limit)
            if after is not None and (before is None or not is_wider(after, before)):
                yield _refusing(path, limit, old.get(limit, "not limited"), after)


def _enumerated(old: Shape, new: Shape, path: str) -> Iterator[Change]:
    if "enum" not in new:
        return
    if "enum" not in old:
        values = _short(", ".join(map(repr, new["enum"])))
        yield Change(Effect.BREAKING, path, f"was any {old.get('type', 'value')} and is one of: {values}")
        return
    left = set(map(text_of_value, new["enum"]))
    if gone := [value for value in old["enum"] if text_of_value(value) not in left]:
        yield Change(Effect.BREAKING, path, f"{', '.join(map(repr, gone))} is no longer one of its values")


def _refusing(path: str, keyword: str, old: object, new: object) -> Change:
    return Change(Effect.BREAKING, path, f"{keyword} was {old} and is {new}, which may refuse existing values")


def _lost(path: str) -> Change:
    return Change(Effect.LOSSY, path, "was removed: its values in existing rows are lost when they are written again")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


def _default(field: object) -> str:
    """Return the default of an optional field; a default that JSON cannot represent is made by a function."""
    return repr(field["default"]) if isinstance(field, Mapping) and "default" in field else "its default"


def _most_alike(one: Shape, others: list[Shape]) -> Shape:
    """Return the alternative with the most fields in common: classes of a union differ in their tag first."""
    fields, positions = one.get("properties", {}), one.get("prefixItems", ())

    def common(other: Shape) -> tuple[bool, int]:
        theirs = other.get("properties", {})
        by_name = sum(1 + (theirs[name] == fields[name]) for name in fields if name in theirs)
        by_place = sum(a == b for a, b in zip(positions, other.get("prefixItems", ()), strict=False))
        return other == one, by_name + by_place

    return max(others, key=common)
