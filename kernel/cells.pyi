from collections.abc import Callable, Collection, Hashable
from typing import Any, Literal, Protocol, TypeVar, final, overload

from penstock.kernel.messages import _Headers, _Message
from penstock.kernel.rows import ChangedRows, StoredEntries

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Result = TypeVar("_Result")
#: The record key, the time by which the row expires, and for sessions their start.
_TimedKey = tuple[Any, ...]

class _Task(Protocol):
    """The record context of a TaskContext, which a put keeps with the cell."""

    @property
    def timestamp(self) -> int: ...
    @property
    def headers(self) -> _Headers: ...
    @property
    def message(self) -> _Message | None: ...

NOT_CACHED: object
NO_ROW: object

@final
class Cell:
    def __init__(
        self,
        row: object,
        timestamp: int,
        headers: _Headers,
        message: _Message | None,
        used: bool,
        key: Hashable,
    ) -> None: ...
    # Value and key are of the store's types.
    @overload
    def __getitem__(self, field: Literal[0, 6], /) -> Any: ...
    @overload
    def __getitem__(self, field: Literal[2], /) -> int: ...
    @overload
    def __getitem__(self, field: Literal[3], /) -> _Headers: ...
    @overload
    def __getitem__(self, field: Literal[4], /) -> _Message | None: ...
    @overload
    def __getitem__(self, field: Literal[1, 5], /) -> bool: ...
    @overload
    def __setitem__(self, field: Literal[0], value: object, /) -> None: ...
    @overload
    def __setitem__(self, field: Literal[2], value: int, /) -> None: ...
    @overload
    def __setitem__(self, field: Literal[3], value: _Headers, /) -> None: ...
    @overload
    def __setitem__(self, field: Literal[4], value: _Message | None, /) -> None: ...
    @overload
    def __setitem__(self, field: Literal[5], value: bool, /) -> None: ...

@final
class KeyIndex: ...

@final
class CellTable:
    NOT_CACHED: object
    check_at: int
    @property
    def entries(self) -> dict[Any, Cell]: ...
    @property
    def dirty_count(self) -> int: ...
    def dirty(self) -> list[Cell]: ...
    def updates(
        self,
        load: Callable[[_Key], Cell],
        hold: Callable[[_Value], object],
        read: Callable[[Any], _Value] | None,
        native: type | None,
    ) -> CellUpdates: ...
    def loads(
        self,
        stored: StoredEntries,
        deleting: Collection[object],
        read: Callable[[Any], object] | None,
        row_type: type[tuple[Any, ...]] | None,
    ) -> None: ...
    def putter(self, task: _Task, grown: Callable[[], None]) -> Callable[[Hashable, object], None]: ...
    def add_clean(self, key: Hashable, held: object) -> Cell: ...
    def clear(self) -> None: ...
    def cached(self, record_key: bytes, time_from: int, time_to: int) -> dict[_TimedKey, Any]: ...
    def sessions(
        self, windowed: type[_Result], key: object, record_key: bytes, earliest_end: int, latest_start: int
    ) -> list[tuple[_Result, Any]] | None: ...
    # (time, value), for sessions (end, start, value).
    def key_values(self, record_key: bytes, time_from: int, time_to: int) -> list[tuple[Any, ...]] | None: ...
    def take_dirty(self) -> ChangedRows: ...
    def evict(self, wanted: int, flush: Callable[[ChangedRows], None]) -> None: ...
    def evict_clean(self, wanted: int) -> int: ...

@final
class CellUpdates:
    @property
    def table(self) -> CellTable: ...
    def __init__(
        self,
        table: CellTable,
        load: Callable[[_Key], Cell],
        hold: Callable[[_Value], object],
        read: Callable[[Any], _Value] | None,
        native: type | None,
    ) -> None: ...
    def count(self, cache_key: Hashable, timestamp: int, headers: _Headers, message: _Message | None) -> bool: ...
    def aggregate(
        self,
        initializer: Callable[[], _Result],
        aggregator: Callable[[_Key, _Value, _Result], _Result],
        cache_key: Hashable,
        key: _Key,
        value: _Value,
        timestamp: int,
        headers: _Headers,
        message: _Message | None,
    ) -> bool: ...
    def reduce(
        self,
        reducer: Callable[[_Value, _Value], _Value],
        cache_key: Hashable,
        value: _Value,
        timestamp: int,
        headers: _Headers,
        message: _Message | None,
    ) -> bool: ...
    def replace(
        self, cache_key: Hashable, value: object, timestamp: int, headers: _Headers, message: _Message | None
    ) -> bool: ...
