from collections.abc import Callable
from typing import Any, NoReturn, final

from penstock.kernel.aggregates import ChangeAggregator
from penstock.kernel.cells import CellTable, CellUpdates
from penstock.kernel.nodes import ChangeNode, Node, RecordContext
from penstock.kernel.rows import ChangedRows, RowBuffer
from penstock.kernel.sinks import Changelog

class Rows:
    @property
    def key_serde(self) -> object: ...
    @property
    def counts(self) -> bool: ...

@final
class CachedRows(Rows):
    @property
    def updates(self) -> CellUpdates: ...
    def __init__(
        self,
        task: RecordContext,
        updates: CellUpdates,
        key_serde: object,
        encode_key: Callable[[Any], bytes] | None,
        grown: Callable[[], None],
        keeps_messages: bool,
    ) -> None: ...

class StoredRows(Rows):
    def __init__(
        self,
        task: RecordContext,
        buffer: RowBuffer,
        changelog: Changelog,
        key_serde: object,
        encode_key: Callable[[Any], bytes] | None,
        value_serde: object,
        encode: Callable[[Any], bytes] | None,
        decode: Callable[[bytes], Any] | None,
        exact: Callable[[Any], object] | None,
        exact_type: type | None,
        log_headers: tuple[bool, bool],
        sends_old: bool,
    ) -> None: ...

@final
class PythonRows(Rows):
    def __init__(
        self,
        task: RecordContext,
        get: Callable[[Any], Any],
        update: Callable[..., None],
        as_read: Callable[[Any], Any],
        wants_old: bool,
        sends_initial: bool = True,
    ) -> None: ...

@final
class RowGetter:
    @property
    def read(self) -> Callable[[Any], Any] | None: ...
    @property
    def bytes_serde(self) -> object: ...
    def __init__(
        self,
        get: Callable[[Any], Any],
        sent: bool = False,
        table: CellTable | None = None,
        buffer: RowBuffer | None = None,
        key_serde: object = None,
        encode_key: Callable[[Any], bytes] | None = None,
        read: Callable[[Any], Any] | None = None,
        bytes_serde: object = None,
    ) -> None: ...

class RowNode(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        rows: Rows | None,
        dropped: Callable[[str], None],
    ) -> None: ...

@final
class Count(RowNode): ...

@final
class Aggregate(RowNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        rows: Rows,
        dropped: Callable[[str], None],
        initializer: Callable[[], Any],
        aggregator: Callable[..., Any],
    ) -> None: ...

@final
class Reduce(RowNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        rows: Rows,
        dropped: Callable[[str], None],
        reducer: Callable[[Any, Any], Any],
    ) -> None: ...

@final
class TableAggregate(RowNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        rows: Rows,
        aggregator: ChangeAggregator,
        no_key: Callable[[], NoReturn],
    ) -> None: ...

@final
class TableSource(RowNode): ...

@final
class StreamTableJoin(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        joiner: Callable[..., Any],
        keys: int,
        left_join: bool,
        dropped: Callable[[str], None],
        rows: RowGetter,
        as_of: Callable[[Any, int], Any] | None,
        mapper: Callable[[Any, Any], Any] | None,
    ) -> None: ...

class JoinedTable(ChangeNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        skips_older: bool,
        dropped: Callable[[str], None],
    ) -> None: ...

@final
class TableJoin(JoinedTable):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        joiner: Callable[[Any, Any], Any],
        is_right: bool,
        rows: RowGetter,
        needs_this: bool,
        needs_other: bool,
        send_old: bool,
        skips_older: bool,
        dropped: Callable[[str], None],
    ) -> None: ...

@final
class WithoutOld(ChangeNode): ...

@final
class TableMerge(RowNode): ...

class TableStep(ChangeNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        function: Callable[..., Any],
        with_key: bool,
        rows: Rows | None,
        send_old: bool,
        skips: bool,
        old_value: Callable[[Any], Any] | None,
    ) -> None: ...

@final
class TableFilter(TableStep):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        predicate: Callable[[Any, Any], Any],
        negated: bool,
        rows: Rows | None,
        send_old: bool,
        skips: bool,
        old_value: Callable[[Any], Any] | None,
    ) -> None: ...

@final
class TableMapValues(TableStep): ...

@final
class RepartitionMap(ChangeNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        mapper: Callable[[Any, Any], Any],
        check: Callable[[str, Any], None],
        no_key: Callable[[], NoReturn],
        combined: bool,
        skips_older: bool,
    ) -> None: ...

@final
class FlushedChanges:
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node,
        key_serde: object,
        decode_key: Callable[[bytes], Any],
        form: int,
        size_ms: int,
        window_end: Callable[[int], int] | None,
        read: Callable[[Any], Any] | None,
        value_serde: object,
        holds_bytes: bool,
        timestamped: bool,
        keeps_headers: bool,
    ) -> None: ...
    def send(self, changes: ChangedRows, olds: list[Any] | None) -> None: ...

def nothing() -> None: ...
