"""Stateless operators, such as map, filter, branch and peek."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from penstock.kernel import nodes
from penstock.kernel.nodes import Node

from ..common.user_functions import KeyValueMapper, Predicate
from ..errors import StreamsError
from .operator import NodeContext, Operator


class PassThrough(Operator):
    """Forwards records unchanged: merge, branches, the end of a stream-stream join (Kafka Streams: PassThrough)."""

    stateless = True

    @override
    def compile(self, node: NodeContext) -> Node:
        return node.child


class KStreamFilter(Operator):
    """Forwards records for which predicate(key, value) is true; with filter_not, those for which it is false."""

    stateless = True

    def __init__(self, predicate: Predicate, filter_not: bool = False) -> None:
        self.predicate = predicate
        self.filter_not = filter_not

    @override
    def compile(self, node: NodeContext) -> Node:
        return nodes.Filter(node.task, node.name, node.child, self.predicate, self.filter_not)


class KStreamMap(Operator):
    """Replaces key and value: mapper(key, value) -> (key, value). Raises StreamsError for anything but a pair."""

    stateless = True

    def __init__(self, mapper: KeyValueMapper[tuple[object, object]]) -> None:
        self.mapper = mapper

    @override
    def compile(self, node: NodeContext) -> Node:
        return nodes.Map(node.task, node.name, node.child, self.mapper, check_pair)


class KStreamSelectKey(Operator):
    """Replaces the key: mapper(key, value) -> key (Kafka Streams: KStreamMap)."""

    stateless = True

    def __init__(self, mapper: KeyValueMapper[object]) -> None:
        self.mapper = mapper

    @override
    def compile(self, node: NodeContext) -> Node:
        return nodes.SelectKey(node.task, node.name, node.child, self.mapper)


class KStreamMapValues(Operator):
    """Replaces the value: mapper(value), or mapper(key, value) with with_key."""

    stateless = True

    def __init__(self, mapper: Callable[..., object], with_key: bool = False) -> None:
        self.mapper = mapper
        self.with_key = with_key

    @override
    def compile(self, node: NodeContext) -> Node:
        return nodes.MapValues(node.task, node.name, node.child, self.mapper, self.with_key)


class KStreamFlatMap(Operator):
    """Replaces a record by any number of records: mapper(key, value) -> iterable of (key, value).

    Raises StreamsError if the mapper returns anything else.
    """

    stateless = True

    def __init__(self, mapper: KeyValueMapper[Iterable[tuple[object, object]]]) -> None:
        self.mapper = mapper

    @override
    def compile(self, node: NodeContext) -> Node:
        return nodes.FlatMap(node.task, node.name, node.child, self.mapper, iterate, check_pair)


class KStreamFlatMapValues(Operator):
    """Replaces a value by any number of values: mapper(value), or mapper(key, value) with with_key, -> iterable.

    Raises StreamsError if the mapper returns anything else.
    """

    stateless = True

    def __init__(self, mapper: Callable[..., Iterable[object]], with_key: bool = False) -> None:
        self.mapper = mapper
        self.with_key = with_key

    @override
    def compile(self, node: NodeContext) -> Node:
        return nodes.FlatMapValues(node.task, node.name, node.child, self.mapper, self.with_key, iterate)


class KStreamPeek(Operator):
    """Calls action(key, value) and forwards the record (peek), or ends the stream if forward is False (foreach)."""

    def __init__(self, action: KeyValueMapper[object], forward: bool = True) -> None:
        self.action = action
        self.forward = forward

    @override
    def compile(self, node: NodeContext) -> Node:
        return nodes.Peek(node.task, node.name, node.child if self.forward else None, self.action)


class KStreamPrint(Operator):
    """Calls action(key, value), which prints a line. close(), if given, is called when the task closes."""

    def __init__(self, action: KeyValueMapper[object], close: Callable[[], None] | None = None) -> None:
        self.action = action
        self.close = close

    @override
    def compile(self, node: NodeContext) -> Node:
        if self.close is not None:
            node.on_close(self.close)
        return nodes.Peek(node.task, node.name, None, self.action)


class KStreamBranch(Operator):
    """Forwards a record to the child of the first predicate that is true. An extra child is the default branch."""

    def __init__(self, predicates: Sequence[Predicate], child_nodes: Sequence[str]) -> None:
        self.predicates = tuple(predicates)
        self.child_nodes = tuple(child_nodes)

    @override
    def compile(self, node: NodeContext) -> Node:
        return nodes.Branch(node.task, node.name, self.predicates, [node.nodes[name] for name in self.child_nodes])


class KTableToStream(Operator):
    """Forwards the new values of a table as a stream (Kafka Streams: a KStreamMapValues over the Change)."""

    @override
    def compile(self, node: NodeContext) -> Node:
        return nodes.ToStream(node.task, node.name, node.child)


#: Operators whose output depends on the record alone and appears at once, in the order of the records.
REPEATABLE = (
    PassThrough,
    KStreamFilter,
    KStreamMap,
    KStreamSelectKey,
    KStreamMapValues,
    KStreamFlatMap,
    KStreamFlatMapValues,
)


def check_pair(name: str, found: object) -> None:
    """Raise StreamsError unless a mapper returned a pair (key, value): a tuple or list of length 2."""
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise StreamsError(f"The function of operator {name} must return a pair (key, value), not {describe(found)}")


def iterate(name: str, found: Any) -> Iterable[Any]:
    """Return what iterates over a flat mapper's results.

    Raises StreamsError for anything not iterable, and for what would yield its letters, bytes, keys or column names:
    a str, bytes, a mapping or a table (DataFrame, RecordBatch).
    """
    if type(found) is list or type(found) is tuple:
        return found
    if isinstance(found, str | bytes | bytearray | memoryview | Mapping) or hasattr(found, "columns"):
        raise StreamsError(
            f"The function of operator {name} must return an iterable of results, not {describe(found)}: "
            "put a single result into a list"
        )
    try:
        results: Iterable[object] = iter(found)
    except TypeError:
        raise StreamsError(
            f"The function of operator {name} must return an iterable, not {describe(found)}; for no result return ()"
        ) from None
    return results


def describe(value: object) -> str:
    """Return a value's type for an error message, and its length if it is a tuple, list, str or bytes."""
    kind = type(value).__name__
    return f"a {kind} of length {len(value)}" if isinstance(value, tuple | list | str | bytes) else f"a {kind}"
