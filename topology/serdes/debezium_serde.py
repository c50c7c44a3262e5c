"""Rows of a database table, from Debezium's change events, as values for a KTable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from typing_extensions import override

from ..errors import SerializationError
from .codecs import refusing
from .json_codec import json_decoder, json_encoder
from .serdes import Serde
from .shape_changes import Shape
from .typed_json_serde import typed_json_serde

#: Debezium's operations with a row: create, update, and read by a snapshot.
_WITH_ROW = ("c", "u", "r")
#: The event around a row that serialize writes.
_ROW_HEAD, _ROW_END = b'{"op":"r","after":', b"}"
#: The first byte that a schema registry's serializers write; no JSON begins with it.
_MAGIC = b"\0"


class _Event(msgspec.Struct):
    """A change event's value, with the schema around it (``value.converter.schemas.enable``) or without."""

    payload: msgspec.Raw = msgspec.Raw()
    op: str | None = None
    after: msgspec.Raw = msgspec.Raw()


class DebeziumSerde(Serde):
    """Reads the row after a change, None for a deleted one; writes a row as the event of a snapshot's read, in JSON.

    kind: the type of the rows; None: dicts. registry: for events in Avro, whose rows are converted to JSON before they
    are read, so that a row is the same from the topic and from a store; NaN and the infinities are kept. deserialize
    raises SerializationError for anything but a change of a row, and for a row that is not of the type.
    """

    def __init__(
        self, kind: object = None, registry: object = None, options: Mapping[str, object] | None = None
    ) -> None:
        self.kind = kind
        self._registry, self._options = registry, dict(options or {})
        self._read_avro = None if registry is None else _avro_reader(registry, self._options)
        allow_nan = registry is not None
        self._read = json_decoder(Any if kind is None else kind, allow_nan)
        self._write = typed_json_serde(Any if kind is None else kind, allow_nan).serialize
        self._event = msgspec.json.Decoder(_Event).decode

    @override
    @refusing("write")
    def serialize(self, topic: str, value: object) -> bytes | None:
        row = self._write(topic, value)
        return None if row is None else _ROW_HEAD + row + _ROW_END

    @override
    @refusing("read")
    def deserialize(self, topic: str, data: bytes | None) -> Any:
        if data is None:
            return None
        if self._read_avro is not None and data.startswith(_MAGIC):
            event = _event_of(self._read_avro(topic, data))
        elif self._read_avro is not None and data.startswith(_ROW_HEAD):  # written by serialize; may contain NaN
            return self._read(data[len(_ROW_HEAD) : -len(_ROW_END)])
        else:
            event = self._event(data)
        if event.op is None and event.payload:
            if bytes(event.payload) == b"null":
                return None
            event = self._event(event.payload)
        if event.op == "d":
            return None
        if event.op not in _WITH_ROW or not event.after:
            raise SerializationError(
                f"{topic}: this is not a row's change event of Debezium (op={event.op!r}): "
                f"{data[:100].decode(errors='replace')}"
            )
        return self._read(event.after)

    def __reduce__(self) -> tuple[object, ...]:
        return DebeziumSerde, (self.kind, self._registry, self._options)

    @override
    def shape(self) -> Shape | None:
        return None if self.kind is None else typed_json_serde(self.kind).shape()

    def __repr__(self) -> str:
        kind = "" if self.kind is None else getattr(self.kind, "__name__", self.kind)
        return f"Serdes.debezium({kind}{'' if self._registry is None else ', …' if kind else '…'})"


def _avro_reader(registry: object, options: dict[str, object]) -> Callable[[str, bytes], object]:
    from .avro_serdes import avro_reader  # needs an extra

    return avro_reader(registry, **options)


def _event_of(event: object) -> _Event:
    """Return the event in a value read from Avro; its operation is None if the value is not an event."""
    found = event if isinstance(event, dict) else {}
    after = found.get("after")
    return _Event(op=found.get("op"), after=msgspec.Raw() if after is None else msgspec.Raw(_row_as_json(after)))


#: Converts a row read from Avro: dates, decimals and bytes become text, as in Debezium's JSON.
_row_as_json = json_encoder(dict, allow_nan=True)
