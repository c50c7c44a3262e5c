"""Joins of two tables where the left row holds the key of the right row (KIP-213).

The left side sends a subscription, keyed by the foreign key, to the task of the right row. That task stores the
subscription, responds to it, and responds again whenever the right row changes. A response carries the hash of the left
value that subscribed. The left side ignores it if its value has changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from typing_extensions import override

from penstock.kernel.codecs import hash128
from penstock.kernel.foreign_key_nodes import (
    ForeignTableJoin,
    ResponseJoin,
    SubscriptionJoin,
    SubscriptionReceive,
    SubscriptionSend,
)
from penstock.kernel.nodes import Node

from ..common.user_functions import ValueJoiner
from ..config.upgrade_from import has_members_before
from ..errors import StreamsError
from ..records import ValueAndTimestamp
from ..serdes.serdes import Serde, SerdeLike, ToBytes, resolve_serde, serializer_for
from .foreign_key_serdes import (
    CombinedKey,
    CombinedKeySchema,
    Instruction,
    Serialized,
    SubscriptionResponseWrapper,
    SubscriptionWrapper,
)
from .operator import NodeContext, Operator
from .table_rows import row_getter, stored_rows
from .table_store import KTableValueGetterSupplier

_DELETE_ONLY = Instruction.DELETE_KEY_NO_PROPAGATE
_DELETE = Instruction.DELETE_KEY_AND_PROPAGATE
_ALWAYS = Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE
_IF_FOUND = Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE

_CURRENT_VERSION = 1
#: First version that accepts subscriptions with the partition for the response (KIP-775).
_PRIMARY_PARTITION_SINCE = (3, 4)

#: The instructions to send, in order, each with its foreign key.
Plan = Sequence[tuple[Any, Instruction]]


@dataclass(eq=False)
class SubscriptionSendProcessor(Operator):
    """Subscribes left rows under their foreign keys, and cancels their previous subscriptions.

    foreign_key_extractor(value), or (key, value) with with_key; a row for which it returns None joins nothing.
    """

    foreign_key_extractor: Callable[..., object]
    foreign_key_topic: str
    value_hash_topic: str
    foreign_key_serde: SerdeLike | None
    value_serde: SerdeLike | None
    left_join: bool
    with_key: bool = False
    use_versioned_semantics: bool = field(default=False, init=False)

    @override
    def compile(self, node: NodeContext) -> Node:
        return SubscriptionSend(
            node.task,
            node.name,
            node.child,
            self.foreign_key_extractor,
            self.with_key,
            self._key_function(node),
            self._asks,
            self._steps_function(node),
            value_hash_function(node, self.value_serde, self.value_hash_topic),
            _left_serde(node, self.value_serde),
            SubscriptionWrapper,
            node.task.task_id.partition,  # that of each left row, also of one that ends without a record
            self._version(node),
            self.use_versioned_semantics,
            node.dropped,
        )

    @staticmethod
    def _version(node: NodeContext) -> int:
        return 0 if has_members_before(node.task.config, _PRIMARY_PARTITION_SINCE) else _CURRENT_VERSION

    @property
    def _asks(self) -> Instruction:
        """Return the instruction of a subscription to the same foreign key as before.

        A left join always requests a response: each update of a left row has a result, also a deletion.
        """
        return _ALWAYS if self.left_join else _IF_FOUND

    def _key_function(self, node: NodeContext) -> ToBytes:
        """Return a function that maps a foreign key to its bytes."""
        serde = resolve_serde(self.foreign_key_serde, node.task.config, True, f"the foreign key of {node.name}")
        return serializer_for(serde, node.task.internal_topic(self.foreign_key_topic))

    def _steps_function(self, node: NodeContext) -> Callable[[Any, Any, bool], Plan]:
        """Return a function of (old foreign key, new one, whether there is a left row) that returns the messages to
        send.
        """
        dropped, left_join, asks, to_bytes = node.dropped, self.left_join, self._asks, self._key_function(node)

        def steps_for(old_key: object, new_key: object, has_row: bool) -> Plan:
            if not left_join and new_key is None:
                if has_row:
                    dropped("null foreign key")
                return () if old_key is None else ((old_key, _DELETE),)
            if old_key is not None and (new_key is None or to_bytes(old_key) != to_bytes(new_key)):
                # The new key gets a response even if it has no row: only a response deletes the old result.
                return (old_key, _DELETE_ONLY), (new_key, _ALWAYS)
            return ((new_key, asks),)

        return steps_for


def _left_serde(node: NodeContext, serde: SerdeLike | None) -> Serde:
    return resolve_serde(serde, node.task.config, False, f"the left table of {node.name}")


def value_hash_function(node: NodeContext, serde: SerdeLike | None, topic: str) -> Callable[[Any], bytes]:
    """Return a function that maps a left value to the hash of its bytes."""
    to_bytes = serializer_for(_left_serde(node, serde), node.task.internal_topic(topic))

    def hash_of(value: object) -> bytes:
        found: bytes = hash128(to_bytes(value) or b"")
        return found

    return hash_of


class SubscriptionReceiveProcessor(Operator):
    """Stores the subscriptions to rows of the right table, by foreign and primary key."""

    def __init__(self, store_name: str, key_schema: CombinedKeySchema) -> None:
        self.store_name = store_name
        self.key_schema = key_schema

    @override
    def compile(self, node: NodeContext) -> Node:
        return SubscriptionReceive(
            node.task,
            node.name,
            node.child,
            _schema(self.key_schema, node).to_bytes,
            stored_rows(node, self.store_name),
            node.store(self.store_name).put,
            CombinedKey,
            ValueAndTimestamp,
            _refusal("SubscriptionWrapper", node.name),
            node.dropped,
        )


def _refusal(message: str, name: str) -> Callable[[int], NoReturn]:
    def refuse(version: int) -> NoReturn:
        raise StreamsError(f"{name}: {message} is of an incompatible version ({version})")

    return refuse


def _schema(schema: CombinedKeySchema, node: NodeContext) -> CombinedKeySchema:
    """Return the schema with full topic names and with the configured serdes in place of missing ones."""
    config = node.task.config
    return CombinedKeySchema(
        node.task.internal_topic(schema.foreign_key_topic),
        resolve_serde(schema.foreign_key_serde, config, True, f"the foreign key of {node.name}"),
        node.task.internal_topic(schema.primary_key_topic),
        resolve_serde(schema.primary_key_serde, config, True, f"the primary key of {node.name}"),
    )


class SubscriptionJoinProcessor(Operator):
    """Responds to a new subscription with the row of the foreign table."""

    def __init__(self, foreign_value_getter_supplier: KTableValueGetterSupplier) -> None:
        self.foreign_value_getter_supplier = foreign_value_getter_supplier

    @override
    def compile(self, node: NodeContext) -> Node:
        rows = row_getter(self.foreign_value_getter_supplier.compile(node), sent=True)
        serialized = None if rows.bytes_serde is None else Serialized
        return SubscriptionJoin(node.task, node.name, node.child, rows, serialized, SubscriptionResponseWrapper)


class ForeignTableJoinProcessor(Operator):
    """Sends an update of the foreign table to all its subscribers."""

    def __init__(self, store_name: str, key_schema: CombinedKeySchema) -> None:
        self.store_name = store_name
        self.key_schema = key_schema
        #: Skip out-of-order updates of a versioned table (KIP-914).
        self.use_versioned_semantics = False

    @override
    def compile(self, node: NodeContext) -> Node:
        schema = _schema(self.key_schema, node)
        return ForeignTableJoin(
            node.task,
            node.name,
            node.child,
            schema.prefix_bytes,
            node.store(self.store_name).prefix_scan,
            schema.primary_key_serde,
            schema.primary_from_bytes,
            SubscriptionResponseWrapper,
            self.use_versioned_semantics,
            node.dropped,
        )


@dataclass(eq=False)
class ResponseJoinProcessor(Operator):
    """Joins a response with the left row, unless that changed since it subscribed: joiner(left value, right value)."""

    value_getter_supplier: KTableValueGetterSupplier
    value_serde: SerdeLike | None
    value_hash_topic: str
    joiner: ValueJoiner
    left_join: bool

    @override
    def compile(self, node: NodeContext) -> Node:
        getter, serde = self.value_getter_supplier.compile(node), _left_serde(node, self.value_serde)
        rows = row_getter(getter)
        return ResponseJoin(
            node.task,
            node.name,
            node.child,
            self.joiner,
            self.left_join,
            rows,
            rows.bytes_serde is serde,
            value_hash_function(node, self.value_serde, self.value_hash_topic),
            rows.read,
            _refusal("SubscriptionResponseWrapper", node.name),
            node.dropped,
        )
