"""Takes schemas apart: into plain ones, of which a value fits one, without references, unions and lists of types.

Any JSON Schema is accepted, an invalid one too: what is not understood remains as a keyword, to be compared as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any
from urllib.parse import unquote

from .shape_keywords import KEYS, KIND, MAX_BYTES, MIN_BYTES, NAMES, TYPE_ALIASES, Shape

#: Limits from below and from above.
LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", MIN_BYTES)
UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", MAX_BYTES)
#: A reference to nothing that is known.
MISSING = object()

#: Keywords that do not limit values.
_ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"),
        *("$id", "id", "$schema", "$comment", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"),
        *("$defs", "definitions", "contentMediaType", "contentSchema", "aliases"),
    )
)
_OURS = frozenset((KIND, NAMES, KEYS, TYPE_ALIASES, MIN_BYTES, MAX_BYTES))
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
#: Keywords whose meaning depends on those beside them.
_GROUPS = (("properties", "additionalProperties", "patternProperties"), ("prefixItems", "items"))
#: Keywords of which two with different values can be merged.
_MERGED = ("type", "required", "properties", "enum")
#: The most alternatives that a schema is taken apart into; unions in an allOf multiply.
_ALTERNATIVES_MAX = 256


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


#: What the values of keywords must be to be understood.
_VALID: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys((*LOWER, *UPPER), _is_number),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "enum", "prefixItems"), _is_list),
    **dict.fromkeys(("required", NAMES, TYPE_ALIASES), _is_texts),
    "type": lambda value: isinstance(value, str) or _is_texts(value),
    "properties": lambda value: isinstance(value, Mapping),
    "uniqueItems": lambda value: isinstance(value, bool),
    **dict.fromkeys(("$ref", KIND), lambda value: isinstance(value, str)),
}


def text_of_value(value: object) -> str:
    """Return a text that is the same for equal values of JSON only; 1 and true differ."""
    return json.dumps(value, sort_keys=True)


class Alternatives:
    """The alternatives of the schemas in a document. root: the whole of it, for references."""

    def __init__(self, root: Shape) -> None:
        self._root = root

    def of(self, schema: object, inside: frozenset[str] = frozenset()) -> list[Shape]:
        """Return plain schemas that together accept the same values as a schema; none if it refuses all values.

        inside: the references that were followed to this schema, because they may form a cycle.
        """
        if isinstance(schema, bool):
            return [{}] if schema else []
        if not isinstance(schema, Mapping):
            return [{"(not a schema)": schema}]
        own = _own(schema)
        parts = list(self._parts(own, inside))
        found: list[Shape] = [own]
        for part in parts:
            if len(found) * len(part) > _ALTERNATIVES_MAX:
                return [{"allOf": [schema]}]
            found = [both for one in found for other in part if (both := _merged(one, other)) is not None]
        return found

    def named(self, schema: object) -> object:
        """Return the schema that a schema only refers to; itself if it is no mere reference."""
        if isinstance(schema, Mapping) and _own(schema).keys() == {"$ref"}:
            target = self.target(schema["$ref"])
            return schema if target is MISSING else target
        return schema

    def _parts(self, own: dict[str, Any], inside: frozenset[str]) -> Iterator[list[Shape]]:
        """Yield the alternatives of each keyword that has some, and remove it from a schema."""
        if own.get("$ref") not in inside and (target := self.target(own.get("$ref"))) is not MISSING:
            yield self.of(target, inside | {own.pop("$ref")})
        for one in own.pop("allOf", ()):
            yield self.of(one, inside)
        if "anyOf" in own:
            yield self._any_of(own.pop("anyOf"), inside)
        if "oneOf" in own and _exclude_each_other(alternatives := self._any_of(own["oneOf"], inside)):
            del own["oneOf"]
            yield alternatives
        if isinstance(own.get("type"), list):
            yield [{"type": kind} for kind in own.pop("type")]
        if "const" in own:
            yield _by_type([own.pop("const")])
        if "enum" in own and KIND not in own:
            yield _by_type(own.pop("enum"))

    def _any_of(self, schemas: Iterable[object], inside: frozenset[str]) -> list[Shape]:
        return [found for one in schemas for found in self.of(one, inside)]

    def target(self, reference: str | None) -> Any:
        """Return the schema of a reference within the document, MISSING for others."""
        if reference is None or not (reference == "#" or reference.startswith("#/")):
            return MISSING
        found: object = self._root
        for name in unquote(reference).split("/")[1:]:
            found = _step(found, name.replace("~1", "/").replace("~0", "~"))
        return found

    def with_targets(self, value: object) -> str:
        """Return the text of a part of a schema and of all that it refers to."""
        targets: dict[str, object] = {}
        waiting = [value]
        while waiting:
            for reference in _references(waiting.pop()):
                if reference not in targets:
                    target = self.target(reference)
                    if target is MISSING:  # an anchor may be anywhere in the document
                        target = self._root if reference.startswith("#") else None
                    targets[reference] = target
                    waiting.append(target)
        return text_of_value([value, targets])


def _step(found: object, name: str) -> object:
    if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
        return found[int(name)]
    return found.get(name, MISSING) if isinstance(found, Mapping) else MISSING


def _references(value: object) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _references(one)
    elif isinstance(value, Mapping):
        yield from (value[key] for key in _REFERENCES if isinstance(value.get(key), str))
        for one in value.values():
            yield from _references(one)


def _own(schema: Shape) -> dict[str, object]:
    """Return the keywords of a schema that limit values. Those with invalid values get another name."""
    own = {
        keyword if keyword not in _VALID or _VALID[keyword](value) else f"invalid {keyword}": value
        for keyword, value in schema.items()
        if keyword in _OURS or not (keyword in _ANNOTATIONS or keyword.startswith("x-"))
    }
    if isinstance(own.get("items"), list):  # prefixItems in drafts before 2020-12
        own["prefixItems"] = own.pop("items")
        own["items"] = own.pop("additionalItems", True)
    return own


def _by_type(values: list[object]) -> list[Shape]:
    """Return a schema for the values of each type."""
    found: dict[str, list[object]] = {}
    for value in values:
        found.setdefault(_type_of(value), []).append(value)
    return [
        {"type": kind} if kind == "null" or (kind == "boolean" and len({*some}) > 1) else {"type": kind, "enum": some}
        for kind, some in found.items()
    ]


def _type_of(value: object) -> str:
    types: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return "null" if value is None else types.get(type(value), "object")


def _merged(one: Shape, other: Shape) -> Shape | None:
    """Return a schema for the values that fit two plain ones; None if no value can.

    Where that is not simple, both of them remain, as an allOf.
    """
    both = dict(one)
    if not _can_merge(one, other):
        both = {"allOf": [one, other]}
        other = {name: other[name] for name in ("type",) if name in other}
        both |= {name: one[name] for name in ("type",) if name in one}
    for keyword, value in other.items():
        if keyword not in both or text_of_value(both[keyword]) == text_of_value(value):
            both[keyword] = value
        elif keyword == "type" and {both["type"], value} == {"integer", "number"}:
            both["type"] = "integer"
        elif keyword == "type":
            return None
        elif keyword == "required":
            both["required"] = sorted({*both["required"], *value})
        elif keyword == "properties":
            both["properties"] = {**both["properties"], **value}
        elif keyword == "enum":
            texts = set(map(text_of_value, value))
            both["enum"] = [one for one in both["enum"] if text_of_value(one) in texts]
            if not both["enum"]:
                return None
    return both


def _can_merge(one: Shape, other: Shape) -> bool:
    for group in _GROUPS:
        in_both = [[keyword for keyword in group if keyword in schema] for schema in (one, other)]
        if all(in_both) and in_both != [["properties"], ["properties"]]:
            return False
    fields, more = one.get("properties", {}), other.get("properties", {})
    return all(
        keyword in _MERGED or text_of_value(one[keyword]) == text_of_value(other[keyword])
        for keyword in one.keys() & other.keys()
    ) and all(text_of_value(fields[name]) == text_of_value(more[name]) for name in fields.keys() & more.keys())


def _exclude_each_other(alternatives: list[Shape]) -> bool:
    return all(_disjoint(one, other) for one, other in combinations(alternatives, 2))


def _disjoint(one: Shape, other: Shape) -> bool:
    """Return whether no value fits both of two schemas: by its type, or by a field such as a tag."""
    kinds = {one.get("type"), other.get("type")}
    if len(kinds) == 2 and None not in kinds and kinds != {"integer", "number"}:
        return True
    for name in {*one.get("required", ())} & {*other.get("required", ())}:
        tags = [set(map(text_of_value, _values(schema.get("properties", {}).get(name)))) for schema in (one, other)]
        if all(tags) and not tags[0] & tags[1]:
            return True
    return False


def _values(field: object) -> list[object]:
    """Return the only values of a field; none if there are others."""
    if not isinstance(field, Mapping):
        return []
    values = [field["const"]] if "const" in field else field.get("enum", [])
    return values if isinstance(values, list) else []
