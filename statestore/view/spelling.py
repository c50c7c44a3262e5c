"""The text form of keys and bytes, for ``penstock state`` and over HTTP.

Printable bytes are shown as text. All others, and text that begins with ``0x``, are shown as hexadecimal digits after
``0x``, so any output can be entered again and means the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from penstock.topology.errors import SerializationError, StreamsError
from penstock.topology.serdes.serdes import PlainSerde, Serdes, as_serde

HEXADECIMAL = "0x"


class BadKeyError(StreamsError):
    """The request does not fit the store; the message describes a valid one."""


def spell_bytes(data: bytes) -> str:
    """Return bytes as text; see the module."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return HEXADECIMAL + data.hex()
    return text if text.isprintable() and not text.startswith(HEXADECIMAL) else HEXADECIMAL + data.hex()


def printable(text: str) -> str:
    r"""Return a text with control and other unprintable characters escaped as in JSON: ``\u001b``.

    Records come from untrusted sources, and terminals execute control characters.
    """
    return text if text.isprintable() else "".join(map(_spell_character, text))


def printable_lines(text: str) -> str:
    """Return a text of several lines with all but line ends and tabs printable()."""
    if text.isprintable():
        return text
    return "".join(part if part in "\n\t" else printable(part) for part in re.split("([\n\t])", text))


def _spell_character(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def read_bytes(text: str) -> bytes:
    """Return the bytes for a text from spell_bytes; raises ValueError for digits that are not hexadecimal."""
    return bytes.fromhex(text.removeprefix(HEXADECIMAL)) if text.startswith(HEXADECIMAL) else text.encode()


def _json_or_text(text: str) -> object:
    try:
        return Serdes.json().deserialize("", text.encode())
    except SerializationError:
        return text


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


#: The function that reads a key, and a description of its input, by the name of the key serde.
_READERS: Mapping[str, tuple[Callable[[str], object], str]] = {
    "string": (str, "text"),
    "bytes": (read_bytes, "text, or hexadecimal digits after 0x"),
    "json": (_json_or_text, "JSON, or text"),
    "uuid": (UUID, "a UUID"),
    "boolean": (_boolean, "true or false"),
    **dict.fromkeys(("int16", "int32", "int64"), (int, "a whole number")),
    **dict.fromkeys(("float32", "float64"), (float, "a number")),
}


def read_key(text: str, key_serde: Any, store: str) -> object:
    """Return the key of a store for a text; raises BadKeyError.

    By the store's key serde: text, a number, bytes as in read_bytes, a UUID, true or false; with any other serde JSON,
    or text if it is not JSON.
    """
    serde = as_serde(key_serde)
    name = serde.name if isinstance(serde, PlainSerde) else "json"
    read, expected = _READERS.get(name, _READERS["json"])
    try:
        key = read(text)
        if serde is not None:
            serde.serialize("", key)
    except Exception as error:
        raise BadKeyError(
            f"{text!r} is no key of the store {store}, whose keys are {serde!r}: expected {expected} ({error})."
        ) from error
    return key
