"""Adds deduplications of a stream to the graph (KIP-655)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.arguments import check_function
from ..common.durations import Duration, non_negative_millis
from ..common.naming import Named, validate_name
from ..common.user_functions import KeyValueMapper
from ..context.store_interfaces import StoreBuilder, StoreKind
from ..errors import TopologyError
from ..graph.graph_nodes import OptimizableRepartitionNode
from ..graph.repartition import repartition_node
from ..operators.deduplicate import TIME_INDEX_SUFFIX, KStreamDeduplicate, TimestampAndOffsetSerde
from ..serdes.serdes import SerdeLike, Serdes, as_serde
from ..stores.materialized import StoreFactory
from .abstract_stream import AbstractStream

if TYPE_CHECKING:
    from .kstream import KStream

_PREFIX = "KSTREAM-DEDUPLICATE-"


def deduplicate(
    stream: KStream,
    interval: Duration,
    name: str | None,
    store: str | None,
    key_serde: SerdeLike | None,
    value_serde: SerdeLike | None,
    by_id: tuple[KeyValueMapper[object], SerdeLike] | None = None,
) -> KStream:
    """Return a stream without duplicates; options: see KStream.deduplicate_by_key. by_id: selector and serde of ids."""
    builder = stream.builder
    node_name = Named(name).or_generate(builder, _PREFIX)
    interval_ms = non_negative_millis(interval, f"The interval of {node_name}")
    keys, values = as_serde(key_serde) or stream.key_serde, as_serde(value_serde) or stream.value_serde
    operator = KStreamDeduplicate(_store_name(stream, name, store), interval_ms, keys)
    if by_id is not None:
        check_function(by_id[0], f"{node_name}: id_selector")
        operator.id_selector, operator.id_serde = by_id[0], as_serde(by_id[1])
        if operator.id_serde is None:
            raise TopologyError(
                f"{node_name}: deduplicate_by_key_value() needs the id_serde of what id_selector returns"
            )
    parent: AbstractStream = stream
    if stream.repartition_required:
        repartition = repartition_node(
            OptimizableRepartitionNode, builder, node_name, keys, values, named=name is not None
        )
        builder.add_graph_node(stream.graph_node, repartition)
        parent = AbstractStream(builder, repartition, keys, values, frozenset([repartition.node_name]))
    serde = TimestampAndOffsetSerde(keys, operator.id_serde)
    rows = StoreBuilder(operator.store_name, StoreKind.KEY_VALUE, Serdes.bytes(), serde)
    # A record that is older by the interval still has duplicates: it expires a millisecond later.
    index = StoreBuilder(
        operator.store_name + TIME_INDEX_SUFFIX, StoreKind.JOIN_BUFFER, Serdes.bytes(), values, grace_ms=interval_ms + 1
    )
    named = store is not None or name is not None
    node = parent.attach_named(
        node_name, operator, stores=[StoreFactory(rows, named), StoreFactory(index, named)], accepts_null_keys=True
    )
    return stream.result(node, keys, values, repartition_required=False, source_nodes=parent.source_nodes)


def _store_name(stream: KStream, name: str | None, store: str | None) -> str:
    given = store if store is not None else name
    return stream.builder.new_store_name(_PREFIX) if given is None else validate_name(given)
