"""Joins of two tables where the left row holds the key of the right row (KIP-213).

The left side sends a subscription, keyed by the foreign key, to the task of the right row. That task stores the
subscription, responds to it, and responds again whenever the right row changes. A response carries the hash of the left
value that subscribed. The left side ignores it if its value has changed since.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from ..common.murmur3 import hash128
from ..config.upgrade_from import has_members_before
from ..context.task_context import Process
from ..errors import StreamsError
from ..records import Change, Headers, ValueAndTimestamp
from ..serdes.serdes import SerdeLike, resolve_serde, serializer_for
from .foreign_key_serdes import (
    CombinedKey,
    CombinedKeySchema,
    Instruction,
    SubscriptionResponseWrapper,
    SubscriptionWrapper,
)
from .operator import NodeContext, Operator
from .table_store import KTableValueGetterSupplier

_new = tuple.__new__  # creates a named tuple in half the time of calling its class
_DELETE_ONLY = Instruction.DELETE_KEY_NO_PROPAGATE
_DELETE = Instruction.DELETE_KEY_AND_PROPAGATE
_ALWAYS = Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE
_IF_FOUND = Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE

_CURRENT_VERSION = 1
_RESPONSE_VERSION = 0
#: First version that accepts subscriptions with the partition for the response (KIP-775).
_PRIMARY_PARTITION_SINCE = (3, 4)

#: The instructions to send, in order, each with its foreign key.
Plan = list[tuple[Any, Instruction]]


@dataclass(eq=False)
class SubscriptionSendProcessor(Operator):
    """Subscribes left rows under their foreign keys, and cancels their previous subscriptions.

    foreign_key_extractor(value), or (key, value) with with_key; a row for which it returns None joins nothing.
    """

    reads_record_metadata = True

    foreign_key_extractor: Callable[..., Any]
    foreign_key_topic: str
    value_hash_topic: str
    foreign_key_serde: SerdeLike | None
    value_serde: SerdeLike | None
    left_join: bool
    with_key: bool = False
    use_versioned_semantics: bool = field(default=False, init=False)

    @override
    def compile(self, node: NodeContext) -> Process:
        task, forward, dropped, name = node.task, node.forward, node.dropped, node.name
        use_versioned_semantics = self.use_versioned_semantics
        foreign_key_of = self._foreign_key_function()
        changed = self._changed_function(node)
        hash_of = value_hash_function(node, self.value_serde, self.value_hash_topic)
        plan = _left_plan if self.left_join else _inner_plan
        version = 0 if has_members_before(task.config, _PRIMARY_PARTITION_SINCE) else _CURRENT_VERSION

        def send(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
            new, old, is_latest = change
            if use_versioned_semantics and not is_latest:
                dropped("out-of-order record of a versioned table")
                return
            if new is None and old is None:
                return
            old_key, new_key = foreign_key_of(key, old), foreign_key_of(key, new)
            if new_key is None and new is not None and plan is _inner_plan:
                dropped("null foreign key")
            steps = plan(old_key, new_key, new is not None, changed(old_key, new_key))
            if not steps:
                return
            message = task.message
            if message is None:
                raise StreamsError(f"{name}: a foreign-key join needs records from a topic, not from a punctuation")
            partition = message.partition()
            value_hash = None if new is None else hash_of(new)
            for foreign_key, instruction in steps:
                subscription = value_hash, instruction, key, partition, version
                forward(foreign_key, _new(SubscriptionWrapper, subscription), timestamp, headers)

        return send

    def _foreign_key_function(self) -> Callable[[Any, Any], Any]:
        extract, with_key = self.foreign_key_extractor, self.with_key

        def foreign_key_of(key: Any, value: Any) -> Any:
            if value is None:
                return None
            return extract(key, value) if with_key else extract(value)

        return foreign_key_of

    def _changed_function(self, node: NodeContext) -> Callable[[Any, Any], bool]:
        """Return a predicate: there was an old foreign key, and the new one is missing or has different bytes."""
        serde = resolve_serde(self.foreign_key_serde, node.task.config, True, f"the foreign key of {node.name}")
        to_bytes = serializer_for(serde, node.task.internal_topic(self.foreign_key_topic))

        def changed(old_key: Any, new_key: Any) -> bool:
            return old_key is not None and (new_key is None or to_bytes(old_key) != to_bytes(new_key))

        return changed


def _left_plan(old_key: Any, new_key: Any, has_row: bool, changed: bool) -> Plan:
    """Cancel the previous subscription and always request a response: each update, even a deletion, has a result."""
    plan: Plan = [(old_key, _DELETE_ONLY)] if changed else []
    return [*plan, (new_key, _ALWAYS)]


def _inner_plan(old_key: Any, new_key: Any, has_row: bool, changed: bool) -> Plan:
    """Request a response without a right row only if the foreign key changed: it deletes the previous result."""
    if not has_row or new_key is None:
        return [] if old_key is None else [(old_key, _DELETE)]
    if not changed:
        return [(new_key, _IF_FOUND)]
    return [(old_key, _DELETE_ONLY), (new_key, _ALWAYS)]


def value_hash_function(node: NodeContext, serde: SerdeLike | None, topic: str) -> Callable[[Any], bytes]:
    """Return a function that maps a left value to the hash of its bytes."""
    resolved = resolve_serde(serde, node.task.config, False, f"the left table of {node.name}")
    to_bytes = serializer_for(resolved, node.task.internal_topic(topic))

    def hash_of(value: Any) -> bytes:
        return hash128(to_bytes(value) or b"")

    return hash_of


class SubscriptionReceiveProcessor(Operator):
    """Stores the subscriptions to rows of the right table, by foreign and primary key."""

    def __init__(self, store_name: str, key_schema: CombinedKeySchema) -> None:
        self.store_name = store_name
        self.key_schema = key_schema

    @override
    def compile(self, node: NodeContext) -> Process:
        task, forward, dropped, name = node.task, node.forward, node.dropped, node.name
        to_bytes = _schema(self.key_schema, node).to_bytes
        put = node.store(self.store_name).put

        def receive(foreign_key: Any, subscription: Any, timestamp: int, headers: Headers) -> None:
            _, instruction, primary_key, _, version = subscription
            if foreign_key is None and instruction != _ALWAYS:
                dropped("null foreign key")
                return
            if version > _CURRENT_VERSION:
                raise StreamsError(f"{name}: SubscriptionWrapper is of an incompatible version ({version})")
            row = _new(ValueAndTimestamp, (subscription, timestamp))
            if foreign_key is not None:
                deletes = instruction in (_DELETE, _DELETE_ONLY)
                task.timestamp = timestamp
                task.headers = headers
                put(to_bytes(foreign_key, primary_key), None if deletes else row)
            combined = _new(CombinedKey, (foreign_key, primary_key))
            forward(combined, _new(Change, (row, None, True)), timestamp, headers)

        return receive


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
    def compile(self, node: NodeContext) -> Process:
        forward = node.forward
        get = self.foreign_value_getter_supplier.compile(node).get_forwarded

        def subscription_join(combined_key: Any, change: Change, timestamp: int, headers: Headers) -> None:
            foreign_key, primary_key = combined_key
            (value_hash, instruction, _, partition, _), newest = change[0]
            row = None if foreign_key is None else get(foreign_key)
            foreign_value = None
            if row is not None:
                foreign_value = row[0]
                newest = max(newest, row[1])
            if instruction == _DELETE_ONLY or (instruction == _IF_FOUND and row is None):
                return
            if instruction == _DELETE:
                foreign_value = None
            response = value_hash, foreign_value, partition, _RESPONSE_VERSION
            forward(primary_key, _new(SubscriptionResponseWrapper, response), newest, headers)

        return subscription_join


class ForeignTableJoinProcessor(Operator):
    """Sends an update of the foreign table to all its subscribers."""

    def __init__(self, store_name: str, key_schema: CombinedKeySchema) -> None:
        self.store_name = store_name
        self.key_schema = key_schema
        #: Skip out-of-order updates of a versioned table (KIP-914).
        self.use_versioned_semantics = False

    @override
    def compile(self, node: NodeContext) -> Process:
        forward, dropped, use_versioned_semantics = node.forward, node.dropped, self.use_versioned_semantics
        schema = _schema(self.key_schema, node)
        prefix_bytes, from_bytes = schema.prefix_bytes, schema.from_bytes
        prefix_scan = node.store(self.store_name).prefix_scan

        def foreign_table_join(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
            if key is None:
                dropped("null key")
                return
            if use_versioned_semantics and not change[2]:
                dropped("out-of-order record of a versioned table")
                return
            for combined_key, (subscription, _) in prefix_scan(prefix_bytes(key)):
                value_hash, _, _, partition, _ = subscription
                response = value_hash, change[0], partition, _RESPONSE_VERSION
                answer = _new(SubscriptionResponseWrapper, response)
                forward(from_bytes(combined_key).primary_key, answer, timestamp, headers)

        return foreign_table_join


@dataclass(eq=False)
class ResponseJoinProcessor(Operator):
    """Joins a response with the left row, unless that changed since it subscribed: joiner(left value, right value)."""

    value_getter_supplier: KTableValueGetterSupplier
    value_serde: SerdeLike | None
    value_hash_topic: str
    joiner: Callable[[Any, Any], Any]
    left_join: bool

    @override
    def compile(self, node: NodeContext) -> Process:
        forward, dropped, name = node.forward, node.dropped, node.name
        joiner, left_join = self.joiner, self.left_join
        get = self.value_getter_supplier.compile(node).get
        hash_of = value_hash_function(node, self.value_serde, self.value_hash_topic)

        def response_join(key: Any, response: Any, timestamp: int, headers: Headers) -> None:
            asked_hash, foreign_value, _, version = response
            if version != _RESPONSE_VERSION:
                raise StreamsError(f"{name}: SubscriptionResponseWrapper is of an incompatible version ({version})")
            row = get(key)
            if asked_hash != (None if row is None else hash_of(row[0])):
                dropped("foreign-key response for a value that has changed since")
                return
            if foreign_value is None and (not left_join or row is None):
                joined = None
            else:
                joined = joiner(None if row is None else row[0], foreign_value)
            forward(key, joined, timestamp, headers)

        return response_join
