"""What a topology's operators do on Spark: the same as locally, the same in coarser steps, or nothing.

The table holds every operator of the DSL; a test holds it against the operators that there are. Needs no pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from penstock.topology.errors import TopologyError
from penstock.topology.operators.operator import Operator
from penstock.topology.processor_topology import (
    AutoOffsetReset,
    Node,
    ProcessorNode,
    ProcessorTopology,
    ResetByDuration,
    SinkNode,
    SourceNode,
)
from penstock.topology.topology import Topology


class Capability(Enum):
    """How an operator's results on Spark compare with the local engine's."""

    IDENTICAL = "identical"
    COARSER = "coarser"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is said of one node. text: how it is coarser, or why it is refused and what to do instead."""

    node: str
    capability: Capability
    text: str = ""

    def __str__(self) -> str:
        return f"{self.node}: {self.capability.value}{', ' + self.text if self.text else ''}"


_IDENTICAL = (Capability.IDENTICAL, "")
_SIDE_EFFECT = (
    Capability.COARSER,
    "your function runs on Spark's executors, and again for records of a micro-batch that Spark repeats",
)
_USER_OBJECT = (
    Capability.COARSER,
    "attributes of your object live for one micro-batch: keep in a store what has to last; what init() schedules goes "
    "on, what is scheduled later ends with the micro-batch; the wall clock fires only when records come",
)
_GLOBAL = (
    Capability.REFUSED,
    "tasks on Spark have no global stores: use a table that is co-partitioned with the stream, or a foreign-key join",
)

#: By the operators' class names, which are Kafka Streams'.
OPERATORS: Mapping[str, tuple[Capability, str]] = {
    **dict.fromkeys(
        (
            "ForeignTableJoinProcessor",
            "KStreamAggregate",
            "KStreamBranch",
            "KStreamFilter",
            "KStreamFlatMap",
            "KStreamFlatMapValues",
            "KStreamJoinWindow",
            "KStreamKStreamJoinLeftSide",
            "KStreamKStreamJoinRightSide",
            "KStreamKStreamSelfJoin",
            "KStreamKTableJoin",
            "KStreamMap",
            "KStreamMapValues",
            "KStreamReduce",
            "KStreamSelectKey",
            "KStreamSessionWindowAggregate",
            "KStreamSlidingWindowAggregate",
            "KStreamWindowAggregate",
            "KTableAggregate",
            "KTableFilter",
            "KTableKTableInnerJoin",
            "KTableKTableJoinMerger",
            "KTableKTableLeftJoin",
            "KTableKTableOuterJoin",
            "KTableKTableRightJoin",
            "KTableMapValues",
            "KTablePassThrough",
            "KTableReduce",
            "KTableRepartitionMap",
            "KTableSource",
            "KTableSuppressProcessor",
            "KTableToStream",
            "PassThrough",
            "SubscriptionJoinProcessor",
            "SubscriptionReceiveProcessor",
            "SubscriptionSendProcessor",
        ),
        _IDENTICAL,
    ),
    "KStreamPeek": _SIDE_EFFECT,
    "KStreamPrint": _SIDE_EFFECT,
    "KTableTransformValues": _USER_OBJECT,
    "ProcessorOperator": _USER_OBJECT,
    "KStreamGlobalKTableJoin": _GLOBAL,
    "ResponseJoinProcessor": (
        Capability.COARSER,
        "of several updates of a left row in one micro-batch only the last is answered: final rows are the same, fewer "
        "results lie between them",
    ),
}

_CACHED = "one update per key and micro-batch (locally: per key and commit) from {}, which has a record cache"


@dataclass(frozen=True, slots=True)
class SubtopologyReport:
    """One sub-topology: whether it is stateless, and what is said of its nodes."""

    number: int
    stateless: bool
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        how = "stateless, by Arrow batches (mapInArrow)" if self.stateless else "by task (transformWithState)"
        return "\n".join((f"Sub-topology {self.number}: {how}", *(f"  {finding}" for finding in self.findings)))


@dataclass(frozen=True, slots=True)
class CapabilityReport:
    """What Spark makes of a topology; ``str()`` is what ``penstock describe --engine spark`` prints."""

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
        """Raise TopologyError with everything that is refused, if something is."""
        refused = [str(finding) for finding in self.findings if finding.capability is Capability.REFUSED]
        if refused:
            raise TopologyError("The topology cannot run on Spark. " + "; ".join(refused))

    def __str__(self) -> str:
        general = [f"{finding}" for finding in self.general]
        return "\n".join((*map(str, self.subtopologies), *general, f"In all: {self.capability.value}"))


def report_capabilities(topology: Topology, config: Mapping[str, Any]) -> CapabilityReport:
    """Return the report of a topology; config: a StreamsConfig. Topics that match patterns need not be known."""
    builder = topology.internal_builder
    built = builder.build_subtopologies(config, frozenset())
    reports = tuple(
        SubtopologyReport(each.subtopology, is_stateless(each, config), tuple(_findings(each, config)))
        for each in built
    )
    return CapabilityReport(reports, tuple(_general(topology, config)))


def is_stateless(topology: ProcessorTopology, config: Mapping[str, Any]) -> bool:
    """Return whether records of a sub-topology need neither stores, nor an order, nor their task's stream time."""
    nodes = topology.nodes.values()
    operators = (node.operator for node in nodes if isinstance(node, ProcessorNode))
    sources = (node for node in nodes if isinstance(node, SourceNode))
    return (
        not topology.stores
        and not any(type(operator).__name__ == "ProcessorOperator" for operator in operators)
        and config.get("default.timestamp.extractor") in (None, "FailOnInvalidTimestamp")
        and all(source.timestamp_extractor is None for source in sources)
    )


def _general(topology: Topology, config: Mapping[str, Any]) -> Iterator[Finding]:
    if topology.internal_builder.global_stores:
        names = ", ".join(topology.internal_builder.global_stores)
        yield Finding(f"global stores {names}", *_GLOBAL)
    if config["processing.guarantee"] != "at_least_once":
        yield Finding(
            f"processing.guarantee={config['processing.guarantee']}",
            Capability.REFUSED,
            "what Spark writes to Kafka is at-least-once: set processing.guarantee=at_least_once",
        )


def _findings(topology: ProcessorTopology, config: Mapping[str, Any]) -> Iterator[Finding]:
    for node in topology.nodes.values():
        capability, text = _capability(node, topology, config)
        yield Finding(node.name, capability, text)


def _capability(node: Node, topology: ProcessorTopology, config: Mapping[str, Any]) -> tuple[Capability, str]:
    if isinstance(node, SourceNode):
        return _source(node)
    if isinstance(node, SinkNode):
        return _IDENTICAL
    capability, text = operator_capability(node.operator)
    cached = [
        name
        for name in node.stores
        if config["statestore.cache.max.bytes"] > 0
        and name in topology.stores
        and topology.stores[name].caching
        and not topology.stores[name].retain_duplicates
    ]
    if capability is Capability.IDENTICAL and cached:
        return Capability.COARSER, _CACHED.format(", ".join(cached))
    return capability, text


def _source(node: SourceNode) -> tuple[Capability, str]:
    if isinstance(node.auto_offset_reset, ResetByDuration) or node.auto_offset_reset is AutoOffsetReset.NONE:
        return Capability.REFUSED, "Spark starts at the earliest or latest record: set offset_reset to one of them"
    if node.pattern is not None:
        return Capability.REFUSED, "the topics of a checkpoint are fixed: name them instead of giving a pattern"
    return _IDENTICAL


def operator_capability(operator: Operator) -> tuple[Capability, str]:
    """Return what the table says of an operator. One that is not in it is refused."""
    name = type(operator).__name__
    return OPERATORS.get(name, (Capability.REFUSED, f"the operator {name} is not known to the Spark engine"))
