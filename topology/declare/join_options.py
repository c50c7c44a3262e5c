"""The keyword arguments of joins; KStream.join and KTable.join say what they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from ..common.durations import Duration
from ..graph.graph_nodes import Partitioner
from ..serdes.serdes import SerdeLike
from ..stores.materialized import StoreOption
from ..stores.stores import StoreSupplier


class StreamJoinOptions(TypedDict, total=False):
    """Options of KStream.join and its kin (Kafka Streams: StreamJoined, Joined)."""

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


class TableJoinOptions(TypedDict, total=False):
    """Options of KTable.join and its kin (Kafka Streams: Materialized, TableJoined)."""

    name: str | None
    store: StoreOption
    key_serde: SerdeLike | None
    value_serde: SerdeLike | None
    # by foreign key
    foreign_key: Callable[..., Any] | None
    with_key: bool
    partitioner: Partitioner | None
    other_partitioner: Partitioner | None
