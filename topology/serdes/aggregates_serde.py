"""The states of the aggregates of ``penstock.agg`` as JSON, which any program can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from typing_extensions import override

from penstock.kernel.aggregates import Aggregation
from penstock.kernel.conversions import Guarded

from ..errors import SerializationError
from .codecs import refusal
from .json_codec import json_decoder, json_encoder
from .serdes import Serde, nullable
from .shape_changes import Shape

States = tuple[object, ...]

_encode, _decode = json_encoder(), json_decoder()


def as_json_reads(value: object) -> object:
    """Return a copy of a value, as JSON reads it back; raises TypeError or ValueError if JSON cannot represent it."""
    try:
        return _decode(_encode(value))
    except SerializationError as error:
        raise ValueError(str(error)) from error


def unchanged(states: States) -> States:
    """Return states as they are: an Aggregation makes only those that JSON reads back unchanged; see Serde.exact."""
    return states


class AggregatesSerde(Serde[States]):
    """The states of an aggregation: an object of JSON with one for each name, or the only one.

    declared: the aggregates by name, or the only one, as text. Readers of a store get the results, see Serde.results.
    """

    exact_type = tuple

    def __init__(self, aggregation: Aggregation, declared: Mapping[str, str] | str) -> None:
        self.aggregation = aggregation
        self.declared = declared
        self.serializer = nullable(Guarded(aggregation.writer(_encode), refusal(repr(self), "write")))
        self.deserializer = nullable(Guarded(aggregation.reader(_decode), refusal(repr(self), "read")))
        self.exact = unchanged
        self.results = aggregation.result

    @override
    def serialize(self, topic: str, value: States | None) -> bytes | None:
        return cast("Any", self.serializer)(value)  # type: ignore[no-any-return]

    @override
    def deserialize(self, topic: str, data: bytes | None) -> States | None:
        return cast("Any", self.deserializer)(data)  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[object, ...]:
        return AggregatesSerde, (self.aggregation, self.declared)

    @override
    def shape(self) -> Shape:
        """Return the aggregates as the types of fields: another aggregate cannot continue from the state of a name."""
        if isinstance(self.declared, str):
            return {"type": self.declared}
        return {"type": "object", "properties": {name: {"type": text} for name, text in self.declared.items()}}

    def __repr__(self) -> str:
        return "aggregates"
