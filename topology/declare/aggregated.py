"""The functions of an aggregation: the user's own, or those of the aggregates of ``penstock.agg``.

The store of aggregates keeps their states. The table after it has the results, by a KTableMapValues, and readers of the
store get them by Serde.results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar, cast

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
Aggregates = Aggregate | Mapping[str, Aggregate]
Function = Callable[..., Any]
Stream = TypeVar("Stream")
#: What a cogroup does with the records of one stream.
Input = Function | Mapping[str, Aggregate]


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
    value_serde: Serde | None = None

    def table(self, states: KTable, name: str | None) -> KTable:
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
        return _own_functions(initial, **others)
    return _functions_of_states(kept, _serde_of(initial, retracts))


def cogrouped_functions(
    kept: MaterializedInternal, inputs: Sequence[Input], initializer: object, **others: Any
) -> tuple[Functions, list[Function]]:
    """Return the functions of aggregate(initializer, **others) of a cogroup, and the aggregator of each input.

    inputs: aggregators, or aggregates, which share the rows and set the serde of the kept table's store. Raises
    TopologyError for arguments that do not fit them.
    """
    by_name = {name: aggregate for given in inputs if isinstance(given, Mapping) for name, aggregate in given.items()}
    if not by_name:
        if _has_aggregates(initializer):
            raise TopologyError("aggregate() of a cogroup takes no aggregates of penstock.agg: give them to cogroup()")
        return _own_functions(initializer, **others), [cast("Function", given) for given in inputs]
    if initializer is not None or any(function is not None for function in others.values()):
        raise TopologyError("aggregate() of a cogroup with aggregates of penstock.agg takes no functions")
    serde = _serde_of(by_name, retracts=False)
    sizes = [len(cast("Mapping[str, object]", given)) for given in inputs]
    parts = zip(accumulate(sizes, initial=0), accumulate(sizes), strict=False)
    return _functions_of_states(kept, serde), [serde.aggregation.aggregator_of(*part) for part in parts]


def joined_inputs(inputs: Mapping[Stream, Input], stream: Stream, given: Any) -> Input:
    """Return the input of a cogroup for a stream that is added to inputs.

    A function replaces an earlier one of the stream, as in Kafka Streams; aggregates are added to its earlier ones.
    Raises TopologyError for aggregates beside functions, without a name, or with the name of another one.
    """
    if isinstance(given, Aggregate):
        raise TopologyError(f"cogroup() needs a name for each aggregate, such as {{'n': {given!r}}}")
    if any(isinstance(other, Mapping) != isinstance(given, Mapping) for other in inputs.values()):
        raise TopologyError("cogroup() takes functions for all streams or aggregates of penstock.agg for all, not both")
    if not isinstance(given, Mapping):
        return cast("Function", given)
    check_named(given, "cogroup()")
    names = {name for other in inputs.values() if isinstance(other, Mapping) for name in other}
    if twice := [name for name in given if name in names]:
        raise TopologyError(f"cogroup(): there is already an aggregate named {twice[0]!r}; give it another name")
    earlier = inputs.get(stream, {})
    return {**(earlier if isinstance(earlier, Mapping) else {}), **given}


def _own_functions(initializer: object, **others: Any) -> Functions:
    functions: dict[str, Any] = {"aggregator": _unused, "subtractor": _unused, "merger": _unused, **others}
    return Functions(cast("Function", initializer), **functions)  # checked with the operator


def _functions_of_states(kept: MaterializedInternal, serde: AggregatesSerde) -> Functions:
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
    check_named(aggregates, "aggregate()")
    columns = tuple(aggregate.column(name, retracts) for name, aggregate in aggregates.items())
    declared = {name: repr(aggregate) for name, aggregate in aggregates.items()}
    return AggregatesSerde(Aggregation(tuple(aggregates), columns), declared)


def check_named(aggregates: Mapping[Any, object], what: str) -> None:
    """Raise TopologyError unless these are aggregates by name. what: the method that gets them, for the message."""
    for name, aggregate in aggregates.items():
        if not isinstance(name, str) or not isinstance(aggregate, Aggregate):
            raise TopologyError(
                f"{what} takes aggregates of penstock.agg by name, such as {{'n': agg.count()}}, not "
                f"{name!r}: {aggregate!r}"
            )
    if not aggregates:
        raise TopologyError(f"{what} needs at least one aggregate")
