"""Rows of a database's table from Debezium's change events: the value of a table's topic as a KTable wants it."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from ..errors import SerializationError
from .json_codec import json_decoder
from .serdes import Serde
from .typed_json_serde import typed_json_serde

#: Debezium's operations that have a row: create, update, and read by a snapshot.
_WITH_ROW = ("c", "u", "r")


class _Event(msgspec.Struct):
    """A change event's value, with the schema around it (``value.converter.schemas.enable``) or without."""

    payload: msgspec.Raw = msgspec.Raw()
    op: str | None = None
    after: msgspec.Raw = msgspec.Raw()


class DebeziumSerde(Serde[Any]):
    """Reads the row after a change, None for a deleted one; writes a row as the event of a snapshot's read.

    kind: what rows are read as; None: dicts. deserialize raises SerializationError for what is no change of a row, and
    what Serdes.json(kind) raises for the row.
    """

    def __init__(self, kind: Any = None) -> None:
        self.kind = kind
        self._read = json_decoder(Any if kind is None else kind)
        self._write = typed_json_serde(Any if kind is None else kind).serialize
        self._event = msgspec.json.Decoder(_Event).decode

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """See Serde.serialize."""
        row = self._write(topic, value)
        return None if row is None else orjson.dumps({"op": "r", "after": orjson.Fragment(row)})

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        """See Serde.deserialize."""
        if data is None:
            return None
        event = self._event(data)
        if event.op is None and event.payload:
            if bytes(event.payload) == b"null":
                return None
            event = self._event(event.payload)
        if event.op == "d":
            return None
        if event.op not in _WITH_ROW or not event.after:
            raise SerializationError(
                f"{topic}: this is no change of a row by Debezium (op={event.op!r}): "
                f"{data[:100].decode(errors='replace')}"
            )
        return self._read(event.after)

    def __reduce__(self) -> Any:
        return DebeziumSerde, (self.kind,)

    def __repr__(self) -> str:
        return f"Serdes.debezium({'' if self.kind is None else getattr(self.kind, '__name__', self.kind)})"
