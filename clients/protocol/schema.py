"""Encodes Kafka's messages by definitions in text form, which list the fields of all versions as Kafka's JSON files do.

One line for each field: ``name: type versions = default``, its own fields indented below it. Types: int8 to int64,
uint16, float64, bool, string, bytes, uuid (16 bytes), ``[int32]`` for an array of such, ``[]`` for an array of
structures, ``{}`` for one structure; a trailing ``?`` marks a nullable type, whose default is null. Versions: ``5+`` or
``0-7``, none for all. ``tag N`` after the versions: a tagged field (KIP-482). A line ``Name:`` after the fields begins
a structure that several fields refer to, as ``[Name]`` or ``Name``.

Unknown tagged fields are skipped, and fields that a version lacks keep their default, because a broker may be newer or
older than this client.
"""

from __future__ import annotations

import ast
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

from typing_extensions import override

from .api import Api
from .compact import CompactReader, compact_length

_LATEST = 1 << 15
_NUMBERS = {"int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "uint16": ">H", "float64": ">d"}
_SECTION = re.compile(r"(\w+):")
_LINE = re.compile(
    r"(?P<indent> *)(?P<name>\w+): (?P<type>\w+|\[\w*\]|{})(?P<null>\?)?( (?P<since>\d+)(?P<more>\+|-(?P<until>\d+))?)?"
    r"( tag (?P<tag>\d+))?( = (?P<default>.+))?"
)


class Type:
    """Encodes and decodes a value. flexible: in the compact encoding of newer versions (KIP-482)."""

    #: The value of a field that was not passed, or that a version lacks.
    default: Any = 0

    def encode(self, value: Any, version: int, flexible: bool) -> bytes:
        """Return the value's bytes."""
        raise NotImplementedError

    def decode(self, reader: CompactReader, version: int, flexible: bool) -> Any:
        """Return the next value. Raises ValueError."""
        raise NotImplementedError


def _not_null(value: object) -> object:
    """Return a value; raises ValueError for null."""
    if value is None:
        raise ValueError("null where a message must have a value")
    return value


class _Number(Type):
    def __init__(self, code: str) -> None:
        self._struct = struct.Struct(code)

    def encode(self, value: object, version: int, flexible: bool) -> bytes:
        return self._struct.pack(value)

    def decode(self, reader: CompactReader, version: int, flexible: bool) -> Any:
        return self._struct.unpack(reader.take(self._struct.size))[0]


class _Bool(Type):
    default = False

    def encode(self, value: object, version: int, flexible: bool) -> bytes:
        return b"\1" if value else b"\0"

    def decode(self, reader: CompactReader, version: int, flexible: bool) -> Any:
        return reader.take(1) != b"\0"


class _Uuid(Type):
    default = bytes(16)

    def encode(self, value: Any, version: int, flexible: bool) -> bytes:
        return bytes(value)

    def decode(self, reader: CompactReader, version: int, flexible: bool) -> Any:
        return reader.take(16)


class _Sized(Type):
    """A length-prefixed value. size_bytes: the size of the length in versions that are not flexible."""

    size_bytes = 4

    def _length(self, size: int, flexible: bool) -> bytes:
        return compact_length(size) if flexible else size.to_bytes(self.size_bytes, "big", signed=True)

    def _read_length(self, reader: CompactReader, flexible: bool) -> int:
        """Return the length, -1 for null. Raises ValueError if it exceeds the remaining bytes."""
        length = reader.unsigned() - 1 if flexible else reader.number(self.size_bytes)
        if length > reader.left:
            raise ValueError(f"{length} bytes or entries in {reader.left} bytes")
        return length


class _Bytes(_Sized):
    default: Any = b""

    def encode(self, value: Any, version: int, flexible: bool) -> bytes:
        return self._length(-1, flexible) if value is None else self._length(len(value), flexible) + bytes(value)

    def decode(self, reader: CompactReader, version: int, flexible: bool) -> Any:
        length = self._read_length(reader, flexible)
        return None if length < 0 else reader.take(length)


class _String(_Bytes):
    default = ""
    size_bytes = 2

    def encode(self, value: Any, version: int, flexible: bool) -> bytes:
        return super().encode(None if value is None else value.encode(), version, flexible)

    def decode(self, reader: CompactReader, version: int, flexible: bool) -> Any:
        data = super().decode(reader, version, flexible)
        return None if data is None else data.decode()


class _Array(_Sized):
    def __init__(self, item: Type) -> None:
        self.item = item
        self.default = []

    def encode(self, value: Any, version: int, flexible: bool) -> bytes:
        if value is None:
            return self._length(-1, flexible)
        return self._length(len(value), flexible) + b"".join(
            self.item.encode(item, version, flexible) for item in value
        )

    def decode(self, reader: CompactReader, version: int, flexible: bool) -> Any:
        length = self._read_length(reader, flexible)
        return None if length < 0 else [_not_null(self.item.decode(reader, version, flexible)) for _ in range(length)]


class _Nullable(Type):
    """A nullable structure is prefixed by a byte (KIP-893); strings, bytes and arrays by their length."""

    default = None

    def __init__(self, item: Type) -> None:
        self.item = item

    def encode(self, value: Any, version: int, flexible: bool) -> bytes:
        if not isinstance(self.item, Structure):
            return self.item.encode(value, version, flexible)
        return b"\xff" if value is None else b"\1" + self.item.encode(value, version, flexible)

    def decode(self, reader: CompactReader, version: int, flexible: bool) -> Any:
        if isinstance(self.item, Structure) and reader.number(1) < 0:
            return None
        return self.item.decode(reader, version, flexible)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    type: Type
    since: int
    until: int
    tag: int | None
    default: Any


class Structure(Type):
    """Fields in order. Values are mappings by field name when encoded, namespaces when decoded."""

    def __init__(self, fields: list[_Field]) -> None:
        self._fields = fields
        self.names = frozenset(each.name for each in fields)
        self._by_version: dict[int, tuple[list[_Field], dict[int, _Field]]] = {}
        self._defaults = {each.name: each.default for each in fields}

    def _of(self, version: int) -> tuple[list[_Field], dict[int, _Field]]:
        found = self._by_version.get(version)
        if found is None:
            present = [each for each in self._fields if each.since <= version <= each.until]
            tagged = {each.tag: each for each in present if each.tag is not None}
            found = self._by_version[version] = [each for each in present if each.tag is None], tagged
        return found

    def encode(self, value: Mapping[str, object], version: int, flexible: bool) -> bytes:
        """Return a structure's bytes. Raises TypeError for names that no version has."""
        if not value.keys() <= self.names:
            raise TypeError(f"no such fields: {sorted(value.keys() - self.names)}")
        plain, tagged = self._of(version)
        parts = [each.type.encode(value.get(each.name, each.default), version, flexible) for each in plain]
        if flexible:
            given = {
                t: each for t, each in sorted(tagged.items()) if value.get(each.name, each.default) != each.default
            }
            parts.append(_unsigned(len(given)))
            for tag, each in given.items():
                data = each.type.encode(value[each.name], version, flexible)
                parts += [_unsigned(tag), _unsigned(len(data)), data]
        return b"".join(parts)

    def decode(self, reader: CompactReader, version: int, flexible: bool) -> SimpleNamespace:
        """Return the next structure. Raises ValueError."""
        found = dict(self._defaults)
        plain, tagged = self._of(version)
        for each in plain:
            value = each.type.decode(reader, version, flexible)
            found[each.name] = value if isinstance(each.type, _Nullable) else _not_null(value)
        if flexible:
            for tag, data in reader.tags().items():
                if tag in tagged:
                    found[tagged[tag].name] = tagged[tag].type.decode(CompactReader(data), version, flexible)
        return SimpleNamespace(**found)


def _unsigned(number: int) -> bytes:
    return compact_length(number - 1)


_PRIMITIVES: Mapping[str, Callable[[], Type]] = {
    **{name: partial(_Number, code) for name, code in _NUMBERS.items()},
    "bool": _Bool,
    "uuid": _Uuid,
    "string": _String,
    "bytes": _Bytes,
}


def structure(definition: str) -> Structure:
    """Parse a definition; raises ValueError for a malformed line."""
    sections: list[tuple[str, list[re.Match[str]]]] = [("", [])]
    for line in filter(str.strip, definition.splitlines()):
        if match := _LINE.fullmatch(line):
            sections[-1][1].append(match)
        elif section := _SECTION.fullmatch(line):
            sections.append((section[1], []))
        else:
            raise ValueError(f"not a field of a message: {line!r}")
    shared: dict[str, Structure] = {}
    for name, lines in sections[1:]:
        shared[name] = _structure(lines, 0, shared)[0]
    return _structure(sections[0][1], 0, shared)[0]


def _structure(lines: list[re.Match[str]], at: int, shared: Mapping[str, Structure]) -> tuple[Structure, int]:
    indent = len(lines[at]["indent"])
    fields = []
    while at < len(lines) and len(lines[at]["indent"]) == indent:
        line, inner, at = lines[at], None, at + 1
        if at < len(lines) and len(lines[at]["indent"]) > indent:
            inner, at = _structure(lines, at, shared)
        fields.append(_field(line, inner or shared.get(line["type"].strip("[]"))))
    return Structure(fields), at


def _field(line: re.Match[str], inner: Structure | None) -> _Field:
    name = line["type"]
    item: Type = inner or _PRIMITIVES[name.strip("[]")]()
    found: Type = _Array(item) if name.startswith("[") else item
    if line["null"]:
        found = _Nullable(found)
    since = int(line["since"] or 0)
    until = int(line["until"]) if line["until"] else since if line["since"] and not line["more"] else _LATEST
    default = ast.literal_eval(line["default"]) if line["default"] else found.default
    return _Field(line["name"], found, since, until, None if line["tag"] is None else int(line["tag"]), default)


@dataclass(frozen=True)
class SchemaApi(Api[SimpleNamespace]):
    """A request type and its response by their definitions. flexible: the first version in the compact encoding.

    Call it with fields as keyword arguments to create a request.
    """

    flexible: int
    request_text: str = field(repr=False)
    response_text: str = field(repr=False)

    @cached_property
    def request(self) -> Structure:
        """The fields of a request."""
        return structure(self.request_text)

    @cached_property
    def response(self) -> Structure:
        """The fields of a response."""
        return structure(self.response_text)

    def __call__(self, **body: object) -> Request:
        """Return a request. Raises TypeError for names that no version has."""
        return Request(self, body)

    @override
    def decode(self, data: bytes | bytearray, version: int) -> SimpleNamespace:
        reader = CompactReader(data)
        reader.number(4)  # the correlation id
        if version >= self.flexible and self.key != _API_VERSIONS_KEY:
            reader.tags()
        return self.response.decode(reader, version, version >= self.flexible)


#: Its response header has no tags in any version: clients read it before they know the broker's versions (KIP-511).
_API_VERSIONS_KEY = 18
_HEADER = struct.Struct(">hhi")


@dataclass(frozen=True)
class Request:
    """A request as values. body: fields of all versions by name. version_max: the highest version to send."""

    api: SchemaApi
    body: Mapping[str, Any]
    version_max: int = _LATEST

    def __post_init__(self) -> None:
        if not self.body.keys() <= self.api.request.names:
            raise TypeError(f"{self.api.name} has no {sorted(self.body.keys() - self.api.request.names)}")

    def encode(self, version: int, correlation_id: int, client_id: str) -> bytes:
        """Return the request's bytes without the length prefix."""
        flexible = version >= self.api.flexible
        name = client_id.encode()
        return b"".join(
            (
                _HEADER.pack(self.api.key, version, correlation_id),
                len(name).to_bytes(2, "big"),
                name,
                b"\0" if flexible else b"",
                self.api.request.encode(self.body, version, flexible),
            )
        )
