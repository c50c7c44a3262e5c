"""The functions of an aggregation: the user's own, or those of the aggregates of ``penstock.agg``.

The store of aggregates keeps their states. The table after it has the results, by a KTableMapValues, and readers of the
store get them by Serde.results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from penstock.kernel.aggregates import Aggregation

from ..common.naming import Named
from ..errors import TopologyError
from ..operators.table import KTableMapValues
from ..serdes.aggregates_serde import AggregatesSerde
from ..serdes.serdes import Serde
from ..stores.materialized import MaterializedInternal
from .agg import Aggregate

if TYPE_CHECKING:
    from .ktable import KTable

#: Aggregates by the names of their results, or a single one.
Aggregates = Aggregate[Any] | Mapping[str, Aggregate[Any]]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Functions:
    """The functions of an aggregation; subtractor and merger are for grouped tables and for sessions.

    results: of aggregates' states; None for the user's functions. value_serde: of the results.
    """

    initializer: Function
    aggregator: Function
    subtractor: Function
    merger: Function
    results: Function | None = None
    value_serde: Serde[Any] | None = None

    def table(self, states: KTable[Any, Any], name: str | None) -> KTable[Any, Any]:
        """Return the table that the user gets, from the table of the aggregation. name: the user's, of the operator."""
        from .ktable import KTable

        if self.results is None:
            return states
        node_name = Named(name).suffix_or_generate("-results", states.builder, "KTABLE-MAPVALUES-")
        operator = KTableMapValues(states, self.results, None)
        node = states.attach_named(node_name, operator)
        return KTable(
            states.builder,
            node,
            states.key_serde,
            self.value_serde,
            states.source_nodes,
            operator=operator,
            queryable_store_name=states.queryable_store_name,
        )


def functions_of(kept: MaterializedInternal, initial: object, retracts: bool = False, **others: Any) -> Functions:
    """Return the functions of aggregate(initial, **others).

    initial: the initializer, followed by the other functions, or aggregates alone. These set the serde of the kept
    table's store. retracts: for a grouped table. Raises TopologyError for other arguments.
    """
    has_functions = any(function is not None for function in others.values())
    if has_functions and _has_aggregates(initial):
        raise TopologyError("aggregate() with aggregates of penstock.agg takes no functions")
    if has_functions or not isinstance(initial, Aggregate | Mapping):
        functions: dict[str, Any] = {"aggregator": _unused, "subtractor": _unused, "merger": _unused, **others}
        return Functions(cast("Function", initial), **functions)  # checked with the operator
    serde = _serde_of(initial, retracts)
    value_serde, kept.value_serde = kept.value_serde, serde
    states = serde.aggregation
    return Functions(
        states.initializer, states.aggregator, states.subtractor, states.merger, states.result, value_serde
    )


def _has_aggregates(initial: object) -> bool:
    given = initial.values() if isinstance(initial, Mapping) else (initial,)
    return any(isinstance(each, Aggregate) for each in given)


def _unused(*_: object) -> None:
    """Stand for a function that the kind of aggregation does not need."""


def _serde_of(aggregates: Aggregates, retracts: bool) -> AggregatesSerde:
    if isinstance(aggregates, Aggregate):
        return AggregatesSerde(Aggregation(None, (aggregates.column("", retracts),)), repr(aggregates))
    for name, aggregate in aggregates.items():
        if not isinstance(name, str) or not isinstance(aggregate, Aggregate):
            raise TopologyError(
                f"aggregate() takes aggregates of penstock.agg by name, such as {{'n': agg.count()}}, not "
                f"{name!r}: {aggregate!r}"
            )
    if not aggregates:
        raise TopologyError("aggregate() needs at least one aggregate")
    columns = tuple(aggregate.column(name, retracts) for name, aggregate in aggregates.items())
    declared = {name: repr(aggregate) for name, aggregate in aggregates.items()}
    return AggregatesSerde(Aggregation(tuple(aggregates), columns), declared)
