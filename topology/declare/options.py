"""Keyword arguments of joins and of operations that yield a table; documented in KTable and KStream.join."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

from ..common.durations import Duration
from ..common.user_functions import KeyValueMapper
from ..context.partitioners import Partitioner
from ..serdes.serdes import SerdeLike
from ..stores.dsl_store_suppliers import DslStore
from ..stores.materialized import Materialized, StoreOption, materialized_option

F = TypeVar("F", bound=Callable[..., Any])


def shows_options(options: object, **defaults: object) -> Callable[[F], F]:
    """Show the keys of a TypedDict in the signature of a method that takes it as its last parameter, ``**options``.

    Type checkers do this themselves, but help() and notebooks do not. defaults: those that are not None.
    """

    def show(method: F) -> F:
        signature = inspect.signature(method)
        parameters = list(signature.parameters.values())[:-1]
        for name, kind in options.__annotations__.items():
            option = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name))
            parameters.append(option.replace(annotation=kind.__forward_arg__))
        vars(method)["__signature__"] = signature.replace(parameters=parameters)
        return method

    return show


class JoinedOptions(TypedDict, total=False):
    """Options of a KStream's joins with a stream or a table."""

    name: str | None
    key_serde: SerdeLike | None
    value_serde: SerdeLike | None
    other_value_serde: SerdeLike | None


class StreamJoinedOptions(JoinedOptions, total=False):
    """Options of its joins with a stream (Kafka Streams: StreamJoined)."""

    store: StoreOption
    this_store: DslStore | None
    other_store: DslStore | None


class TableJoinedOptions(JoinedOptions, total=False):
    """Options of its joins with a table (Kafka Streams: Joined)."""

    grace: Duration | None


class StreamJoinOptions(StreamJoinedOptions, TableJoinedOptions, total=False):
    """The options of all joins of a stream; key_selector and with_mapped_key are for a global table."""

    with_key: bool
    with_mapped_key: bool
    key_selector: KeyValueMapper[object] | None


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


class ForeignKeyOptions(TableOptions, total=False):
    """Options of a KTable's joins by foreign key (Kafka Streams: TableJoined)."""

    partitioner: Partitioner | None
    other_partitioner: Partitioner | None


class TableJoinOptions(ForeignKeyOptions, total=False):
    """The options of all its joins."""

    foreign_key: Callable[..., Any] | None
    with_key: bool
