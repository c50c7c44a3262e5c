from collections.abc import Callable
from typing import Any, TypeVar, final

from penstock.kernel.conversions import Conversion

_Value = TypeVar("_Value")
_Result = TypeVar("_Result")
#: fastavro's functions of logical types, declared as fastavro does.
_ToValue = Callable[[Any, dict[Any, Any] | None, dict[Any, Any] | None], Any]
_FromValue = Callable[[Any, dict[Any, Any]], Any]
#: What fastavro makes of a schema's text: a named type, a union, or a dict that describes a type.
_Schema = str | list[_Schema] | dict[str, object]

PRIMITIVES: dict[str, int]

class Unusual(Exception): ...  # noqa: N818  # the name in avro.pyx

@final
class Type: ...

def compiled(schema: _Schema, to_value: dict[str, _ToValue], from_value: dict[str, _FromValue]) -> Type | None: ...
def reader(schema: Type, read: Callable[[bytes], _Result]) -> Callable[[bytes], _Result]: ...
def writer(schema: Type, header: bytes, write: Callable[[_Value], bytes]) -> Callable[[_Value], bytes]: ...

@final
class UnreadBytes(Conversion):
    def __init__(self, schema: Type, headers: set[bytes]) -> None: ...

@final
class HeaderChange(Conversion):
    def __init__(self, unread: UnreadBytes, headers: dict[str, bytes], topic: str) -> None: ...

def unread_bytes(schema: Type, headers: set[bytes]) -> UnreadBytes | None: ...
def topic_writer(
    writers: dict[str, Callable[[_Value], _Result]], topic: str, write: Callable[[_Value], _Result]
) -> Callable[[_Value], _Result]: ...
def topic_reader(
    readers: dict[bytes, Callable[[bytes], _Result]], read: Callable[[bytes], _Result]
) -> Callable[[bytes], _Result]: ...
