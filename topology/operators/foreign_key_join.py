"""Joins of two tables where the left row holds the key of the right row (KIP-213).

The left side sends a subscription, keyed by the foreign key, to the task of the right row. That task stores the
subscription, responds to it, and responds again whenever the right row changes. A response carries the hash of the left
value that subscribed. The left side ignores it if its value has changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from typing_extensions import override

from ..common.murmur3 import hash128
from ..config.upgrade_from import has_members_before
from ..context.task_context import Process
from ..errors import StreamsError
from ..records import Change, Headers, ValueAndTimestamp
from ..serdes.serdes import Serde, SerdeLike, ToBytes, inline, resolve_serde, serializer_for
from .foreign_key_serdes import (
    CombinedKey,
    CombinedKeySchema,
    Instruction,
    Serialized,
    SubscriptionResponseWrapper,
    SubscriptionWrapper,
)
from .fused_rows import FusedRow
from .operator import NodeContext, Operator
from .table_store import KTableValueGetterSupplier

if TYPE_CHECKING:
    from ..run.fusion import LoopCode, Names

_new = tuple.__new__  # creates a named tuple in half the time of calling its class
_DELETE_ONLY = Instruction.DELETE_KEY_NO_PROPAGATE
_DELETE = Instruction.DELETE_KEY_AND_PROPAGATE
_ALWAYS = Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE
_IF_FOUND = Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE

#: Why a response is dropped.
_CHANGED_SINCE = "foreign-key response for a value that has changed since"
_CURRENT_VERSION = 1
_RESPONSE_VERSION = 0
#: First version that accepts subscriptions with the partition for the response (KIP-775).
_PRIMARY_PARTITION_SINCE = (3, 4)

#: The instructions to send, in order, each with its foreign key.
Plan = Sequence[tuple[Any, Instruction]]


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
        task, forward, dropped = node.task, node.forward, node.dropped
        use_versioned_semantics = self.use_versioned_semantics
        foreign_key_of = self._foreign_key_function()
        steps_for, hash_of = self._steps_function(node), self._hash_function(node)
        refuse, version = _punctuation_refusal(node.name), self._version(node)

        def send(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
            new, old, is_latest = change
            if use_versioned_semantics and not is_latest:
                dropped("out-of-order record of a versioned table")
                return
            if new is None and old is None:
                return
            steps = steps_for(foreign_key_of(key, old), foreign_key_of(key, new), new is not None)
            if not steps:
                return
            message, value_hash = task.message, None if new is None else hash_of(new)
            partition = refuse() if message is None else message.partition()
            for foreign_key, instruction in steps:
                subscription = value_hash, instruction, key, partition, version
                forward(foreign_key, _new(SubscriptionWrapper, subscription), timestamp, headers)

        return send

    @override
    def fuse_change(self, code: LoopCode, names: Names, old: str) -> bool:
        if self.use_versioned_semantics:
            return False
        node, new, key = code.context, names.value, names.key
        extract, keys = code.bind(self.foreign_key_extractor, "foreign_key"), []
        for value in (old, new):
            keys.append(code.fresh("foreign"))
            arguments = f"{key}, {value}" if self.with_key else value
            code.emit(f"{keys[-1]} = None if {value} is None else {extract}({arguments})")
        steps, value_hash, partition = code.fresh("steps"), code.fresh("hash"), code.fresh("partition")
        with code.block(f"if {new} is not None or {old} is not None:"):
            to_bytes = inline(self._key_function(node))
            before, after = (code.use(to_bytes, key) for key in keys)
            stays = f"{keys[1]} is not None and ({keys[0]} is None or {before} == {after})"
            with code.block(f"if {stays}:"):  # what is usual, without a call
                code.emit(f"{steps} = (({keys[1]}, {code.bind(self._asks, 'asks')}),)")
            with code.block("else:"):
                code.say_record()
                steps_for = code.bind(self._steps_function(node), "steps_for")
                code.emit(f"{steps} = {steps_for}({keys[0]}, {keys[1]}, {new} is not None)")
            with code.block(f"if {steps}:"):
                refuse = code.bind(_punctuation_refusal(node.name), "refuse")
                code.emit(f"{partition} = {refuse}() if message is None else message.partition()")
                hashed = f"{code.bind(self._hash_function(node), 'hash_of')}({new})"
                if names.data and names.value_serde is _left_serde(node, self.value_serde):
                    hashed = f"{code.bind(hash128, 'hash128')}({names.data})"
                code.emit(f"{value_hash} = None if {new} is None else {hashed}")
                foreign_key, instruction = code.fresh("foreign_key"), code.fresh("instruction")
                with code.block(f"for {foreign_key}, {instruction} in {steps}:"):
                    made = code.fresh("subscription")
                    parts = f"({value_hash}, {instruction}, {key}, {partition}, {self._version(node)})"
                    code.emit(f"{made} = {new_tuple(code, SubscriptionWrapper, parts)}")
                    code.forward(names.with_key(foreign_key)._replace(value=made))
        return True

    @staticmethod
    def _version(node: NodeContext) -> int:
        return 0 if has_members_before(node.task.config, _PRIMARY_PARTITION_SINCE) else _CURRENT_VERSION

    def _hash_function(self, node: NodeContext) -> Callable[[Any], bytes]:
        return value_hash_function(node, self.value_serde, self.value_hash_topic)

    @property
    def _asks(self) -> Instruction:
        """What a subscription to the same foreign key as before requests.

        A left join always asks: each update of a left row has a result, a deletion too.
        """
        return _ALWAYS if self.left_join else _IF_FOUND

    def _key_function(self, node: NodeContext) -> ToBytes:
        """Return a function that maps a foreign key to its bytes."""
        serde = resolve_serde(self.foreign_key_serde, node.task.config, True, f"the foreign key of {node.name}")
        return serializer_for(serde, node.task.internal_topic(self.foreign_key_topic))

    def _steps_function(self, node: NodeContext) -> Callable[[Any, Any, bool], Plan]:
        """Return (old foreign key, new one, whether there is a left row) -> what to send."""
        dropped, left_join, asks, to_bytes = node.dropped, self.left_join, self._asks, self._key_function(node)

        def steps_for(old_key: Any, new_key: Any, has_row: bool) -> Plan:
            if not left_join and new_key is None:
                if has_row:
                    dropped("null foreign key")
                return () if old_key is None else ((old_key, _DELETE),)
            if old_key is not None and (new_key is None or to_bytes(old_key) != to_bytes(new_key)):
                # The answer "no such row" is needed to delete the result of before.
                return (old_key, _DELETE_ONLY), (new_key, _ALWAYS)
            return ((new_key, asks),)

        return steps_for

    def _foreign_key_function(self) -> Callable[[Any, Any], Any]:
        extract, with_key = self.foreign_key_extractor, self.with_key

        def foreign_key_of(key: Any, value: Any) -> Any:
            if value is None:
                return None
            return extract(key, value) if with_key else extract(value)

        return foreign_key_of


def _left_serde(node: NodeContext, serde: SerdeLike | None) -> Serde[Any]:
    return resolve_serde(serde, node.task.config, False, f"the left table of {node.name}")


def value_hash_function(node: NodeContext, serde: SerdeLike | None, topic: str) -> Callable[[Any], bytes]:
    """Return a function that maps a left value to the hash of its bytes."""
    to_bytes = serializer_for(_left_serde(node, serde), node.task.internal_topic(topic))

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
        task, forward, dropped = node.task, node.forward, node.dropped
        to_bytes, put = _schema(self.key_schema, node).to_bytes, node.store(self.store_name).put
        refuse = _refusal("SubscriptionWrapper", node.name)

        def receive(foreign_key: Any, subscription: Any, timestamp: int, headers: Headers) -> None:
            _, instruction, primary_key, _, version = subscription
            if foreign_key is None and instruction != _ALWAYS:
                dropped("null foreign key")
                return
            if version > _CURRENT_VERSION:
                refuse(version)
            row = _new(ValueAndTimestamp, (subscription, timestamp))
            if foreign_key is not None:
                deletes = instruction in (_DELETE, _DELETE_ONLY)
                task.timestamp = timestamp
                task.headers = headers
                put(to_bytes(foreign_key, primary_key), None if deletes else row)
            combined = _new(CombinedKey, (foreign_key, primary_key))
            forward(combined, _new(Change, (row, None, True)), timestamp, headers)

        return receive

    @override
    def fuse(self, code: LoopCode, names: Names) -> bool:
        node, foreign_key, subscription = code.context, names.key, names.value
        instruction, primary_key, version = (code.fresh(name) for name in ("instruction", "primary_key", "version"))
        code.emit(f"_, {instruction}, {primary_key}, _, {version} = {subscription}")
        with code.block(f"if {foreign_key} is None and {instruction} != {_ALWAYS.value}:"):
            code.drop("null foreign key")
        with code.block("else:"):
            with code.block(f"if {version} > {_CURRENT_VERSION}:"):
                code.emit(f"{code.bind(_refusal('SubscriptionWrapper', node.name), 'refuse')}({version})")
            row_key, row = code.fresh("row_key"), f"({subscription}, timestamp)"
            with code.block(f"if {foreign_key} is not None:"):
                to_bytes = code.bind(_schema(self.key_schema, node).to_bytes, "to_bytes")
                code.emit(f"{row_key} = {to_bytes}({foreign_key}, {primary_key})")
                store, keeps = node.store(self.store_name), f"if {instruction} > {_DELETE.value} else None"
                rows = store.timestamped_rows()
                if rows is None:
                    code.say_record()
                    code.emit(f"{code.bind(store.put, 'put')}({row_key}, {row} {keeps})")
                else:
                    named = names.with_key(row_key)._replace(key_serde=rows.key_serde)
                    FusedRow(code, rows, self.store_name, named).put(f"{subscription} {keeps}")
            # Not as objects: the join takes them apart again.
            code.forward_change(names.with_key(f"({foreign_key}, {primary_key})")._replace(value=row), "None")
        return True


def _punctuation_refusal(name: str) -> Callable[[], NoReturn]:
    def refuse() -> NoReturn:
        raise StreamsError(f"{name}: a foreign-key join needs records from a topic, not from a punctuation")

    return refuse


def _refusal(message: str, name: str) -> Callable[[int], NoReturn]:
    def refuse(version: int) -> NoReturn:
        raise StreamsError(f"{name}: {message} is of an incompatible version ({version})")

    return refuse


def new_tuple(code: LoopCode, kind: type, parts: str) -> str:
    """Return an expression for a named tuple."""
    return f"{code.bind(_new, 'new_tuple')}({code.bind(kind, kind.__name__.lower())}, {parts})"


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

    @override
    def fuse_change(self, code: LoopCode, names: Names, old: str) -> bool:
        foreign_key, primary_key, newest = (code.fresh(name) for name in ("foreign_key", "primary_key", "newest"))
        value_hash, instruction, partition = (code.fresh(name) for name in ("hash", "instruction", "partition"))
        row, value, response = code.fresh("row"), code.fresh("value"), code.fresh("response")
        getter = self.foreign_value_getter_supplier.compile(code.context)
        rows = getter.rows
        code.emit(f"{foreign_key}, {primary_key} = {names.key}")
        code.emit(f"({value_hash}, {instruction}, _, {partition}, _), {newest} = {names.value}")
        code.emit(f"{row} = {value} = None")
        if rows is not None and rows.value_serde.serializer is not None:
            with code.block(f"if {foreign_key} is not None:"):
                code.emit(f"{row} = {code.bind(rows.buffer.find, 'find')}({code.use(rows.encode_key, foreign_key)})")
            with code.block(f"if {row} is not None:"):  # bytes, which need not be read to be sent
                code.emit(f"{value} = {new_tuple(code, Serialized, f'({row},)')}")
                code.emit(f"{newest} = {code.bind(rows.buffer.newest, 'newest')}({newest})")
        else:
            code.say_record()
            with code.block(f"if {foreign_key} is not None:"):
                code.emit(f"{row} = {code.bind(getter.get_forwarded, 'get')}({foreign_key})")
            with code.block(f"if {row} is not None:"):
                code.emit(f"{value} = {row}[0]")
                code.emit(f"{newest} = max({newest}, {row}[1])")
        is_found = f"{instruction} != {_IF_FOUND.value} or {row} is not None"
        with code.block(f"if {instruction} != {_DELETE_ONLY.value} and ({is_found}):"):
            with code.block(f"if {instruction} == {_DELETE.value}:"):
                code.emit(f"{value} = None")
            parts = f"({value_hash}, {value}, {partition}, {_RESPONSE_VERSION})"
            code.emit(f"{response} = {new_tuple(code, SubscriptionResponseWrapper, parts)}")
            with code.at(newest):
                code.forward(names.with_key(primary_key)._replace(value=response))
        return True


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
        forward, dropped, refuse = node.forward, node.dropped, _refusal("SubscriptionResponseWrapper", node.name)
        joiner, left_join = self.joiner, self.left_join
        get = self.value_getter_supplier.compile(node).get
        hash_of = value_hash_function(node, self.value_serde, self.value_hash_topic)

        def response_join(key: Any, response: Any, timestamp: int, headers: Headers) -> None:
            asked_hash, foreign_value, _, version = response
            if version != _RESPONSE_VERSION:
                refuse(version)
            row = get(key)
            if asked_hash != (None if row is None else hash_of(row[0])):
                dropped(_CHANGED_SINCE)
                return
            if foreign_value is None and (not left_join or row is None):
                joined = None
            else:
                joined = joiner(None if row is None else row[0], foreign_value)
            forward(key, joined, timestamp, headers)

        return response_join

    @override
    def fuse(self, code: LoopCode, names: Names) -> bool:
        node = code.context
        asked, foreign, version, row, left, joined = (
            code.fresh(name) for name in ["hash", "foreign_value", "version", "row", "left", "joined"]
        )
        code.emit(f"{asked}, {foreign}, _, {version} = {names.value}")
        with code.block(f"if {version} != {_RESPONSE_VERSION}:"):
            code.emit(f"{code.bind(_refusal('SubscriptionResponseWrapper', node.name), 'refuse')}({version})")
        getter = self.value_getter_supplier.compile(node)
        rows = getter.rows
        serde = _left_serde(node, self.value_serde)
        hash_of = value_hash_function(node, self.value_serde, self.value_hash_topic)
        if rows is not None:
            row_key, value = code.key_bytes(names, rows.key_serde, rows.encode_key), code.use(rows.decode_value, row)
            code.emit(f"{row} = {code.bind(rows.buffer.find, 'find')}({row_key})")
            has_changed = f"{asked} != (None if {row} is None else {code.bind(hash128, 'hash128')}({row}))"
            if rows.value_serde is not serde or serde.serializer is None:  # other bytes than those that were hashed
                has_changed += f" and ({row} is None or {asked} != {code.bind(hash_of, 'hash_of')}({value}))"
        else:
            value = f"{row}[0]"
            code.say_record()
            code.emit(f"{row} = {code.bind(getter.get, 'get')}({names.key})")
            has_changed = f"{asked} != (None if {row} is None else {code.bind(hash_of, 'hash_of')}({value}))"
        with code.block(f"if {has_changed}:"):
            code.drop(_CHANGED_SINCE)
        with code.block("else:"):
            code.emit(f"{left} = None if {row} is None else {value}")
            nothing = f"{foreign} is None and {row} is None" if self.left_join else f"{foreign} is None"
            made = f"{code.bind(self.joiner, 'joiner')}({left}, {foreign})"
            code.emit(f"{joined} = None if {nothing} else {made}")
            code.forward(names._replace(value=joined))
        return True
