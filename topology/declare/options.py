"""Keyword arguments of joins and of operations that yield a table; documented in KTable and KStream.join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from ..common.durations import Duration
from ..graph.declarations import Partitioner
from ..serdes.serdes import SerdeLike
from ..stores.materialized import Materialized, StoreOption, materialized_option
from ..stores.stores import StoreSupplier


class StreamJoinOptions(TypedDict, total=False):
    """Options of a KStream's joins (Kafka Streams: StreamJoined, Joined)."""

    with_key: bool
    name: str | None
    key_serde: SerdeLike | None
    value_serde: SerdeLike | None
    other_value_serde: SerdeLike | None
    # with a stream
    store: StoreOption
    this_store: StoreSupplier | None
    other_store: StoreSupplier | None
    # with a table
    grace: Duration | None
    # with a global table
    key_selector: Callable[[Any, Any], Any] | None


class TableOptions(TypedDict, total=False):
    """Options of operations that yield a table (Kafka Streams: Named, Materialized)."""

    name: str | None
    store: StoreOption
    key_serde: SerdeLike | None
    value_serde: SerdeLike | None


def table_options(
    name: str | None = None,
    store: StoreOption = None,
    key_serde: SerdeLike | None = None,
    value_serde: SerdeLike | None = None,
) -> tuple[str | None, Materialized | None]:
    """Return the name of the operator and its table's materialization."""
    return name, materialized_option(store, key_serde, value_serde)


class TableJoinOptions(TableOptions, total=False):
    """Options of a KTable's joins (Kafka Streams: TableJoined)."""

    foreign_key: Callable[..., Any] | None
    with_key: bool
    partitioner: Partitioner | None
    other_partitioner: Partitioner | None
