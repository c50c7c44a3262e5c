"""Compiled sinks: from the last operator to serialized records."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.kernel import sinks

from ..context.error_handling import ErrorHandling
from ..context.exception_handlers import ProducerRecord
from ..context.partitioners import WindowedStreamPartitioner, partition_for_key
from ..context.task_context import Process, TaskContext
from ..errors import StreamsError
from ..graph.processor_topology import SinkNode
from ..operators.foreign_key_serdes import PrimaryPartitioner
from ..operators.record_context import record_metadata
from ..records import Headers, RecordMetadata
from ..serdes.serdes import ITSELF, Inline, Serde, inline, resolve_serde, same, serializer_for
from ..serdes.windowed_serdes import WindowedSerde, inline_windowed

if TYPE_CHECKING:
    from .fusion import LoopCode, Names

#: Serializes and sends a record; returns the exception if it cannot be serialized.
CompiledSend = Callable[..., Exception | None]
#: The metadata that a topic function gets for a record of a punctuation.
_NO_METADATA = RecordMetadata("", -1, -1)


def compile_sink(node: SinkNode, full_topic: Callable[[str], str], task: TaskContext, errors: ErrorHandling) -> Process:
    """Return the closure that serializes records and passes them to the producer."""
    where = f"sink {node.name}"
    key_serde = resolve_serde(node.key_serde, task.config, True, where)
    value_serde = resolve_serde(node.value_serde, task.config, False, where)

    def sink_to(topic: str) -> Process:
        if node.partitioner is None:
            make = _sink
        else:
            make = _partitioned_sink if _windowed(node) is None else _windowed_sink
        return make(node, topic, key_serde, value_serde, task, errors)

    if isinstance(node.topic, str):
        return sink_to(full_topic(node.topic))
    return _dynamic_sink(node.name, node.topic, sink_to, task)


def _sink(
    node: SinkNode, topic: str, key_serde: Serde[Any], value_serde: Serde[Any], task: TaskContext, errors: ErrorHandling
) -> Process:
    send, name = task.send, node.name
    to_key, to_value = serializer_for(key_serde, topic), serializer_for(value_serde, topic)

    def sink(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:  # costs nothing unless it fails
            key_bytes, value_bytes = to_key(key), to_value(value)
        except Exception as error:  # noqa: BLE001 - the handler decides, and raises
            errors.failed_serialization(name, ProducerRecord(topic, key, value, timestamp, headers), error)
            return
        send(topic, key_bytes, value_bytes, timestamp, headers)

    compiled_send = _compiled_send(task, topic, inline(to_key), inline(to_value), None)
    if compiled_send is None:
        return sink

    def sink_compiled(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        error = compiled_send(key, value, timestamp, headers)
        if error is not None:
            errors.failed_serialization(name, ProducerRecord(topic, key, value, timestamp, headers), error)

    return sink_compiled


def fuse_sink(
    code: LoopCode, node: SinkNode, topic: str, task: TaskContext, errors: ErrorHandling, names: Names
) -> bool:
    """Write a sink of one topic into a loop; see Operator.fuse."""
    windowed = _windowed(node)
    where, full = f"sink {node.name}", repr(topic)
    key_serde = resolve_serde(node.key_serde, task.config, True, where)
    value_serde = resolve_serde(node.value_serde, task.config, False, where)
    given_value, to_value = names.value, inline(serializer_for(value_serde, topic))
    if names.data and names.value_serde is value_serde:  # a store has written it
        given_value, to_value = names.data, ITSELF
    inside = key_serde if windowed is None or windowed.inner is None else windowed.inner
    # The bytes that a loop has instead of a key are those to send, or those inside a windowed key.
    is_sent = names.key_serde is key_serde and not names.windowed
    is_inside = names.key_serde is inside and names.windowed and windowed is not None
    given_key, to_bytes = (names.held_key, same) if is_sent or is_inside else (names.key, serializer_for(inside, topic))
    to_key = inline(to_bytes) if windowed is None or is_sent else inline_windowed(to_bytes, windowed.times)
    record = f"{code.bind(ProducerRecord, 'producer_record')}({full}, {names.shown}, {names.value}, timestamp, headers)"
    unsent = f"{code.bind(errors.failed_serialization, 'unsent')}({node.name!r}, {record}, "
    compiled_send = _compiled_send(task, topic, to_key, to_value, windowed)
    if node.partitioner is not None and windowed is None and compiled_send is None:
        return False
    is_known = isinstance(node.partitioner, PrimaryPartitioner)
    count = None if node.partitioner is None or is_known else _write_partition_count(code, topic, task)
    if compiled_send is not None:
        error, send = code.fresh("error"), code.bind(compiled_send, "send")
        sent = f"{error} = {send}({given_key}, {given_value}, timestamp, headers"
        if is_known:
            code.emit(f"{sent}, {names.value}[{PrimaryPartitioner.POSITION}])")
        elif node.partitioner is not None and windowed is None:
            chosen, given = code.fresh("chosen"), f"{names.key}, {names.value}"
            code.emit(f"{chosen} = {code.bind(node.partitioner, 'partitioner')}({full}, {given}, {count})")
            with code.block(f"if {chosen} is None or type({chosen}) is int:"):
                code.emit(f"{sent}, {chosen})")
            with code.block("else:"):
                code.say_record()
                send_to = code.bind(_send_to(node.name, topic, key_serde, value_serde, task), "send_to")
                code.emit(f"{error} = {send_to}({chosen}, {given}, timestamp, headers)")
        else:
            code.emit(f"{sent})" if count is None else f"{sent}, {count})")
        with code.block(f"if {error} is not None:"):
            code.say_record()
            code.emit(f"{unsent}{error})")
        return True
    key, value = code.fresh("key"), code.fresh("value")
    partition = ""
    if windowed is not None:
        partition = f", {code.bind(partition_for_key, 'partition')}({key}[:-{windowed.times_size}], {count})"
    with code.block("try:"):  # costs nothing unless it fails
        for variable, function, given in ((key, to_key, given_key), (value, to_value, given_value)):
            text = code.use(function, given)
            code.emit(f"{variable} = {text if function.takes_none else f'None if {given} is None else {text}'}")
    with code.block("except Exception as error:"):
        code.say_record()
        code.emit(f"{unsent}error)")
    with code.block("else:"):
        code.emit(f"{code.bind(task.send, 'send')}({full}, {key}, {value}, timestamp, headers{partition})")
    return True


def _compiled_send(
    task: TaskContext, topic: str, to_key: Inline, to_value: Inline, windowed: WindowedSerde | None
) -> CompiledSend | None:
    """Return a function that serializes and sends in one call, None if the task or the serdes are not compiled.

    For windowed keys it also takes the topic's number of partitions.
    """
    if sinks is None or any(function.compiled is None and function != ITSELF for function in (to_key, to_value)):
        return None
    times_size = 0 if windowed is None else windowed.times_size
    send: CompiledSend | None = sinks.sink_for(task.send, topic, to_key.compiled, to_value.compiled, times_size)
    return send


def _windowed(node: SinkNode) -> WindowedSerde | None:
    """Return the windowed serde of a sink that partitions by the key inside; None for other sinks."""
    found = node.partitioner.serde if isinstance(node.partitioner, WindowedStreamPartitioner) else None
    return None if found is None or found.inner is None else found


def _windowed_sink(
    node: SinkNode, topic: str, key_serde: Serde[Any], value_serde: Serde[Any], task: TaskContext, errors: ErrorHandling
) -> Process:
    """Return a sink of windowed keys, which are partitioned by the key inside."""
    send, name, partition_count, windowed = task.send, node.name, task.partition_count, _windowed(node)
    assert windowed is not None
    assert windowed.inner is not None
    to_key, to_value, times_size = (
        serializer_for(key_serde, topic),
        serializer_for(value_serde, topic),
        windowed.times_size,
    )

    def sink(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        key_bytes = to_key(key)
        if key_bytes is None:
            raise StreamsError(f"{name} needs a windowed key, not None")
        try:
            value_bytes = to_value(value)
        except Exception as error:  # noqa: BLE001 - the handler decides, and raises
            errors.failed_serialization(name, ProducerRecord(topic, key, value, timestamp, headers), error)
            return
        partition = partition_for_key(key_bytes[:-times_size], partition_count(topic))
        send(topic, key_bytes, value_bytes, timestamp, headers, partition)

    inner = serializer_for(windowed.inner, topic)
    compiled_send = _compiled_send(task, topic, inline_windowed(inner, windowed.times), inline(to_value), windowed)
    if compiled_send is None:
        return sink

    def sink_compiled(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        error = compiled_send(key, value, timestamp, headers, partition_count(topic))
        if error is not None:
            errors.failed_serialization(name, ProducerRecord(topic, key, value, timestamp, headers), error)

    return sink_compiled


def _write_partition_count(code: LoopCode, topic: str, task: TaskContext) -> str:
    """Write code that gets the number of partitions once per run of the loop, and return its variable."""
    count = code.flag("partitions")
    with code.block(f"if not {count}:"):
        code.say_record()
        code.emit(f"{count} = {code.bind(task.partition_count, 'partition_count')}({topic!r})")
    return count


def _partitioned_sink(
    node: SinkNode, topic: str, key_serde: Serde[Any], value_serde: Serde[Any], task: TaskContext, errors: ErrorHandling
) -> Process:
    """Return a sink whose partitioner returns a partition, several, an empty set, or None (producer's choice)."""
    name, partition_count = node.name, task.partition_count
    send_to = _send_to(name, topic, key_serde, value_serde, task)
    partitioner: Callable[..., Any] = node.partitioner or _producer_chooses

    def sink(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        chosen = partitioner(topic, key, value, partition_count(topic))
        error = send_to(chosen, key, value, timestamp, headers)
        if error is not None:
            errors.failed_serialization(name, ProducerRecord(topic, key, value, timestamp, headers), error)

    return sink


def _send_to(
    name: str, topic: str, key_serde: Serde[Any], value_serde: Serde[Any], task: TaskContext
) -> Callable[..., Exception | None]:
    """Return a function that serializes and sends to what a partitioner has chosen: a CompiledSend otherwise."""
    send, to_key, to_value = task.send, serializer_for(key_serde, topic), serializer_for(value_serde, topic)

    def send_to(chosen: Any, key: Any, value: Any, timestamp: int, headers: Headers) -> Exception | None:
        try:
            key_bytes, value_bytes = to_key(key), to_value(value)
        except Exception as error:  # noqa: BLE001 - the handler decides, and raises
            return error
        if chosen is None or isinstance(chosen, int):
            send(topic, key_bytes, value_bytes, timestamp, headers, chosen)
            return None
        for partition in chosen:
            send(topic, key_bytes, value_bytes, timestamp, headers, partition)
        if not chosen:
            task.record_dropped(name, "partitioner returned no partition")
        return None

    return send_to


def _producer_chooses(topic: str, key: Any, value: Any, partition_count: int) -> None:
    return


def _dynamic_sink(
    name: str, topic_of: Callable[..., str], sink_to: Callable[[str], Process], task: TaskContext
) -> Process:
    """Return the closure that writes to the topic returned by a function (Kafka Streams: TopicNameExtractor)."""
    sinks: dict[str, Process] = {}

    def sink(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        topic = topic_of(key, value, record_metadata(task) or _NO_METADATA)
        found = sinks.get(topic)
        if found is None:
            if not isinstance(topic, str) or not topic:
                raise StreamsError(f"The topic function of sink {name} must return a topic's name, not {topic!r}")
            found = sinks[topic] = sink_to(topic)
        found(key, value, timestamp, headers)

    return sink
