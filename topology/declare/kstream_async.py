"""The part of KStream whose functions wait, or take many records at once (docs/async.md)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, Unpack, overload

from ..common.arguments import check_async_function, check_function
from ..common.durations import Duration, to_millis
from ..context.arrow_batches import arrow_columns
from ..context.async_calls import CallOptions, Lifespan, OrderedBy, Retries
from ..errors import TopologyError
from ..operators.asynchronous import (
    AsyncOperator,
    KStreamFilterAsync,
    KStreamFlatMapValuesAsync,
    KStreamForeachAsync,
    KStreamMapValuesAsync,
)
from ..operators.batches import KStreamMapBatches
from .abstract_stream import AbstractStream
from .type_variables import VR, K, V

if TYPE_CHECKING:
    from ..graph.graph_nodes import ProcessorGraphNode
    from ..serdes.serdes import Serde
    from .kstream import KStream


class AsyncOptions(TypedDict, total=False):
    """How an async function is called; see AsyncStream."""

    max_in_flight: int
    timeout: Duration | None
    retries: Retries | None
    ordered_by: OrderedBy
    lifespan: Lifespan | None
    name: str | None


class AsyncStream(AbstractStream, Generic[K, V]):
    """What a KStream does with functions that wait, and with functions that take batches.

    An async function is called for each record, with the value, or with with_key the key and the value, while others of
    its calls still wait. Options of all of them:

    - max_in_flight (256): at most so many records of a process wait for this function; then no more are read for it
    - timeout (30 s): how long a call may take (``timedelta`` or ms), else it fails with TimeoutError; None: forever
    - retries: ``Retries(3)`` makes a call that failed again; without it, and after the last one, the
      ``processing.exception.handler`` decides, as for any function
    - ordered_by: "partition" (the results come out in the order of the records), or "key" (only records of one key keep
      their order, and a slow one holds up no other)
    - lifespan: opens, once for each process, what the function gets as its last argument, and closes it at the end: an
      async context manager's function
    - name: of the operator
    """

    @abstractmethod
    def result(self, node: Any, key_serde: Serde[Any] | None, value_serde: Serde[Any] | None) -> KStream[Any, Any]:
        """Return the stream that a node yields; for the DSL itself."""

    @overload
    def map_values_async(
        self, mapper: Callable[..., Awaitable[VR]], *, with_key: Literal[False] = False, **options: Unpack[AsyncOptions]
    ) -> KStream[K, VR]: ...
    @overload
    def map_values_async(
        self, mapper: Callable[..., Awaitable[VR]], *, with_key: Literal[True], **options: Unpack[AsyncOptions]
    ) -> KStream[K, VR]: ...
    def map_values_async(
        self, mapper: Callable[..., Awaitable[Any]], *, with_key: bool = False, **options: Unpack[AsyncOptions]
    ) -> KStream[K, Any]:
        """Replace the value by what the async mapper returns. Raises TopologyError for wrong options."""
        node = self._async("KSTREAM-MAPVALUES-", KStreamMapValuesAsync, mapper, with_key, options)
        node.value_changing = True
        return self.result(node, self.key_serde, None)

    def filter_async(self, predicate: Callable[..., Awaitable[Any]], **options: Unpack[AsyncOptions]) -> KStream[K, V]:
        """Keep the records for which the async predicate(key, value) returns something true."""
        node = self._async("KSTREAM-FILTER-", KStreamFilterAsync, predicate, True, options)
        return self.result(node, self.key_serde, self.value_serde)

    def flat_map_values_async(
        self, mapper: Callable[..., Awaitable[Iterable[VR]]], *, with_key: bool = False, **options: Unpack[AsyncOptions]
    ) -> KStream[K, VR]:
        """Replace a record by one for each value that the async mapper returns."""
        node = self._async("KSTREAM-FLATMAPVALUES-", KStreamFlatMapValuesAsync, mapper, with_key, options)
        node.value_changing = True
        return self.result(node, self.key_serde, None)

    def foreach_async(self, action: Callable[..., Awaitable[Any]], **options: Unpack[AsyncOptions]) -> None:
        """Call the async action(key, value) for each record. A record's offset is committed once it has ended."""
        self._async("KSTREAM-FOREACH-", KStreamForeachAsync, action, True, options)

    def _async(
        self,
        prefix: str,
        operator: type[AsyncOperator],
        function: Callable[..., Awaitable[Any]],
        with_key: bool,
        options: AsyncOptions,
    ) -> ProcessorGraphNode:
        name, ordered_by = options.get("name"), options.get("ordered_by", "partition")
        where = f"The function of {operator.__name__.removeprefix('KStream')} behind {self.name}"
        check_async_function(function, where)
        if ordered_by not in ("partition", "key"):
            raise TopologyError(f'ordered_by must be "partition" or "key", got {ordered_by!r}')
        called: Any = {option: value for option, value in options.items() if option not in ("name", "ordered_by")}
        return self.attach(name, prefix, operator(function, CallOptions(**called), ordered_by, with_key))

    def map_batches(
        self,
        mapper: Callable[[Any], Sequence[VR] | Any],
        *,
        max_records: int = 512,
        max_wait: Duration = timedelta(milliseconds=20),
        as_: Literal["list", "arrow"] = "list",
        name: str | None = None,
    ) -> KStream[K, VR]:
        """Replace values by mapper(values): a list of up to max_records in, as many results in the same order out.

        max_wait: how long the first record waits for others (``timedelta`` or ms). as_="arrow": the mapper takes a
        pyarrow.RecordBatch of the values' fields, and returns an array or a RecordBatch. What the mapper raises is
        raised for each record of the batch. Raises TopologyError for wrong arguments.
        """
        check_function(mapper, f"The function of map_batches() behind {self.name}")
        if type(max_records) is not int or max_records < 1:
            raise TopologyError(f"max_records must be 1 or more, got {max_records!r}")
        wait_ms = to_millis(max_wait, "max_wait")
        if wait_ms < 0:
            raise TopologyError(f"max_wait must not be negative, got {max_wait!r}")
        if as_ not in ("list", "arrow"):
            raise TopologyError(f'as_ must be "list" or "arrow", got {as_!r}')
        columns = arrow_columns() if as_ == "arrow" else None
        operator = KStreamMapBatches(mapper, max_records, wait_ms, columns)
        node = self.attach(name, "KSTREAM-MAPVALUES-", operator, value_changing=True)
        return self.result(node, self.key_serde, None)
