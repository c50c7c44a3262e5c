"""The part of KStream with async functions and batch functions (docs/async.md)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, Unpack, overload

from ..common.arguments import check_async_function, check_function
from ..common.durations import Duration, to_millis
from ..context.arrow_batches import arrow_columns
from ..context.async_calls import CallOptions, Lifespan, OrderedBy, Retries
from ..context.batch_results import Column
from ..errors import TopologyError
from ..operators.asynchronous import (
    AsyncOperator,
    KStreamFilterAsync,
    KStreamFlatMapValuesAsync,
    KStreamForeachAsync,
    KStreamMapValuesAsync,
)
from ..operators.batches import KStreamMapBatches
from ..type_variables import VR, K, V
from .abstract_stream import AbstractStream
from .options import shows_options

if TYPE_CHECKING:
    from ..graph.graph_nodes import ProcessorGraphNode
    from ..serdes.serdes import Serde
    from .kstream import KStream


R = TypeVar("R")

#: Opens a function's resource of type R.
LifespanOf = Callable[[], AbstractAsyncContextManager[R]]


class AsyncOptions(TypedDict, total=False):
    """The call options of an async function; see AsyncStream."""

    max_in_flight: int
    timeout: Duration | None
    retries: Retries | None
    ordered_by: OrderedBy
    lifespan_timeout: Duration | None
    name: str | None


_shows_async_options = shows_options(
    AsyncOptions, ordered_by="partition", **{option.name: option.default for option in fields(CallOptions)}
)


class BatchOptions(TypedDict, total=False):
    """Options of map_batches."""

    max_records: int
    max_wait: Duration
    on_error: Literal["fail", "split"]
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
    - lifespan_timeout (a minute): the limit for entering it, after which the stream thread is replaced; None: no limit
    - name: of the operator
    """

    @abstractmethod
    def result(self, node: Any, key_serde: Serde | None, value_serde: Serde | None) -> KStream:
        """Return the stream that a node yields; internal."""

    @overload
    def map_values_async(
        self,
        mapper: Callable[[V], Awaitable[VR]],
        *,
        with_key: Literal[False] = False,
        lifespan: None = None,
        **options: Unpack[AsyncOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def map_values_async(
        self,
        mapper: Callable[[K, V], Awaitable[VR]],
        *,
        with_key: Literal[True],
        lifespan: None = None,
        **options: Unpack[AsyncOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def map_values_async(
        self,
        mapper: Callable[[V, R], Awaitable[VR]],
        *,
        with_key: Literal[False] = False,
        lifespan: LifespanOf[R],
        **options: Unpack[AsyncOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def map_values_async(
        self,
        mapper: Callable[[K, V, R], Awaitable[VR]],
        *,
        with_key: Literal[True],
        lifespan: LifespanOf[R],
        **options: Unpack[AsyncOptions],
    ) -> KStream[K, VR]: ...
    @_shows_async_options
    def map_values_async(
        self,
        mapper: Callable[..., Awaitable[Any]],
        *,
        with_key: bool = False,
        lifespan: Lifespan | None = None,
        **options: Unpack[AsyncOptions],
    ) -> KStream[K, Any]:
        """Replace the value by the one that the async mapper returns. Raises TopologyError for invalid options."""
        node = self._async("KSTREAM-MAPVALUES-", KStreamMapValuesAsync, mapper, with_key, lifespan, options)
        node.value_changing = True
        return self.result(node, self.key_serde, None)

    @overload
    def filter_async(
        self,
        predicate: Callable[[K, V], Awaitable[object]],
        *,
        lifespan: None = None,
        **options: Unpack[AsyncOptions],
    ) -> KStream[K, V]: ...
    @overload
    def filter_async(
        self,
        predicate: Callable[[K, V, R], Awaitable[Any]],
        *,
        lifespan: LifespanOf[R],
        **options: Unpack[AsyncOptions],
    ) -> KStream[K, V]: ...
    @_shows_async_options
    def filter_async(
        self,
        predicate: Callable[..., Awaitable[object]],
        *,
        lifespan: Lifespan | None = None,
        **options: Unpack[AsyncOptions],
    ) -> KStream[K, V]:
        """Keep the records for which the async predicate(key, value) returns a true value."""
        node = self._async("KSTREAM-FILTER-", KStreamFilterAsync, predicate, True, lifespan, options)
        return self.result(node, self.key_serde, self.value_serde)

    @overload
    def flat_map_values_async(
        self,
        mapper: Callable[[V], Awaitable[Iterable[VR]]],
        *,
        with_key: Literal[False] = False,
        lifespan: None = None,
        **options: Unpack[AsyncOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def flat_map_values_async(
        self,
        mapper: Callable[[K, V], Awaitable[Iterable[VR]]],
        *,
        with_key: Literal[True],
        lifespan: None = None,
        **options: Unpack[AsyncOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def flat_map_values_async(
        self,
        mapper: Callable[[V, R], Awaitable[Iterable[VR]]],
        *,
        with_key: Literal[False] = False,
        lifespan: LifespanOf[R],
        **options: Unpack[AsyncOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def flat_map_values_async(
        self,
        mapper: Callable[[K, V, R], Awaitable[Iterable[VR]]],
        *,
        with_key: Literal[True],
        lifespan: LifespanOf[R],
        **options: Unpack[AsyncOptions],
    ) -> KStream[K, VR]: ...
    @_shows_async_options
    def flat_map_values_async(
        self,
        mapper: Callable[..., Awaitable[Iterable[Any]]],
        *,
        with_key: bool = False,
        lifespan: Lifespan | None = None,
        **options: Unpack[AsyncOptions],
    ) -> KStream[K, Any]:
        """Replace a record by one for each value that the async mapper returns."""
        node = self._async("KSTREAM-FLATMAPVALUES-", KStreamFlatMapValuesAsync, mapper, with_key, lifespan, options)
        node.value_changing = True
        return self.result(node, self.key_serde, None)

    @overload
    def foreach_async(
        self,
        action: Callable[[K, V], Awaitable[object]],
        *,
        lifespan: None = None,
        **options: Unpack[AsyncOptions],
    ) -> None: ...
    @overload
    def foreach_async(
        self,
        action: Callable[[K, V, R], Awaitable[Any]],
        *,
        lifespan: LifespanOf[R],
        **options: Unpack[AsyncOptions],
    ) -> None: ...
    @_shows_async_options
    def foreach_async(
        self,
        action: Callable[..., Awaitable[object]],
        *,
        lifespan: Lifespan | None = None,
        **options: Unpack[AsyncOptions],
    ) -> None:
        """Call the async action(key, value) for each record. A record's offset is committed once it has ended."""
        self._async("KSTREAM-FOREACH-", KStreamForeachAsync, action, True, lifespan, options)

    def _async(
        self,
        prefix: str,
        operator: type[AsyncOperator],
        function: Callable[..., Awaitable[object]],
        with_key: bool,
        lifespan: Lifespan | None,
        options: AsyncOptions,
    ) -> ProcessorGraphNode:
        name, ordered_by = options.get("name"), options.get("ordered_by", "partition")
        where = f"The function of {operator.__name__.removeprefix('KStream')} after {self.name}"
        check_async_function(function, where)
        if ordered_by not in ("partition", "key"):
            raise TopologyError(f'ordered_by must be "partition" or "key", got {ordered_by!r}')
        called: Any = {option: value for option, value in options.items() if option not in ("name", "ordered_by")}
        call_options = CallOptions(**called, lifespan=lifespan)
        return self.attach(name, prefix, operator(function, call_options, ordered_by, with_key))

    @overload
    def map_batches(
        self,
        mapper: Callable[[list[V]], Sequence[VR]],
        *,
        as_: Literal["list"] = "list",
        **options: Unpack[BatchOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def map_batches(
        self, mapper: Callable[[list[V]], Column], *, as_: Literal["list"] = "list", **options: Unpack[BatchOptions]
    ) -> KStream[K, Any]: ...
    @overload
    def map_batches(
        self,
        mapper: Callable[[Any], Sequence[VR]],
        *,
        as_: Literal["arrow"],
        schema: object = None,
        **options: Unpack[BatchOptions],
    ) -> KStream[K, VR]: ...
    @overload
    def map_batches(
        self,
        mapper: Callable[[Any], Column],
        *,
        as_: Literal["arrow"],
        schema: Any = None,
        **options: Unpack[BatchOptions],
    ) -> KStream[K, Any]: ...
    def map_batches(
        self,
        mapper: Callable[[Any], object],
        *,
        max_records: int = 512,
        max_wait: Duration = timedelta(milliseconds=20),
        as_: Literal["list", "arrow"] = "list",
        schema: Any = None,
        on_error: Literal["fail", "split"] = "fail",
        name: str | None = None,
    ) -> KStream[K, Any]:
        """Replace values by mapper(values): from a list of up to max_records to as many results in the same order.

        The results are a list, tuple, array or Series, or an Arrow array, RecordBatch or Table with one row for each.
        max_wait: how long the first record waits for others (``timedelta`` or ms). as_="arrow": the mapper takes a
        pyarrow.RecordBatch of the values' fields; a value of None gets no row and stays None. schema: the columns of
        these batches, a pyarrow.Schema; None: the fields that any value of a batch has. on_error: after an
        exception of the mapper, "fail" raises it for each record of the batch; "split" calls the mapper with each half,
        and so on, until only records that fail alone are left. Raises TopologyError for invalid arguments.
        """
        check_function(mapper, f"The function of map_batches() after {self.name}")
        if type(max_records) is not int or max_records < 1:
            raise TopologyError(f"max_records must be 1 or more, got {max_records!r}")
        wait_ms = to_millis(max_wait, "max_wait")
        if wait_ms < 0:
            raise TopologyError(f"max_wait must not be negative, got {max_wait!r}")
        if as_ not in ("list", "arrow"):
            raise TopologyError(f'as_ must be "list" or "arrow", got {as_!r}')
        if on_error not in ("fail", "split"):
            raise TopologyError(f'on_error must be "fail" or "split", got {on_error!r}')
        if as_ == "arrow":
            arrow_columns(schema)  # raises here, not in the stream threads
        elif schema is not None:
            raise TopologyError('schema needs as_="arrow"')
        operator = KStreamMapBatches(mapper, max_records, wait_ms, as_ == "arrow", schema, on_error == "split")
        node = self.attach(name, "KSTREAM-MAPVALUES-", operator, value_changing=True)
        return self.result(node, self.key_serde, None)
