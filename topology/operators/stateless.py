"""Stateless operators, such as map, filter, branch and peek."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ..context.task_context import Process
from ..errors import StreamsError
from ..records import Change, Headers
from .operator import NodeContext, Operator

if TYPE_CHECKING:
    from ..run.fusion import LoopCode, Names

Predicate = Callable[[Any, Any], Any]


class PassThrough(Operator):
    """Forwards records unchanged: merge, branches, the end of a stream-stream join (Kafka Streams: PassThrough)."""

    stateless = True

    @override
    def compile(self, node: NodeContext) -> Process:
        return node.forward

    @override
    def fuse(self, code: LoopCode, names: Names) -> bool:
        code.forward(names, unseen=True)
        return True


class KStreamFilter(Operator):
    """Forwards records for which predicate(key, value) is true; with filter_not, those for which it is false."""

    stateless = True

    def __init__(self, predicate: Predicate, filter_not: bool = False) -> None:
        self.predicate = predicate
        self.filter_not = filter_not

    @override
    def compile(self, node: NodeContext) -> Process:
        forward, predicate = node.forward, self.predicate

        def filter_(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if predicate(key, value):
                forward(key, value, timestamp, headers)

        def filter_not(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if not predicate(key, value):
                forward(key, value, timestamp, headers)

        return filter_not if self.filter_not else filter_

    @override
    def fuse(self, code: LoopCode, names: Names) -> bool:
        holds = f"{code.bind(self.predicate, 'predicate')}({names.key}, {names.value})"
        with code.block(f"if {'not ' if self.filter_not else ''}{holds}:"):
            code.forward(names)
        return True


class KStreamMap(Operator):
    """Replaces key and value: mapper(key, value) -> (key, value). Raises StreamsError for anything but a pair."""

    stateless = True

    def __init__(self, mapper: Callable[[Any, Any], tuple[Any, Any]]) -> None:
        self.mapper = mapper

    @override
    def compile(self, node: NodeContext) -> Process:
        forward, mapper, name = node.forward, self.mapper, node.name

        def map_(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            pair = mapper(key, value)
            if type(pair) is not tuple or len(pair) != 2:
                check_pair(name, pair)
            key, value = pair
            forward(key, value, timestamp, headers)

        return map_

    @override
    def fuse(self, code: LoopCode, names: Names) -> bool:
        pair, key, value = code.fresh("pair"), code.fresh("key"), code.fresh("value")
        code.emit(f"{pair} = {code.bind(self.mapper, 'mapper')}({names.key}, {names.value})")
        with code.block(f"if type({pair}) is not tuple or len({pair}) != 2:"):
            code.emit(f"{code.bind(check_pair, 'check_pair')}({code.context.name!r}, {pair})")
        code.emit(f"{key}, {value} = {pair}")
        code.forward(names.with_key(key)._replace(value=value))
        return True


class KStreamSelectKey(Operator):
    """Replaces the key: mapper(key, value) -> key (Kafka Streams: KStreamMap)."""

    stateless = True

    def __init__(self, mapper: Callable[[Any, Any], Any]) -> None:
        self.mapper = mapper

    @override
    def compile(self, node: NodeContext) -> Process:
        forward, mapper = node.forward, self.mapper

        def select_key(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            forward(mapper(key, value), value, timestamp, headers)

        return select_key

    @override
    def fuse(self, code: LoopCode, names: Names) -> bool:
        key = code.fresh("key")
        code.emit(f"{key} = {code.bind(self.mapper, 'mapper')}({names.key}, {names.value})")
        code.forward(names.with_key(key))
        return True


class KStreamMapValues(Operator):
    """Replaces the value: mapper(value), or mapper(key, value) with with_key."""

    stateless = True

    def __init__(self, mapper: Callable[..., Any], with_key: bool = False) -> None:
        self.mapper = mapper
        self.with_key = with_key

    @override
    def compile(self, node: NodeContext) -> Process:
        forward, mapper = node.forward, self.mapper

        def map_values(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            forward(key, mapper(value), timestamp, headers)

        def map_values_with_key(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            forward(key, mapper(key, value), timestamp, headers)

        return map_values_with_key if self.with_key else map_values

    @override
    def fuse(self, code: LoopCode, names: Names) -> bool:
        value = code.fresh("value")
        arguments = f"{names.key}, {names.value}" if self.with_key else names.value
        code.emit(f"{value} = {code.bind(self.mapper, 'mapper')}({arguments})")
        code.forward(names._replace(value=value))
        return True


class KStreamFlatMap(Operator):
    """Replaces a record by any number of records: mapper(key, value) -> iterable of (key, value).

    Raises StreamsError if the mapper returns anything else.
    """

    stateless = True

    def __init__(self, mapper: Callable[[Any, Any], Iterable[tuple[Any, Any]]]) -> None:
        self.mapper = mapper

    @override
    def compile(self, node: NodeContext) -> Process:
        forward, mapper, name = node.forward, self.mapper, node.name

        def flat_map(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            for pair in iterate(name, mapper(key, value)):
                if type(pair) is not tuple or len(pair) != 2:
                    check_pair(name, pair)
                new_key, new_value = pair
                forward(new_key, new_value, timestamp, headers)

        return flat_map


class KStreamFlatMapValues(Operator):
    """Replaces a value by any number of values: mapper(value), or mapper(key, value) with with_key, -> iterable.

    Raises StreamsError if the mapper returns anything else.
    """

    stateless = True

    def __init__(self, mapper: Callable[..., Iterable[Any]], with_key: bool = False) -> None:
        self.mapper = mapper
        self.with_key = with_key

    @override
    def compile(self, node: NodeContext) -> Process:
        forward, mapper, name = node.forward, self.mapper, node.name

        def flat_map_values(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            for new_value in iterate(name, mapper(value)):
                forward(key, new_value, timestamp, headers)

        def flat_map_values_with_key(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            for new_value in iterate(name, mapper(key, value)):
                forward(key, new_value, timestamp, headers)

        return flat_map_values_with_key if self.with_key else flat_map_values


class KStreamPeek(Operator):
    """Calls action(key, value) and forwards the record (peek), or ends the stream if forward is False (foreach)."""

    def __init__(self, action: Callable[[Any, Any], Any], forward: bool = True) -> None:
        self.action = action
        self.forward = forward

    @override
    def compile(self, node: NodeContext) -> Process:
        forward, action = node.forward, self.action

        def peek(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            action(key, value)
            forward(key, value, timestamp, headers)

        def foreach(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            action(key, value)

        return peek if self.forward else foreach

    @override
    def fuse(self, code: LoopCode, names: Names) -> bool:
        code.emit(f"{code.bind(self.action, 'action')}({names.key}, {names.value})")
        if self.forward:
            code.forward(names)
        return True


class KStreamPrint(Operator):
    """Calls action(key, value), which prints a line. close(), if given, is called when the task closes."""

    def __init__(self, action: Callable[[Any, Any], Any], close: Callable[[], None] | None = None) -> None:
        self.action = action
        self.close = close

    @override
    def compile(self, node: NodeContext) -> Process:
        action = self.action
        if self.close is not None:
            node.on_close(self.close)

        def print_(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            action(key, value)

        return print_


class KStreamBranch(Operator):
    """Forwards a record to the child of the first predicate that is true. An extra child is the default branch."""

    def __init__(self, predicates: Sequence[Predicate], child_nodes: Sequence[str]) -> None:
        self.predicates = tuple(predicates)
        self.child_nodes = tuple(child_nodes)

    @override
    def compile(self, node: NodeContext) -> Process:
        branches = [(p, node.children[name]) for p, name in zip(self.predicates, self.child_nodes, strict=False)]
        default = node.children[self.child_nodes[-1]] if len(self.child_nodes) > len(self.predicates) else None

        def branch(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            for predicate, child in branches:
                if predicate(key, value):
                    child(key, value, timestamp, headers)
                    return
            if default is not None:
                default(key, value, timestamp, headers)

        return branch


class KTableToStream(Operator):
    """Forwards the new values of a table as a stream (Kafka Streams: a KStreamMapValues over the Change)."""

    @override
    def compile(self, node: NodeContext) -> Process:
        forward = node.forward

        def to_stream(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
            forward(key, change[0], timestamp, headers)

        return to_stream

    @override
    def fuse_change(self, code: LoopCode, names: Names, old: str) -> bool:
        code.forward(names, unseen=True)
        return True


def check_pair(name: str, found: Any) -> None:
    """Raise StreamsError unless a mapper returned a pair (key, value): a tuple or list of length 2."""
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise StreamsError(f"The function of operator {name} must return a pair (key, value), not {describe(found)}")


def iterate(name: str, found: Any) -> Iterable[Any]:
    """Return an iterator over a flat mapper's result. Raises StreamsError for a str, bytes or anything not iterable."""
    if isinstance(found, str | bytes):
        raise StreamsError(
            f"The function of operator {name} must return an iterable of results, not {describe(found)}: "
            "put a single result into a list"
        )
    try:
        results: Iterable[Any] = iter(found)
    except TypeError:
        raise StreamsError(
            f"The function of operator {name} must return an iterable, not {describe(found)}; for no result return ()"
        ) from None
    return results


def describe(value: Any) -> str:
    """Return a value's type for an error message, and its length if it is a tuple, list, str or bytes."""
    kind = type(value).__name__
    return f"a {kind} of length {len(value)}" if isinstance(value, tuple | list | str | bytes) else f"a {kind}"
