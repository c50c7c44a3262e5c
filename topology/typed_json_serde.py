"""JSON as objects of a type (msgspec): what Kafka Streams' users have as a serde of a class with Jackson.

msgspec reads and checks in one pass and makes the object's fields at once, without a dict for each record.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from .errors import ConfigError
from .serdes import Inline, Serde, set_inline

T = TypeVar("T")

_ENCODE = msgspec.json.Encoder().encode


class TypedJsonSerde(Serde[T]):
    """JSON objects as instances of a type: a msgspec.Struct, dataclass, NamedTuple, TypedDict, or of ``list[…]`` etc.

    deserialize raises msgspec.DecodeError for what is no JSON, and msgspec.ValidationError, which names the field, for
    JSON of another type. What is written is not checked. Raises ConfigError for a type that msgspec cannot read.
    """

    def __init__(self, kind: type[T]) -> None:
        try:
            decode = msgspec.json.Decoder(kind).decode
            described = inspect.type_info(kind)
        except TypeError as error:
            raise ConfigError(f"Serdes.json({kind!r}): {error}") from error
        if isinstance(described, inspect.CustomType):
            raise ConfigError(
                f"Serdes.json({kind.__name__}): msgspec does not know how to make one. "
                "Use a msgspec.Struct, a dataclass, a NamedTuple or a TypedDict, or a serde of your own."
            )
        self.kind = kind

        def serialize(value: T | None) -> bytes | None:
            return None if value is None else _ENCODE(value)

        def deserialize(data: bytes | None) -> T | None:
            return None if data is None else decode(data)

        set_inline(serialize, Inline("{encode}({})", {"encode": _ENCODE}))
        set_inline(deserialize, Inline("{decode}({})", {"decode": decode}))
        self.serializer = serialize
        self.deserializer = deserialize

    def serialize(self, topic: str, value: T | None) -> bytes | None:
        """See Serde.serialize."""
        return None if value is None else _ENCODE(value)

    def deserialize(self, topic: str, data: bytes | None) -> T | None:
        """See Serde.deserialize."""
        return cast("Any", self.deserializer)(data)  # type: ignore[no-any-return]

    def __reduce__(self) -> Any:
        return (typed_json_serde, (self.kind,))

    def __repr__(self) -> str:
        return f"Serdes.json({getattr(self.kind, '__name__', self.kind)})"


@cache
def typed_json_serde(kind: type[T]) -> TypedJsonSerde[T]:
    """Return the serde of a type: the same one each time."""
    return TypedJsonSerde(kind)
