from collections.abc import Callable
from typing import Any, Generic, TypeVar, final
from uuid import UUID

from penstock.kernel.conversions import Conversion

_Value = TypeVar("_Value")
_Result = TypeVar("_Result")
_Foreign = TypeVar("_Foreign")
_Primary = TypeVar("_Primary")
#: What a record cache keeps of a JSON value: a copy of a flat dict, or the JSON.
_Held = dict[str, object] | bytes

def checked_json(
    dumps: Callable[[_Value], bytes], look_again: Callable[[_Value, bytes | None, TypeError | None], bytes], fits: bool
) -> Callable[[_Value], bytes]: ...
def number_decoder(layout: str, unpack: Callable[[bytes], tuple[float, ...]]) -> Callable[[bytes], float]: ...
def private_dicts(
    encode: Callable[[object], bytes | None], decode: Callable[[bytes], object]
) -> tuple[
    Callable[[object], _Held | None], Callable[[_Held | None], object], Callable[[_Held | None], bytes | None]
]: ...
def typed(
    kind: type[_Value], serialize: Callable[[_Value], bytes], convert: Callable[[object], _Value]
) -> Callable[[object], bytes]: ...
def uuid_encoder(encode: Callable[[object], bytes]) -> Callable[[object], bytes]: ...
def uuid_decoder(decode: Callable[[bytes], UUID]) -> Callable[[bytes], UUID]: ...

@final
class Written:
    def __init__(self, kind: int, size: int = -1, inside: Written | None = None) -> None: ...
    def __call__(self, data: bytes) -> bool: ...

def windowed_encoder(
    encode: Callable[[object], bytes], to_key: Callable[[_Value], bytes | None] | None, times: tuple[int, ...]
) -> Callable[[object], bytes]: ...
def windowed_decoder(
    decode: Callable[[bytes], _Result | None],
    from_key: Callable[[bytes], object],
    times_size: int,
    size_ms: int,
    window_end: Callable[[int], int] | None,
    windowed: type[_Result],
) -> Callable[[bytes], _Result | None]: ...
def ascii_written() -> Written: ...
def sized_written(size: int | None) -> Written: ...
def uuid_written() -> Written: ...
def windowed_written(inside: Written, times_size: int) -> Written: ...

@final
class Rewriter:
    known: dict[bytes, object] | None
    def __init__(
        self,
        encode: Callable[[_Value], bytes | None],
        decode: Callable[[bytes], _Value | None],
        written: Written | None,
    ) -> None: ...
    def __call__(self, data: bytes) -> bytes | None: ...
    def copy(self) -> Rewriter: ...

def nullable(function: Callable[[_Value], _Result]) -> Callable[[_Value | None], _Result | None]: ...

@final
class TimestampedDecoder(Conversion, Generic[_Result]):
    def __init__(self, decode: Callable[[bytes], object] | None, row: type[_Result]) -> None: ...
    def __call__(self, value: bytes | None) -> _Result | None: ...

def required(
    to_bytes: Callable[[_Value], bytes | None], takes_none: bool, refusal: Callable[[], Exception]
) -> Callable[[_Value], bytes]: ...
def join_parts(
    timestamp: int,
    offset: int,
    topic: bytes,
    partition: int,
    headers: bytes,
    prior: bytes | None,
    old: bytes | None,
    new: bytes | None,
) -> bytes: ...
def combined_key(
    foreign_to_bytes: Callable[[_Foreign], bytes | None], primary_to_bytes: Callable[[_Primary], bytes | None]
) -> Callable[[_Foreign | None, _Primary | None], bytes]: ...
def subscription_encoder(key_to_bytes: Callable[[Any], bytes | None]) -> Callable[[Any], bytes]: ...
def response_encoder(
    value_to_bytes: Callable[[Any], bytes | None], serialized: type[tuple[bytes]]
) -> Callable[[Any], bytes]: ...
def subscription_decoder(
    key_from_bytes: Callable[[bytes], object], instructions: tuple[int, ...], wrapper: type[_Result]
) -> Callable[[bytes], _Result]: ...
def response_decoder(
    value_from_bytes: Callable[[bytes], object], wrapper: type[_Result]
) -> Callable[[bytes], _Result]: ...
def hash128(data: bytes) -> bytes: ...
