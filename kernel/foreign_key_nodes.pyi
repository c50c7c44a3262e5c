from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, final

from penstock.kernel.nodes import ChangeNode, Node, RecordContext
from penstock.kernel.table_nodes import JoinedTable, RowGetter, StoredRows

@final
class SubscriptionSend(JoinedTable):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        extract: Callable[..., object],
        with_key: bool,
        to_bytes: Callable[[Any], bytes | None],
        asks: int,
        steps_for: Callable[[Any, Any, bool], Sequence[tuple[Any, int]]],
        hash_of: Callable[[Any], bytes],
        serde: object,
        subscription: type,
        partition: int,
        version: int,
        skips_older: bool,
        dropped: Callable[[str], None],
    ) -> None: ...

@final
class SubscriptionReceive(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        to_bytes: Callable[[Any, Any], bytes],
        rows: StoredRows | None,
        put: Callable[[bytes, Any], None],
        combined_key: type[tuple[Any, ...]],
        row_type: type[tuple[Any, ...]],
        refuse: Callable[[int], NoReturn],
        dropped: Callable[[str], None],
    ) -> None: ...

@final
class SubscriptionJoin(ChangeNode):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        rows: RowGetter,
        serialized: type[tuple[Any, ...]] | None,
        response: type[tuple[Any, ...]],
    ) -> None: ...

@final
class ForeignTableJoin(JoinedTable):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        prefix: Callable[[Any], bytes],
        scan: Callable[[bytes], Iterable[tuple[Any, Any]]],
        primary_serde: object,
        primary_from_bytes: Callable[[bytes], Any],
        response: type[tuple[Any, ...]],
        skips_older: bool,
        dropped: Callable[[str], None],
    ) -> None: ...

@final
class ResponseJoin(Node):
    def __init__(
        self,
        task: RecordContext,
        name: str,
        child: Node | None,
        joiner: Callable[[Any, Any], Any],
        left_join: bool,
        rows: RowGetter,
        by_bytes: bool,
        hash_of: Callable[[Any], bytes],
        decode: Callable[[Any], Any] | None,
        refuse: Callable[[int], NoReturn],
        dropped: Callable[[str], None],
    ) -> None: ...
