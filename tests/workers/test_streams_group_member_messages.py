"""What a streams group's messages hold: the same fields as Kafka's own, and the topology as it was declared."""

from __future__ import annotations

import configparser
import json
import re
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import penstock.jar_lock
from penstock import StreamsBuilder, TimeWindows
from penstock.topology.errors import StreamsError
from penstock.topology.records import TaskId, TopicPartition
from penstock.topology.streams_config import StreamsConfig
from penstock.workers.assignment.subscription_info import SubscriptionInfo
from penstock.workers.membership import streams_messages
from penstock.workers.membership.requests import GroupMemberConfig
from penstock.workers.membership.streams_messages import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from penstock.workers.membership.streams_topology import (
    InternalTopic,
    StreamsSubtopology,
    StreamsTopology,
    streams_topology,
)
from penstock.workers.membership.streams_values import Answer, Heartbeat, HostPartitions, Tasks

ROOT = Path(__file__).resolve().parents[2]
CONFIG = GroupMemberConfig("g", "slot-0", max_poll_interval_ms=1_234)
NO_TOPOLOGY = StreamsTopology((), {})
MESSAGES = [
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
]


# The definitions


def fields(definition: dict[str, Any], version_max: int) -> list[Any]:
    """Return what a message definition says of its fields up to a version, structures resolved."""
    structures = {found["name"]: found["fields"] for found in definition.get("commonStructs", [])}

    def tree(listed: list[dict[str, Any]]) -> list[Any]:
        return [
            (
                *(str(found.get(key)) for key in ("name", "type", "versions", "nullableVersions", "default", "tag")),
                tree(found.get("fields") or structures.get(found["type"].removeprefix("[]"), [])),
            )
            for found in listed
            if int(re.split(r"[-+]", found["versions"])[0]) <= version_max
        ]

    return tree(definition["fields"])


@pytest.mark.broker  # its jars
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_our_message_definitions_say_what_kafkas_say(message: Any) -> None:
    name = message.__name__
    lock = penstock.jar_lock.read_lock(ROOT / "penstock" / "broker.lock")
    (jar,) = penstock.jar_lock.fetch_jars([found for found in lock if found.name == "kafka-clients"])
    text = zipfile.ZipFile(jar).read(f"common/message/{name}.json").decode()
    theirs = json.loads(re.sub(r"(?m)^\s*//.*$", "", text))
    ours = json.loads(re.sub(r"(?m)^\s*//.*$", "", (ROOT / "workers" / "membership" / f"{name}.json").read_text()))
    version_max = int(ours["validVersions"].rpartition("-")[2])
    assert int(theirs["validVersions"].rpartition("-")[2]) >= version_max
    for key in ("apiKey", "type", "name", "flexibleVersions"):
        assert ours[key] == theirs[key]
    assert fields(ours, version_max) == fields(theirs, version_max)


def test_a_wheel_takes_the_definitions_along() -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    assert parser["options.package_data"]["penstock.workers.membership"] == "*.json"


# Heartbeats


def sent(heartbeat: Heartbeat, topology: StreamsTopology = NO_TOPOLOGY, version: int = 1) -> Any:
    """Return a heartbeat as it comes out at the other end."""
    request = streams_messages.heartbeat(CONFIG, "rack-1", topology, "me", heartbeat, version)
    return StreamsGroupHeartbeatRequest.decode(request.encode(version=version), version=version)


def test_a_heartbeat_without_news_holds_who_it_is_and_nothing_else() -> None:
    request = sent(Heartbeat(0, 5, 7))
    identity = (request.group_id, request.member_id, request.member_epoch, request.endpoint_information_epoch)
    assert identity == ("g", "me", 5, 7)
    assert request.instance_id == "slot-0"
    assert request.rebalance_timeout_ms == -1
    for name in ("rack_id", "topology", "process_id", "user_endpoint", "client_tags", "task_offsets", "active_tasks"):
        assert getattr(request, name) is None, name


def test_a_joining_heartbeat_holds_everything() -> None:
    report = SubscriptionInfo(1, 1, UUID(int=9), user_endpoint="[::1]:8080", client_tags={"zone": "z", "az": "a"})
    owned = Tasks(frozenset({TaskId(1, 3), TaskId(0, 0), TaskId(1, 2)}), frozenset({TaskId(0, 1)}))
    heartbeat = Heartbeat(0, 0, -1, report, owned, {TaskId(0, 1): 2**63 - 1}, {TaskId(0, 1): 4}, True)
    subtopology = StreamsSubtopology(
        1,
        ("a", "b"),
        ("x-repartition",),
        (InternalTopic("r-repartition", 3, 2, {"k": "v", "a": "b"}), InternalTopic("s-repartition")),
        (InternalTopic("c-changelog", 0, -1, {"cleanup.policy": "compact"}),),
        (frozenset({"b", "s-repartition"}),),
    )
    request = sent(heartbeat, StreamsTopology((subtopology,), {}))
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


def test_older_brokers_are_not_told_what_they_refuse() -> None:
    report = SubscriptionInfo(1, 1, UUID(int=9))
    request = sent(Heartbeat(0, 0, -1, report, Tasks(), {TaskId(0, 1): 3}, {TaskId(0, 1): 4}), version=0)
    assert (request.instance_id, request.task_offsets, request.task_end_offsets) == (None, None, None)
    assert request.rebalance_timeout_ms == 1_234
    leaving = streams_messages.leave(CONFIG, "me", comes_back=False, version=0)
    assert leaving.instance_id is None


@pytest.mark.parametrize("endpoint", ["host", "host:", ":1", "host:x", "host:65536"])
def test_an_endpoint_of_another_form_is_an_error(endpoint: str) -> None:
    report = SubscriptionInfo(1, 1, UUID(int=9), user_endpoint=endpoint)
    with pytest.raises(StreamsError, match="not of the form host:port"):
        sent(Heartbeat(0, 0, -1, report))


@pytest.mark.parametrize(("comes_back", "epoch"), [(False, -1), (True, -2)])
def test_leaving_is_a_heartbeat_with_an_epoch_of_its_own(comes_back: bool, epoch: int) -> None:
    request = streams_messages.leave(CONFIG, "me", comes_back, version=1)
    read = StreamsGroupHeartbeatRequest.decode(request.encode(version=1), version=1)
    assert (read.member_id, read.instance_id, read.member_epoch, read.topology) == ("me", "slot-0", epoch, None)


# Answers


def received(version: int = 1, **values: Any) -> Answer:
    response = StreamsGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=0,
        member_id="me",
        member_epoch=3,
        heartbeat_interval_ms=5_000,
        task_offset_interval_ms=60_000,
        endpoint_information_epoch=2,
        **{"status": [], "acceptable_recovery_lag": 10, "acceptable_recovery_lag_legacy": 11, **values},
    )
    return streams_messages.answer(
        StreamsGroupHeartbeatResponse.decode(response.encode(version=version), version=version)
    )


@pytest.mark.parametrize(("version", "lag"), [(0, 11), (1, 10)])
def test_an_answer_without_news(version: int, lag: int) -> None:
    assert received(version) == Answer(3, 5_000, 60_000, lag, {}, None, 2, None)


def test_an_answer_with_tasks_statuses_and_hosts() -> None:
    endpoint = StreamsGroupHeartbeatResponse.EndpointToPartitions.Endpoint
    answer = received(
        status=[(5, "later"), (77, "new")],
        active_tasks=[("0", [1, 2])],
        standby_tasks=[("1", [0])],
        warmup_tasks=[],
        partitions_by_user_endpoint=[
            (endpoint(host="h", port=65_535), [("t", [0])], []),
            (endpoint(host="h", port=65_535), [("t", [1])], [("u", [2])]),
        ],
    )
    assert answer.statuses == {5: "later", 77: "new"}
    assert answer.tasks == Tasks(frozenset({TaskId(0, 1), TaskId(0, 2)}), frozenset({TaskId(1, 0)}))
    t0, t1, u2 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 2)
    assert answer.hosts == HostPartitions({"h:65535": frozenset({t0, t1})}, {"h:65535": frozenset({u2})})


def test_sub_topologies_that_are_not_numbers_are_an_error() -> None:
    with pytest.raises(StreamsError, match="program that is not Penstock"):
        received(active_tasks=[("orders", [0])], standby_tasks=[], warmup_tasks=[])


# Topologies


def described(builder: StreamsBuilder, **config: Any) -> StreamsTopology:
    settings = StreamsConfig({"application.id": "app", "bootstrap.servers": "unused:1", **config})
    known = frozenset({"left", "right"})
    return streams_topology(builder.build(settings).internal_builder.build_subtopologies(settings, known), settings)


def test_a_declared_topology_as_the_broker_is_told_it() -> None:
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
    """Kafka Streams does so too; the broker makes no topic of a name that it knows as a source."""
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
