from collections.abc import Callable
from typing import Any, TypeVar, final

from penstock.kernel.messages import _Headers
from penstock.kernel.nodes import RecordContext
from penstock.kernel.rows import RowBuffer
from penstock.kernel.sinks import Changelog

_Record = TypeVar("_Record")

@final
class ValueLogger:
    def __init__(
        self,
        changelog: Changelog,
        task: RecordContext,
        encode: Callable[[Any], bytes | None] | None,
        log_any: Callable[[bytes, Any], bytes | None] | None = None,
    ) -> None: ...
    def __call__(self, key: bytes, value: Any) -> bytes | None: ...

class KeyValueCalls:
    def work_on(
        self,
        buffer: RowBuffer | None,
        encode_key: Callable[[Any], bytes],
        has_texts: bool,
        decode: Callable[[Any], Any] | None,
        decodes_none: bool,
        log_value: Callable[[bytes, Any], bytes | None],
        refused: Callable[[Any, Exception], None],
        note: Callable[[Any, Any], None] | None,
    ) -> None: ...
    def leave(self) -> None: ...
    def get(self, key: Any) -> Any: ...
    def put(self, key: Any, value: Any) -> None: ...

def with_field(record: type[_Record], place: int) -> Callable[[_Record, object], _Record]: ...
def record_maker(record: type[_Record]) -> Callable[[object, object, int, _Headers], _Record]: ...
