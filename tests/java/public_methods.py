"""``python -m tests.java.public_methods``: every public method of Kafka Streams 4.4.0, and its name in Penstock.

Reads the methods from the jars with the JDK's javap, and prints docs/java-methods.md. A method has the name in
snake_case of its class here, or one that NAMES or ARGUMENTS give. Overloads are one method.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock
import penstock.testing
from penstock.pipeline.java.jar_lock import fetch_jars, read_lock
from penstock.pipeline.java.java_runtime import find_java
from tests.java.versions import locks

VERSION = "4.4.0"
TEST_UTILS = Path(__file__).parent / "test-utils.lock"
STREAMS = "org.apache.kafka.streams"
#: The classes by their packages.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    STREAMS: (
        *("StreamsBuilder", "Topology", "KafkaStreams", "StreamsConfig", "StoreQueryParameters"),
        "ClientInstanceIds",
        *("TopologyTestDriver", "TestInputTopic", "TestOutputTopic"),
    ),
    f"{STREAMS}.kstream": (
        *("KStream", "KTable", "GlobalKTable", "KGroupedStream", "KGroupedTable", "CogroupedKStream"),
        *("TimeWindowedKStream", "SessionWindowedKStream", "TimeWindowedCogroupedKStream"),
        *("SessionWindowedCogroupedKStream", "BranchedKStream", "TimeWindows", "SlidingWindows", "SessionWindows"),
        *("JoinWindows", "UnlimitedWindows", "EmitStrategy", "Suppressed", "Windowed", "Window", "WindowedSerdes"),
        *("Consumed", "Produced", "Grouped", "Joined", "StreamJoined", "TableJoined", "Repartitioned", "Named"),
        *("Branched", "Printed", "Materialized"),
    ),
    f"{STREAMS}.processor.api": (
        *("Processor", "FixedKeyProcessor", "ProcessorSupplier", "ProcessingContext", "ProcessorContext"),
        *("FixedKeyProcessorContext", "ContextualProcessor", "Record", "FixedKeyRecord", "RecordMetadata"),
        *("ProcessorWrapper", "MockProcessorContext"),
    ),
    f"{STREAMS}.processor": ("StateStore", "StateStoreContext", "StreamPartitioner"),
    f"{STREAMS}.state": (
        *("Stores", "StoreBuilder", "QueryableStoreTypes", "KeyValueIterator", "ValueAndTimestamp", "VersionedRecord"),
        *("ValueTimestampHeaders", "AggregationWithHeaders"),
        *("ReadOnlyKeyValueStore", "KeyValueStore", "ReadOnlyWindowStore", "WindowStore", "ReadOnlySessionStore"),
        *("SessionStore", "VersionedKeyValueStore"),
        *("DslStoreSuppliers", "DslKeyValueParams", "DslWindowParams", "DslSessionParams"),
    ),
    f"{STREAMS}.query": (
        *("StateQueryRequest", "StateQueryResult", "QueryResult", "FailureReason", "Position", "PositionBound"),
        *("QueryConfig", "KeyQuery", "RangeQuery", "TimestampedKeyQuery", "TimestampedRangeQuery", "WindowKeyQuery"),
        *("WindowRangeQuery", "VersionedKeyQuery", "MultiVersionedKeyQuery", "TimestampedKeyWithHeadersQuery"),
        *("TimestampedRangeWithHeadersQuery", "TimestampedWindowKeyWithHeadersQuery"),
        *("TimestampedWindowRangeWithHeadersQuery",),
    ),
}
#: Of each object in Java.
OF_OBJECTS = {"toString": "`repr()`", "equals": "`==`", "hashCode": "`hash()`"}
#: Classes that have another name here.
CLASSES = {
    "ProcessingContext": "ProcessorContext",
    "ProcessorSupplier": "",
    "FixedKeyRecord": "Record",
    "StoreQueryParameters": "",
    "WindowedSerdes": "",
    "QueryableStoreTypes": "",
    "KeyValueIterator": "",
}
#: Classes that hold options of one method: they are its arguments.
ARGUMENTS = {
    "Consumed": "`StreamsBuilder.stream` and `table`",
    "Produced": "`KStream.to`",
    "Grouped": "`KStream.group_by` and `group_by_key`",
    "Joined": "`KStream.join`",
    "StreamJoined": "`KStream.join`",
    "TableJoined": "`KTable.join`",
    "Repartitioned": "`KStream.repartition`",
    "Named": "each operator: `name=`",
    "Branched": "`BranchedKStream.branch`",
    "Printed": "`KStream.print`",
}
#: Names that are not the Java name in snake_case.
NAMES = {
    "KafkaStreams.query": "`KafkaStreams.state_query`",
    "StateStore.getPosition": "the task knows it: `QueryResult.position`",
    **dict.fromkeys(
        (f"StateQueryRequest.{name}" for name in ("getStoreName", "getQuery", "getPartitions", "getPositionBound")),
        "an attribute of `StateQueryRequest`",
    ),
    "StateQueryResult.setGlobalResult": "the result is a value: an argument of `StateQueryResult`",
    "StateQueryResult.addResult": "the result is a value: an argument of `StateQueryResult`",
    **dict.fromkeys(
        (f"StateQueryResult.{name}" for name in ("getPartitionResults", "getOnlyPartitionResult", "getGlobalResult")),
        "an attribute of `StateQueryResult`",
    ),
    "StateQueryResult.getPosition": "`StateQueryResult.position`",
    **dict.fromkeys(
        (f"QueryResult.{name}" for name in ("addExecutionInfo", "setPosition")),
        "an argument of `QueryResult`",
    ),
    "QueryResult.notUpToBound": "`QueryResult.for_failure(FailureReason.NOT_UP_TO_BOUND, message)`",
    **dict.fromkeys(
        (
            f"QueryResult.get{name}"
            for name in ("ExecutionInfo", "Position", "FailureReason", "FailureMessage", "Result")
        ),
        "an attribute of `QueryResult`",
    ),
    **dict.fromkeys(
        (f"FailureReason.{name}" for name in ("values", "valueOf")), "`list(FailureReason)`, `FailureReason[name]`"
    ),
    "Position.copy": "not needed: a position does not change",
    "Position.getTopics": "`Position.topics`",
    "Position.getPartitionPositions": "`Position.partition_positions`",
    **dict.fromkeys(
        (f"QueryConfig.{name}" for name in ("isCollectExecutionInfo", "getIsolationLevel")),
        "an attribute of `StateQueryRequest`",
    ),
    **dict.fromkeys(
        (f"{query}.getKey" for query in ("KeyQuery", "WindowKeyQuery", "WindowRangeQuery")), "`key`, an attribute"
    ),
    **dict.fromkeys(
        (
            f"{query}.{name}"
            for query in ("WindowKeyQuery", "WindowRangeQuery")
            for name in ("getTimeFrom", "getTimeTo")
        ),
        "`time_from`, `time_to`, in ms",
    ),
    **dict.fromkeys(
        (f"RangeQuery.{name}" for name in ("getLowerBound", "getUpperBound")), "`lower_bound`, `upper_bound`"
    ),
    "KafkaStreams.metadataForLocalThreads": "`KafkaStreams.status`",
    "StoreQueryParameters.fromNameAndType": "`KafkaStreams.store(name)`",
    "StoreQueryParameters.withPartition": "`KafkaStreams.store(partition=)`",
    "StoreQueryParameters.enableStaleStores": "`KafkaStreams.store(stale=True)`",
    **dict.fromkeys(
        (f"StoreQueryParameters.{name}" for name in ("storeName", "queryableStoreType", "partition")),
        "an argument of `KafkaStreams.store`",
    ),
    "StoreQueryParameters.staleStoresEnabled": "an argument of `KafkaStreams.store`",
    **dict.fromkeys(
        (
            f"StreamsConfig.{name}Prefix"
            for name in (
                *("consumer", "mainConsumer", "restoreConsumer", "globalConsumer"),
                *("producer", "adminClient", "topic", "clientTag"),
            )
        ),
        "the prefix itself: `consumer.`, `main.consumer.` …",
    ),
    **dict.fromkeys(
        (
            f"StreamsConfig.{name}"
            for name in (
                *("getMainConsumerConfigs", "getRestoreConsumerConfigs", "getGlobalConsumerConfigs"),
                *("getProducerConfigs", "getAdminConfigs", "getClientTags"),
            )
        ),
        "`StreamsConfig.with_prefix`",
    ),
    **dict.fromkeys(
        (
            f"StreamsConfig.{name}"
            for name in (
                *("defaultKeySerde", "defaultValueSerde", "defaultTimestampExtractor", "getKafkaClientSupplier"),
                *("deserializationExceptionHandler", "defaultDeserializationExceptionHandler"),
                *("productionExceptionHandler", "defaultProductionExceptionHandler", "processingExceptionHandler"),
                "defaultInteractiveQueryIsolationLevel",
            )
        ),
        "`config[name]`",
    ),
    "StreamsConfig.configDef": "`penstock config --all`",
    "StreamsConfig.main": "`penstock config --all`",
    "StreamsConfig.verifyTopologyOptimizationConfigs": "checked when a `StreamsConfig` is made",
    "KTable.queryableStoreName": "`KTable.queryable_store_name`, an attribute",
    "GlobalKTable.queryableStoreName": "`GlobalKTable.queryable_store_name`, an attribute",
    "TimeWindows.size": "`TimeWindows.size_ms`",
    "UnlimitedWindows.size": "`UnlimitedWindows.size_ms`",
    "JoinWindows.size": "`JoinWindows.size_ms`",
    **dict.fromkeys(
        (
            f"{name}.gracePeriodMs"
            for name in ("TimeWindows", "SessionWindows", "SlidingWindows", "JoinWindows", "UnlimitedWindows")
        ),
        "`grace_ms`",
    ),
    "SessionWindows.inactivityGap": "`SessionWindows.inactivity_gap_ms`",
    "JoinWindows.of": "`JoinWindows.of_time_difference_and_grace` (deprecated in Java)",
    "JoinWindows.grace": "`JoinWindows(grace=)` (deprecated in Java)",
    "EmitStrategy.onWindowClose": "`EmitStrategy.ON_WINDOW_CLOSE`",
    "EmitStrategy.onWindowUpdate": "`EmitStrategy.ON_WINDOW_UPDATE`",
    "EmitStrategy.type": "the member of `EmitStrategy` itself",
    "Window.startTime": "`Window.start`, in ms",
    "Window.endTime": "`Window.end`, in ms",
    "WindowedSerdes.timeWindowedSerdeFrom": "`Serdes.time_windowed`",
    "WindowedSerdes.sessionWindowedSerdeFrom": "`Serdes.session_windowed`",
    "Materialized.as": "`Materialized(store)`",
    "Materialized.with": "`Materialized(key_serde=, value_serde=)`",
    "ProcessorSupplier.get": "the class, or a function",
    "ProcessorWrapper.wrapProcessorSupplier": "`ProcessorWrapper.wrap`",
    "ProcessorWrapper.wrapFixedKeyProcessorSupplier": "`ProcessorWrapper.wrap`",
    "ProcessorWrapper.asWrapped": "not needed: `ProcessorWrapper.wrap` returns a processor",
    "ProcessorWrapper.asWrappedFixedKey": "not needed: `ProcessorWrapper.wrap` returns a processor",
    "DslKeyValueParams.dslStoreFormat": "`DslKeyValueParams.headers`",
    "DslWindowParams.dslStoreFormat": "`DslWindowParams.headers`",
    "DslSessionParams.storeFormat": "`DslSessionParams.headers`",
    "DslWindowParams.retentionPeriod": "`DslWindowParams.retention_ms`",
    "DslSessionParams.retentionPeriod": "`DslSessionParams.retention_ms`",
    "DslWindowParams.windowSize": "`DslWindowParams.window_size_ms`",
    "QueryableStoreTypes.keyValueStore": "`ReadOnlyKeyValueStore`, as the type of what `KafkaStreams.store` returns",
    "QueryableStoreTypes.windowStore": "`ReadOnlyWindowStore`",
    "QueryableStoreTypes.sessionStore": "`ReadOnlySessionStore`",
    "QueryableStoreTypes.timestampedKeyValueStore": "`KafkaStreams.store(timestamped=True)`",
    "QueryableStoreTypes.timestampedWindowStore": "`KafkaStreams.store(timestamped=True)`",
    **dict.fromkeys(
        (
            f"QueryableStoreTypes.{name}WithHeaders"
            for name in ("timestampedKeyValueStore", "timestampedWindowStore", "sessionStore")
        ),
        "`KafkaStreams.store(headers=True)`",
    ),
    "KeyValueIterator.close": "the iterator's `close`, or the end of a loop",
    "KeyValueIterator.peekNextKey": "not needed: Python's iterators",
    "ReadOnlyWindowStore.backwardFetch": "`backward_fetch_range`, `backward_fetch_keys`",
    "WindowStore.backwardFetch": "`backward_fetch_range`, `backward_fetch_keys`",
    "StoreBuilder.build": "`StoreBuilder.build`, for stores of your own; others are made by tasks",
    "StoreBuilder.loggingEnabled": "`StoreBuilder.logging`",
    "StateStore.managesOffsets": "not needed: a store on disk keeps its offset",
    "ValueAndTimestamp.make": "`ValueAndTimestamp(value, timestamp)`",
    "ValueAndTimestamp.makeAllowNullable": "`ValueAndTimestamp(value, timestamp)`",
    "TestOutputTopic.getQueueSize": "`TestOutputTopic.queue_size`",
    "JoinWindows.windowsFor": "raises an error in Java, too",
    "ValueAndTimestamp.getValueOrNull": "`None` has no attribute: ask for it first",
    **dict.fromkeys(
        (f"ValueTimestampHeaders.{name}" for name in ("make", "makeAllowNullable")),
        "`ValueTimestampHeaders(value, timestamp, headers)`",
    ),
    "ValueTimestampHeaders.getValueOrNull": "`None` has no attribute: ask for it first",
    **dict.fromkeys(
        (f"AggregationWithHeaders.{name}" for name in ("make", "makeAllowNullable")),
        "`AggregationWithHeaders(aggregation, headers)`",
    ),
    "AggregationWithHeaders.getAggregationOrNull": "`None` has no attribute: ask for it first",
}


@dataclass(frozen=True, slots=True)
class Method:
    """A public method in Java and its replacement here, as Markdown."""

    java: str
    here: str


def java_methods() -> Iterator[tuple[str, list[str]]]:
    """Yield each class of PACKAGES with its own public methods."""
    jars = fetch_jars([*read_lock(locks()[VERSION]), *read_lock(TEST_UTILS)])
    names = [f"{package}.{name}" for package, classes in PACKAGES.items() for name in classes]
    command = [str(find_java().resolve().parent / "javap"), "-public", "-cp", ":".join(map(str, jars)), *names]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for text in re.split(r"^Compiled from .*\n", printed, flags=re.MULTILINE)[1:]:
        head, *lines = text.splitlines()
        found = re.search(r"(?:class|interface) [\w.]+\.(\w+)", head)
        assert found is not None, head
        methods = (re.search(r" (\w+)\(", line) for line in lines)
        yield found[1], list(dict.fromkeys(match[1] for match in methods if match))


def in_penstock(owner: str, name: str) -> Method | None:
    """Return a method's name here, None if it is not listed."""
    java, snake = f"{owner}.{name}", re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    if java in NAMES:
        return Method(java, NAMES[java])
    if owner in ARGUMENTS:
        return Method(java, f"arguments of {ARGUMENTS[owner]}")
    here = CLASSES.get(owner, owner)
    found: Any = getattr(penstock, here, None) or getattr(penstock.testing, here, None)
    if found is not None and name not in OF_OBJECTS and (hasattr(found, snake) or snake in attributes(found)):
        return Method(java, f"`{here}.{snake}`")
    return Method(java, OF_OBJECTS[name]) if name in OF_OBJECTS else None


def attributes(of: type) -> set[str]:
    """Return the annotated attributes of a class."""
    return {name for base in of.__mro__ for name in getattr(base, "__annotations__", {})}


def page(found: Mapping[str, list[Method]]) -> str:
    """Return docs/java-methods.md."""
    count = sum(map(len, found.values()))
    lines = [
        "# Every public method of Kafka Streams",
        "",
        f"**{count} of {count}** public methods of Kafka Streams {VERSION}'s classes have their place in Penstock.",
        "Overloads are one method, and methods are listed where Java declares them.",
        "`python -m tests.java.public_methods` reads them from the jars and prints this page; the tests compare both.",
    ]
    for owner, mine in found.items():
        if mine:
            lines += ["", f"## {owner}", "", "| Java | Penstock |", "|---|---|"]
            lines += [f"| `{method.java.partition('.')[2]}` | {method.here} |" for method in mine]
    return "\n".join(lines) + "\n"


def table() -> dict[str, list[Method]]:
    """Return all methods by class; raises LookupError that names the unlisted ones."""
    found: dict[str, list[Method]] = {}
    nowhere = []
    for owner, names in java_methods():
        for name in names:
            method = in_penstock(owner, name)
            if method is None:
                nowhere.append(f"{owner}.{name}")
            else:
                found.setdefault(owner, []).append(method)
    if nowhere:
        raise LookupError(f"no name in Penstock: {', '.join(nowhere)}")
    return found


if __name__ == "__main__":
    sys.stdout.write(page(table()))
