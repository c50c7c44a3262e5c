"""The part of KStream with async functions and batch functions (docs/async.md)."""

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
    """The call options of an async function; see AsyncStream."""

    max_in_flight: int
    timeout: Duration | None
    retries: Retries | None
    ordered_by: OrderedBy
    lifespan: Lifespan | None
    name: str | None


class AsyncStream(AbstractStream, Generic[K, V]):
    """The operations of a KStream with async functions and with batch functions.

    An async function is called for each record, with the value, or with with_key the key and the value, while earlier
    calls are still running. Options of all these operations:

    - max_in_flight (256): the maximum number of records of a process that wait for this function; reading pauses then
    - timeout (30 s): the limit of a call (``timedelta`` or ms), after which it fails with TimeoutError; None: no limit
    - retries: ``Retries(3)`` retries a failed call; without it, and after the last retry, the
      ``processing.exception.handler`` decides, as for any function
    - ordered_by: "partition" (results have the order of the records), or "key" (only records with the same key keep
      their order, and a slow one does not delay other keys)
    - lifespan: a function that returns an async context manager; entered once per process, its value is passed to the
      function as the last argument, and it is exited at the end
    - name: of the operator
    """

    @abstractmethod
    def result(self, node: Any, key_serde: Serde[Any] | None, value_serde: Serde[Any] | None) -> KStream[Any, Any]:
        """Return the stream that a node yields; internal."""

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
        """Replace the value by the one that the async mapper returns. Raises TopologyError for invalid options."""
        node = self._async("KSTREAM-MAPVALUES-", KStreamMapValuesAsync, mapper, with_key, options)
        node.value_changing = True
        return self.result(node, self.key_serde, None)

    def filter_async(self, predicate: Callable[..., Awaitable[Any]], **options: Unpack[AsyncOptions]) -> KStream[K, V]:
        """Keep the records for which the async predicate(key, value) returns a true value."""
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
        where = f"The function of {operator.__name__.removeprefix('KStream')} after {self.name}"
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
        """Replace values by mapper(values): from a list of up to max_records to as many results in the same order.

        max_wait: how long the first record waits for others (``timedelta`` or ms). as_="arrow": the mapper takes a
        pyarrow.RecordBatch of the values' fields, and returns an array or a RecordBatch. An exception of the mapper is
        raised for each record of the batch. Raises TopologyError for invalid arguments.
        """
        check_function(mapper, f"The function of map_batches() after {self.name}")
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
