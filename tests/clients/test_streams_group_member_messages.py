"""The contents of a streams group's messages, and the topology as it was declared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from penstock import StreamsBuilder, TimeWindows
from penstock.clients.group import streams_messages
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.group.streams_values import (
    Heartbeat,
    HeartbeatResponse,
    HostPartitions,
    InternalTopic,
    Report,
    StreamsSubtopology,
    StreamsTopology,
    Tasks,
)
from penstock.clients.protocol.compact import CompactReader
from penstock.clients.protocol.schema import Structure
from penstock.clients.protocol.streams_messages import STREAMS_GROUP_HEARTBEAT
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import StreamsError
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.group.assignment.streams_topology import streams_topology

CONFIG = GroupMemberConfig("g", "slot-0", max_poll_interval_ms=1_234)
NO_TOPOLOGY = StreamsTopology(())


# Heartbeats


def sent(heartbeat: Heartbeat, topology: StreamsTopology = NO_TOPOLOGY, version: int = 1) -> Any:
    """Return a heartbeat after encoding and decoding."""
    request = streams_messages.heartbeat(CONFIG, "rack-1", topology, "me", heartbeat, version)
    assert request.version_max == version
    return read(STREAMS_GROUP_HEARTBEAT.request, request.body, version)


def read(definition: Structure, values: Mapping[str, Any], version: int) -> Any:
    """Return a structure after encoding and decoding."""
    return definition.decode(CompactReader(definition.encode(values, version, True)), version, True)


def test_a_heartbeat_without_changes_has_only_the_members_identity() -> None:
    request = sent(Heartbeat(0, 5, 7))
    identity = (request.group_id, request.member_id, request.member_epoch, request.endpoint_information_epoch)
    assert identity == ("g", "me", 5, 7)
    assert request.instance_id == "slot-0"
    assert request.rebalance_timeout_ms == -1
    for name in ("rack_id", "topology", "process_id", "user_endpoint", "client_tags", "task_offsets", "active_tasks"):
        assert getattr(request, name) is None, name


def test_a_joining_heartbeat_has_all_fields() -> None:
    report = Report(UUID(int=9), user_endpoint="[::1]:8080", client_tags={"zone": "z", "az": "a"})
    owned = Tasks(frozenset({TaskId(1, 3), TaskId(0, 0), TaskId(1, 2)}), frozenset({TaskId(0, 1)}))
    heartbeat = Heartbeat(0, 0, -1, report, owned, {TaskId(0, 1): 2**63 - 1}, {TaskId(0, 1): 4}, True)
    subtopology = StreamsSubtopology(
        1,
        ("a", "b"),
        ("x-repartition",),
        (InternalTopic("r-repartition", 3, 2, {"k": "v", "a": "b"}), InternalTopic("s-repartition")),
        (InternalTopic("c-changelog", 0, -1, {"cleanup.policy": "compact"}),),
        (("b", "s-repartition"),),
    )
    request = sent(heartbeat, StreamsTopology((subtopology,)))
    assert (request.rack_id, request.rebalance_timeout_ms, request.process_id) == ("rack-1", 1_234, str(UUID(int=9)))
    assert (request.user_endpoint.host, request.user_endpoint.port) == ("[::1]", 8080)
    assert [(tag.key, tag.value) for tag in request.client_tags] == [("az", "a"), ("zone", "z")]
    assert [(ids.subtopology_id, ids.partitions) for ids in request.active_tasks] == [("0", [0]), ("1", [2, 3])]
    assert [(ids.subtopology_id, ids.partitions) for ids in request.standby_tasks] == [("0", [1])]
    assert request.warmup_tasks == []
    assert [(o.subtopology_id, o.partition, o.offset) for o in request.task_offsets] == [("0", 1, 2**63 - 1)]
    assert [(o.subtopology_id, o.partition, o.offset) for o in request.task_end_offsets] == [("0", 1, 4)]
    assert request.shutdown_application
    (described,) = request.topology.subtopologies
    assert (request.topology.epoch, described.subtopology_id) == (0, "1")
    assert (described.source_topics, described.source_topic_regex) == (["a", "b"], [])
    assert described.repartition_sink_topics == ["x-repartition"]
    repartition, derived = described.repartition_source_topics
    assert (repartition.name, repartition.partitions, repartition.replication_factor) == ("r-repartition", 3, 2)
    assert [(config.key, config.value) for config in repartition.topic_configs] == [("a", "b"), ("k", "v")]
    assert (derived.partitions, derived.replication_factor) == (0, -1)
    assert [topic.name for topic in described.state_changelog_topics] == ["c-changelog"]
    (group,) = described.copartition_groups
    assert (group.source_topics, group.source_topic_regex, group.repartition_source_topics) == ([1], [], [1])


def test_older_brokers_get_no_fields_that_they_refuse() -> None:
    report = Report(UUID(int=9))
    request = sent(Heartbeat(0, 0, -1, report, Tasks(), {TaskId(0, 1): 3}, {TaskId(0, 1): 4}), version=0)
    assert (request.instance_id, request.task_offsets, request.task_end_offsets) == (None, None, None)
    assert request.rebalance_timeout_ms == 1_234
    leaving = streams_messages.leave("g", "me", "slot-0", comes_back=False, version=0)
    assert leaving.body["instance_id"] is None


@pytest.mark.parametrize("endpoint", ["host", "host:", ":1", "host:x", "host:65536"])
def test_a_malformed_endpoint_is_an_error(endpoint: str) -> None:
    report = Report(UUID(int=9), user_endpoint=endpoint)
    with pytest.raises(StreamsError, match="not of the form host:port"):
        sent(Heartbeat(0, 0, -1, report))


@pytest.mark.parametrize(("comes_back", "epoch"), [(False, -1), (True, -2)])
def test_leaving_is_a_heartbeat_with_a_special_epoch(comes_back: bool, epoch: int) -> None:
    request = streams_messages.leave("g", "me", "slot-0", comes_back, version=1)
    found = read(STREAMS_GROUP_HEARTBEAT.request, request.body, 1)
    assert (found.member_id, found.instance_id, found.member_epoch, found.topology) == ("me", "slot-0", epoch, None)


# Responses


def received(version: int = 1, **values: Any) -> HeartbeatResponse:
    response = {
        "member_id": "me",
        "member_epoch": 3,
        "heartbeat_interval_ms": 5_000,
        "task_offset_interval_ms": 60_000,
        "endpoint_information_epoch": 2,
        "acceptable_recovery_lag": 10,
        "acceptable_recovery_lag_legacy": 11,
        **values,
    }
    return streams_messages.heartbeat_response(read(STREAMS_GROUP_HEARTBEAT.response, response, version))


def task_ids(subtopology: str, *partitions: int) -> dict[str, Any]:
    return {"subtopology_id": subtopology, "partitions": partitions}


@pytest.mark.parametrize(("version", "lag"), [(0, 11), (1, 10)])
def test_a_response_without_changes(version: int, lag: int) -> None:
    assert received(version) == HeartbeatResponse(3, 5_000, 60_000, lag, {}, None, 2, None)


def test_a_response_with_tasks_statuses_and_hosts() -> None:
    def host(active: int, **more: Any) -> dict[str, Any]:
        topics = [{"topic": "t", "partitions": [active]}]
        return {"user_endpoint": {"host": "h", "port": 65_535}, "active_partitions": topics, **more}

    answer = received(
        status=[{"status_code": 5, "status_detail": "later"}, {"status_code": 77, "status_detail": "new"}],
        active_tasks=[task_ids("0", 1, 2)],
        standby_tasks=[task_ids("1", 0)],
        warmup_tasks=[],
        partitions_by_user_endpoint=[host(0), host(1, standby_partitions=[{"topic": "u", "partitions": [2]}])],
    )
    assert answer.statuses == {5: "later", 77: "new"}
    assert answer.tasks == Tasks(frozenset({TaskId(0, 1), TaskId(0, 2)}), frozenset({TaskId(1, 0)}))
    t0, t1, u2 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 2)
    assert answer.hosts == HostPartitions({"h:65535": frozenset({t0, t1})}, {"h:65535": frozenset({u2})})


def test_subtopology_ids_that_are_not_numbers_are_an_error() -> None:
    with pytest.raises(StreamsError, match="program other than Penstock"):
        received(active_tasks=[task_ids("orders", 0)], standby_tasks=[], warmup_tasks=[])


# Topologies


def described(builder: StreamsBuilder, **config: Any) -> StreamsTopology:
    settings = StreamsConfig({"application.id": "app", "bootstrap.servers": "unused:1", **config})
    known = frozenset({"left", "right"})
    return streams_topology(builder.build(settings).internal_builder.build_subtopologies(settings, known), settings)


def test_a_declared_topology_as_sent_to_the_broker() -> None:
    builder = StreamsBuilder()
    left, right = builder.stream("left"), builder.table("right")
    rekeyed = left.select_key(lambda key, value: value).repartition(name="by-value", number_of_partitions=3)
    rekeyed.join(right, lambda a, b: a, name="joined")
    windows = TimeWindows(timedelta(hours=1), grace=timedelta(0))
    left.group_by_key().windowed_by(windows).count(store="per-hour").to_stream().to("out")
    first, second = described(builder, **{"topic.min.insync.replicas": 2, "replication.factor": 3}).subtopologies
    assert (first.subtopology, first.source_topics) == (0, ("left",))
    assert first.repartition_sink_topics == ("app-by-value-repartition",)
    assert first.copartition_groups == ()
    assert [topic.name for topic in first.changelog_topics] == ["app-per-hour-changelog"]
    per_hour = first.changelog_topics[0]
    assert (per_hour.partitions, per_hour.replication_factor) == (0, 3)
    assert per_hour.config["cleanup.policy"] == "compact,delete"
    assert per_hour.config["min.insync.replicas"] == "2"
    assert (second.subtopology, second.source_topics) == (1, ("right",))
    (repartition,) = second.repartition_source_topics
    assert (repartition.name, repartition.partitions) == ("app-by-value-repartition", 3)
    assert repartition.config["cleanup.policy"] == "delete"
    assert second.copartition_groups == (("app-by-value-repartition", "right"),)
    assert second.repartition_sink_topics == ()


def test_a_source_topic_that_serves_as_changelog_is_listed_as_both() -> None:
    """Kafka Streams does so too; the broker creates no topic for a name that is also a source."""
    builder = StreamsBuilder()
    builder.table("right", store="rows").filter(lambda key, value: True, store="kept")
    (subtopology,) = described(builder, **{"topology.optimization": "reuse.ktable.source.topics"}).subtopologies
    assert subtopology.source_topics == ("right",)
    assert [topic.name for topic in subtopology.changelog_topics] == ["app-kept-changelog", "right"]


def test_patterns_are_refused() -> None:
    builder = StreamsBuilder()
    builder.stream(re.compile("l.*")).to("out")
    with pytest.raises(StreamsError, match=r"'l\.\*'.*group\.protocol=classic"):
        described(builder)
