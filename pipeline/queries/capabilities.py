"""The behavior of a topology's operators on Spark: the same as locally, the same in coarser steps, or refused.

The table holds every operator of the DSL; a test compares it with the existing operators. Needs no pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from penstock.topology.clocks import Punctuation
from penstock.topology.config.config_keys import EXACTLY_ONCE_V2
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.store_interfaces import StoreBackend, StoreKind
from penstock.topology.context.timestamp_extractors import fail_on_invalid_timestamp
from penstock.topology.errors import TopologyError
from penstock.topology.graph.processor_topology import (
    AutoOffsetReset,
    Node,
    ProcessorNode,
    ProcessorTopology,
    ResetByDuration,
    SinkNode,
    SourceNode,
)
from penstock.topology.graph.topology import Topology
from penstock.topology.operators import stream_join, window_close
from penstock.topology.operators.operator import Operator
from penstock.topology.operators.stream_join import KStreamKStreamJoin
from penstock.topology.operators.windowed import WindowedAggregator


class Capability(Enum):
    """How an operator's results on Spark compare with the local engine's."""

    IDENTICAL = "identical"
    COARSER = "coarser"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding for one node. text: how it is coarser, or why it is refused and the alternative."""

    node: str
    capability: Capability
    text: str = ""

    def as_json(self) -> dict[str, str]:
        """Return it for programs."""
        return {"node": self.node, "capability": self.capability.value, "text": self.text}

    def __str__(self) -> str:
        return f"{self.node}: {self.capability.value}{', ' + self.text if self.text else ''}"


_IDENTICAL = (Capability.IDENTICAL, "")
_SIDE_EFFECT = (
    Capability.COARSER,
    "your function runs on Spark's executors, and again for records of a micro-batch that Spark repeats",
)
_USER_OBJECT = (
    Capability.COARSER,
    "attributes of your object live for one micro-batch: keep lasting data in a store; schedules made in init() "
    "continue, later ones end with the micro-batch; wall-clock punctuations run at most once a second, and not before "
    "a task's first record",
)
_GLOBAL = (
    Capability.REFUSED,
    "tasks on Spark have no global stores: use a table that is co-partitioned with the stream, or a foreign-key join",
)

#: A source whose idle timeout follows the other tasks.
_OTHERS = 'a task does not know the stream time of others: let the idle timeout follow "wall_clock"'

_CUSTOM_STORE = (
    Capability.REFUSED,
    "on Spark stores are opened for each micro-batch, from rows in Spark's state, and a store of your own keeps its "
    "data itself: use a store of Stores",
)

_WAITS = (
    Capability.COARSER,
    "your function runs on Spark's executors, and again for records of a micro-batch that Spark repeats; a micro-batch "
    "waits for all its calls and batches, and a lifespan lasts for one micro-batch",
)

#: Operators with stores whose results for a key depend only on the records of that key, in their order.
_BY_KEY = (
    "ForeignTableJoinProcessor",
    "KStreamAggregate",
    "KStreamCountWindowAggregate",
    "KStreamKTableJoin",
    "KStreamReduce",
    "KTableAggregate",
    "KTableKTableInnerJoin",
    "KTableKTableJoinMerger",
    "KTableKTableLeftJoin",
    "KTableKTableOuterJoin",
    "KTableKTableRightJoin",
    "KTableReduce",
    "KTableSource",
    "SubscriptionJoinProcessor",
    "SubscriptionReceiveProcessor",
)

#: By the operators' class names, which are Kafka Streams'.
OPERATORS: Mapping[str, tuple[Capability, str]] = {
    **dict.fromkeys(
        (
            *_BY_KEY,
            "KStreamBranch",
            "KStreamDeduplicate",
            "KStreamFilter",
            "KStreamFlatMap",
            "KStreamFlatMapValues",
            "KStreamJoinWindow",
            "KStreamKStreamJoinLeftSide",
            "KStreamKStreamJoinRightSide",
            "KStreamKStreamSelfJoin",
            "KStreamMap",
            "KStreamMapValues",
            "KStreamSelectKey",
            "KStreamSessionWindowAggregate",
            "KStreamSlidingWindowAggregate",
            "KStreamWindowAggregate",
            "KTableFilter",
            "KTableMapValues",
            "KTablePassThrough",
            "KTableRepartitionMap",
            "KTableSuppressProcessor",
            "KTableToStream",
            "PassThrough",
            "SubscriptionSendProcessor",
        ),
        _IDENTICAL,
    ),
    "KStreamPeek": _SIDE_EFFECT,
    "KStreamPrint": _SIDE_EFFECT,
    "KTableTransformValues": _USER_OBJECT,
    "ProcessorOperator": _USER_OBJECT,
    "KStreamGlobalKTableJoin": _GLOBAL,
    **dict.fromkeys(
        (
            "KStreamFilterAsync",
            "KStreamFlatMapValuesAsync",
            "KStreamForeachAsync",
            "KStreamMapBatches",
            "KStreamMapValuesAsync",
        ),
        _WAITS,
    ),
    "SinkOperator": (
        Capability.REFUSED,
        "a sink keeps offsets of Kafka's partitions, and Spark keeps its own in its checkpoint: write the stream to a "
        "topic, and let another application read it into the sink",
    ),
    "ResponseJoinProcessor": (
        Capability.COARSER,
        "of several updates of a left row in one micro-batch only the last is joined, as locally while responses are "
        "late: the final rows are the same, with fewer intermediate results",
    ),
}

#: Stores in which nothing expires.
_UNTIMED = (StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.FOREIGN_KEY_SUBSCRIPTION)
_BUCKET = (
    "stream time, which decides lateness and when windows close, is that of the keys in a bucket "
    "(penstock.spark.buckets)"
)
_SENT_ON = (
    "records of keys in different buckets may be forwarded in another order (penstock.spark.buckets): later operators "
    "see them like records of different partitions"
)
_MERGED = (
    "records of several topics are ordered by timestamp within a bucket only (penstock.spark.buckets): joins of "
    "records whose timestamps go back may find other matches"
)
_MERGING = (Capability.COARSER, _MERGED)
_CACHED = "one update per key and micro-batch (locally: per key and commit) from {}, which has a record cache"
_IN_TRANSACTIONS = (
    "what a task sends in a micro-batch is one transaction, visible at its end (locally: every commit.interval.ms); "
    "a function must do the same for the same records, because Spark may run a micro-batch again"
)
_THROTTLED = (
    "results of closed windows are emitted when a record arrives, at most once a second by the wall clock, on both "
    "engines: the same results, at other positions among the rest"
)


@dataclass(frozen=True, slots=True)
class SubtopologyReport:
    """One sub-topology: whether it is stateless, the number of tasks per partition, and the findings for its nodes."""

    number: int
    stateless: bool
    buckets: int
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        by_task = f"by {'task' if self.buckets == 1 else f'key, in {self.buckets} buckets'} (transformWithState)"
        how = "stateless, by Arrow batches (mapInArrow)" if self.stateless else by_task
        return "\n".join((f"Sub-topology {self.number}: {how}", *(f"  {finding}" for finding in self.findings)))


@dataclass(frozen=True, slots=True)
class CapabilityReport:
    """The behavior of a topology on Spark; ``str()`` is the output of ``penstock plan --engine spark``."""

    subtopologies: tuple[SubtopologyReport, ...]
    general: tuple[Finding, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings."""
        return (*self.general, *(finding for report in self.subtopologies for finding in report.findings))

    @property
    def capability(self) -> Capability:
        """The topology's: the worst of its operators'."""
        found = {finding.capability for finding in self.findings}
        order = (Capability.REFUSED, Capability.COARSER, Capability.IDENTICAL)
        return next((capability for capability in order if capability in found), Capability.IDENTICAL)

    def check(self) -> None:
        """Raise TopologyError that lists all refused operators, if any."""
        refused = [str(finding) for finding in self.findings if finding.capability is Capability.REFUSED]
        if refused:
            raise TopologyError("The topology cannot run on Spark. " + "; ".join(refused))

    def as_json(self) -> dict[str, Any]:
        """Return it for programs: the overall result, each sub-topology, and findings for the whole application."""
        return {
            "capability": self.capability.value,
            "subtopologies": [
                {"id": one.number, "findings": [finding.as_json() for finding in one.findings]}
                for one in self.subtopologies
            ],
            "general": [finding.as_json() for finding in self.general],
        }

    def __str__(self) -> str:
        general = [f"{finding}" for finding in self.general]
        return "\n".join((*map(str, self.subtopologies), *general, f"In all: {self.capability.value}"))


def report_capabilities(topology: Topology, config: StreamsConfig) -> CapabilityReport:
    """Return the report of a topology; config: a StreamsConfig. Topics that match patterns need not be known."""
    builder = topology.internal_builder
    built = builder.build_subtopologies(config, frozenset())
    internal = frozenset(name for each in built for name in each.repartition_topics)
    reports = tuple(
        SubtopologyReport(
            each.subtopology,
            is_stateless(each, config),
            buckets_of(each, config),
            tuple(_findings(each, config, internal)),
        )
        for each in built
    )
    return CapabilityReport(reports, tuple(_general(topology, config)))


def is_stateless(topology: ProcessorTopology, config: StreamsConfig) -> bool:
    """Return whether a sub-topology needs neither stores, nor an order of records, nor their task's stream time."""
    operators = (node.operator for node in topology.nodes.values() if isinstance(node, ProcessorNode))
    return (
        not topology.stores
        and not any(type(operator).__name__ == "ProcessorOperator" for operator in operators)
        and not _extracts_timestamps(topology, config)
    )


def _extracts_timestamps(topology: ProcessorTopology, config: StreamsConfig) -> bool:
    sources = (node for node in topology.nodes.values() if isinstance(node, SourceNode))
    return config.get("default.timestamp.extractor") not in (None, "FailOnInvalidTimestamp") or any(
        source.timestamp_extractor not in (None, fail_on_invalid_timestamp) for source in sources
    )


def buckets_of(topology: ProcessorTopology, config: StreamsConfig) -> int:
    """Return how many tasks share the keys of a partition: one if the user's objects may see all of them."""
    by_task = is_stateless(topology, config) or may_punctuate(topology) or _extracts_timestamps(topology, config)
    buckets: int = 1 if by_task else config["penstock.spark.buckets"]
    return buckets


def may_punctuate(topology: ProcessorTopology) -> bool:
    """Return whether the wall clock matters to a sub-topology.

    To the user's objects, which may schedule punctuations, to rows that end, or to sources that may be idle.
    """
    if topology.idle_timeout is not None:
        return True
    ttls = [store.ttl for store in topology.stores.values() if store.ttl is not None]
    if any(ttl.clock is Punctuation.WALL_CLOCK_TIME for ttl in ttls):
        return True
    operators = (node.operator for node in topology.nodes.values() if isinstance(node, ProcessorNode))
    return any(type(operator).__name__ in ("ProcessorOperator", "KTableTransformValues") for operator in operators)


def _general(topology: Topology, config: StreamsConfig) -> Iterator[Finding]:
    if topology.internal_builder.global_stores:
        names = ", ".join(topology.internal_builder.global_stores)
        yield Finding(f"global stores {names}", *_GLOBAL)
    if config["processing.guarantee"] == EXACTLY_ONCE_V2:
        yield Finding(f"processing.guarantee={EXACTLY_ONCE_V2}", Capability.COARSER, _IN_TRANSACTIONS)


def _findings(topology: ProcessorTopology, config: StreamsConfig, internal: frozenset[str]) -> Iterator[Finding]:
    for node in topology.nodes.values():
        capability, text = _capability(node, topology, config, internal)
        yield Finding(node.name, capability, text)


def _capability(
    node: Node, topology: ProcessorTopology, config: StreamsConfig, internal: frozenset[str]
) -> tuple[Capability, str]:
    if isinstance(node, SourceNode):
        if topology.idle_timeout is not None and topology.idle_timeout.follows == "others":
            return Capability.REFUSED, _OTHERS
        return _MERGING if _merges(topology, config) and _source(node) == _IDENTICAL else _source(node)
    if isinstance(node, SinkNode):
        sends_on = node.topic in internal and buckets_of(topology, config) > 1
        return (Capability.COARSER, _SENT_ON) if sends_on else _IDENTICAL
    if any(name in topology.stores and topology.stores[name].backend is StoreBackend.CUSTOM for name in node.stores):
        return _CUSTOM_STORE
    capability, text = operator_capability(node.operator)
    cached = [
        name
        for name in node.stores
        if config["statestore.cache.max.bytes"] > 0
        and name in topology.stores
        and topology.stores[name].caching
        and not topology.stores[name].retain_duplicates
    ]
    if capability is not Capability.IDENTICAL:
        return capability, text
    coarser = [_CACHED.format(", ".join(cached))] if cached else []
    if _waits_for_the_clock(node.operator, config):
        coarser.append(_THROTTLED)
    if buckets_of(topology, config) > 1 and not _is_by_key(node, topology):
        coarser.append(_BUCKET)
    return (Capability.COARSER, "; ".join(coarser)) if coarser else (capability, text)


def _waits_for_the_clock(operator: Operator, config: StreamsConfig) -> bool:
    """Return whether results of closed windows wait for a wall-clock interval, on both engines."""
    if isinstance(operator, KStreamKStreamJoin):
        return operator.outer_join_window_name is not None and config.get(stream_join.EMIT_INTERVAL_KEY, 1) > 0
    on_close = isinstance(operator, WindowedAggregator) and operator.on_close
    return on_close and config.get(window_close.EMIT_INTERVAL_KEY, 1) > 0


def _merges(topology: ProcessorTopology, config: StreamsConfig) -> bool:
    """Return whether each bucket of a sub-topology merges several topics' records into one order."""
    topics = [topic for node in topology.nodes.values() if isinstance(node, SourceNode) for topic in node.topics]
    return len(topics) > 1 and buckets_of(topology, config) > 1


def _is_by_key(node: ProcessorNode, topology: ProcessorTopology) -> bool:
    stores = [topology.stores[name] for name in node.stores if name in topology.stores]
    name = type(node.operator).__name__
    return not stores or (
        name in _BY_KEY
        and all(store.kind in _UNTIMED and store.max_entries is None and not store.is_dated for store in stores)
    )


def _source(node: SourceNode) -> tuple[Capability, str]:
    if isinstance(node.auto_offset_reset, ResetByDuration) or node.auto_offset_reset is AutoOffsetReset.NONE:
        return Capability.REFUSED, "Spark starts at the earliest or latest record: set offset_reset to one of them"
    if node.pattern is not None:
        return Capability.REFUSED, "the topics of a checkpoint are fixed: name them instead of giving a pattern"
    return _IDENTICAL


def operator_capability(operator: Operator) -> tuple[Capability, str]:
    """Return the table's finding for an operator. Others are refused."""
    name = type(operator).__name__
    return OPERATORS.get(name, (Capability.REFUSED, f"the operator {name} is not known to the Spark engine"))
