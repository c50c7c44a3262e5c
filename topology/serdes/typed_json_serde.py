"""JSON as objects of a type (msgspec), like a serde of a class with Jackson in Kafka Streams.

msgspec reads and checks in one pass and creates the objects directly, without a dict for each record.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, cast

from msgspec import inspect
from typing_extensions import override

from penstock.kernel.codecs import Rewriter
from penstock.kernel.conversions import Guarded

from ..errors import ConfigError
from .codecs import refusal
from .json_codec import json_decoder, json_encoder
from .serdes import Serde, nullable
from .shape_keywords import Shape
from .type_shapes import type_shape

T = TypeVar("T")


class TypedJsonSerde(Serde[T]):
    """JSON objects as instances of a type: a msgspec.Struct, dataclass, NamedTuple, TypedDict, or of ``list[…]`` etc.

    deserialize raises SerializationError for invalid JSON and for JSON of another type; the message names the field.
    serialize does not check the type. allow_nan, and errors for numbers: see json_codec. Raises ConfigError for a type
    that msgspec cannot read.
    """

    def __init__(self, kind: type[T], allow_nan: bool = False) -> None:
        try:
            decode = json_decoder(kind, allow_nan)
            described = inspect.type_info(kind)
        except TypeError as error:
            raise ConfigError(f"Serdes.json({kind!r}): {error}") from error
        if isinstance(described, inspect.CustomType):
            raise ConfigError(
                f"Serdes.json({kind.__name__}): msgspec cannot create such objects. "
                "Use a msgspec.Struct, a dataclass, a NamedTuple or a TypedDict, or your own serde."
            )
        self.kind = kind
        self.allow_nan = allow_nan
        encode = Guarded(json_encoder(kind, allow_nan), refusal(repr(self), "write"))
        decode = Guarded(decode, refusal(repr(self), "read"))
        self.serializer = nullable(encode)
        self.deserializer = nullable(decode)
        self.rewrite = Rewriter(encode, decode, None)

    @override
    def serialize(self, topic: str, value: T | None) -> bytes | None:
        return cast("Any", self.serializer)(value)  # type: ignore[no-any-return]

    @override
    def deserialize(self, topic: str, data: bytes | None) -> T | None:
        return cast("Any", self.deserializer)(data)  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[object, ...]:
        return (typed_json_serde, (self.kind, self.allow_nan))

    @override
    def shape(self) -> Shape:
        return type_shape(self.kind)

    def __repr__(self) -> str:
        given = [] if self.kind is Any else [str(getattr(self.kind, "__name__", self.kind))]
        return f"Serdes.json({', '.join([*given, *(['allow_nan=True'] if self.allow_nan else [])])})"


@cache
def typed_json_serde(kind: type[T], allow_nan: bool = False) -> TypedJsonSerde[T]:
    """Return the one serde of a type."""
    return TypedJsonSerde(kind, allow_nan)
