"""Which host has which part of the state: StreamsMetadataState, and the reports of stream threads for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.partitioners import StreamPartitioner, partition_for_key
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.errors import UnknownStateStoreError
from penstock.topology.records import TopicPartition
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.control.messages import HostsChanged
from penstock.workers.group.streams_metadata import HostInfo, HostReporter, StreamsMetadataState, store_topics
from penstock.workers.group.topic_names import TopicNames
from tests.direct_kafka import DirectKafka
from tests.workers.counting import IN, OUT, counting
from tests.workers.thread_stage import Application, Thread

A, B = HostInfo("a", 80), HostInfo("b", 90)


def partitions(*numbers: int, topic: str = "in") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in numbers)


HOSTS = HostsChanged(
    {"b:90": partitions(2, 3) | partitions(0, topic="other"), "a:80": partitions(0, 1)},
    {"a:80": partitions(2), "b:90": frozenset()},
    {"counts": {"in": 4}, "others": {"other": 1}},
    frozenset({"names"}),
)


def state(hosts: HostsChanged | None = HOSTS, this_host: str = "b:90") -> StreamsMetadataState:
    made = StreamsMetadataState(this_host)
    if hosts is not None:
        made.on_change(hosts)
    return made


def test_each_host_has_its_partitions_stores_and_all_global_stores() -> None:
    first, second = state().all_metadata()
    assert (first.host_info, second.host_info) == (A, B)
    assert first.state_store_names == {"counts", "names"}
    assert first.topic_partitions == partitions(0, 1)
    assert first.standby_state_store_names == {"counts"}
    assert first.standby_topic_partitions == partitions(2)
    assert second.state_store_names == {"counts", "others", "names"}
    assert second.standby_state_store_names == frozenset()


def test_the_hosts_of_a_store() -> None:
    assert [found.host_info for found in state().metadata_for_store("counts")] == [A, B]
    assert [found.host_info for found in state().metadata_for_store("others")] == [B]
    assert [found.host_info for found in state().metadata_for_store("names")] == [A, B]
    with pytest.raises(UnknownStateStoreError, match=r"no state store 'nope'; it has: counts, names, others"):
        state().metadata_for_store("nope")


@pytest.mark.parametrize("key", [f"key-{number}" for number in range(20)])
def test_the_host_of_a_key_is_that_of_its_partition(key: str) -> None:
    found = state().key_query_metadata("counts", key, Serdes.string(), None)
    assert found is not None
    assert found.partition == partition_for_key(key.encode(), 4)
    assert found.active_host == (A if found.partition < 2 else B)
    assert found.standby_hosts == ({A} if found.partition == 2 else frozenset())


def test_a_partitioner_determines_the_host_of_a_key() -> None:
    found = state().key_query_metadata("counts", 7, None, lambda topic, key, value, count: key % count)
    assert found is not None
    assert (found.partition, found.active_host) == (3, B)


class Third(StreamPartitioner[int, None]):
    """A partitioner that sees headers; here there are none."""

    def partitions(self, topic: str, key: int, value: None, headers: Any, partition_count: int) -> set[int]:
        assert (value, headers, partition_count) == (None, None, 4)
        return {key % 2 + 2}


def test_a_partitioner_with_headers_determines_the_host_of_a_key() -> None:
    found = state().key_query_metadata("counts", 7, None, Third())
    assert found is not None
    assert found.partition == 3


@pytest.mark.parametrize("chosen", [[], [1, 2]])
def test_a_key_of_several_partitions_has_no_host(chosen: list[int]) -> None:
    with pytest.raises(ValueError, match=r"must return one partition of in for the key 7, not \["):
        state().key_query_metadata("counts", 7, None, lambda *_: chosen)


@pytest.mark.parametrize("partitioner", [None, lambda *_: None, lambda *_: 4, lambda *_: [4]])
def test_a_key_without_a_partition_is_an_error(partitioner: Any) -> None:
    with pytest.raises(ValueError, match="Key 7 belongs to no partition of in, which has 4"):
        state().key_query_metadata("counts", 7, None, partitioner)


def test_a_global_store_is_on_this_host() -> None:
    found = state().key_query_metadata("names", "x", None, None)
    assert found is not None
    assert (found.active_host, found.partition) == (B, -1)


def test_nothing_is_known_before_the_first_assignment() -> None:
    assert state(None).all_metadata() == state(None).metadata_for_store("counts") == []
    assert state(None).key_query_metadata("counts", "x", Serdes.string(), None) is None


@pytest.mark.parametrize("hosts", [HOSTS, replace(HOSTS, active={}, standby={})], ids=["addresses", "none"])
def test_an_unknown_store_is_an_error_once_a_task_is_assigned(hosts: HostsChanged) -> None:
    """Also if no host has an application.server."""
    for ask in (
        lambda store: state(hosts).metadata_for_store(store),
        lambda store: state(hosts).key_query_metadata(store, "x", Serdes.string(), None),
    ):
        with pytest.raises(UnknownStateStoreError, match=r"no state store 'nope'; it has: counts, names, others"):
            ask("nope")
        for store in ("counts", "names"):
            assert bool(ask(store)) is bool(hosts.active)


def test_a_partition_without_a_known_host_has_no_active_host() -> None:
    hosts = HostsChanged({"a:80": partitions(0)}, {}, {"counts": {"in": 4}})
    found = state(hosts).key_query_metadata("counts", 3, None, lambda topic, key, value, count: key)
    assert found is not None
    assert found.active_host is None


def test_a_store_belongs_to_the_source_topics_that_reach_it() -> None:
    builder = StreamsBuilder()
    builder.stream("a").merge(builder.stream("b")).group_by_key().count(store="first")
    builder.stream("a").group_by(lambda key, value: value).count(store="second")
    config = StreamsConfig({"application.id": "app"})
    topologies = builder.build(config).internal_builder.build_subtopologies(config)
    assert store_topics(topologies, TopicNames("app", topologies)) == {
        "first": {"a", "b"},
        "second": {"app-second-repartition"},
    }


def test_unchanged_hosts_are_reported_once() -> None:
    reports: list[HostsChanged] = []
    reporter = HostReporter(reports.append, [], TopicNames("app", []))
    reporter.on_assignment({}, {}, {})
    reporter.on_assignment({"a:80": partitions(0)}, {}, {})
    reporter.on_assignment({"a:80": partitions(0)}, {}, {})
    reporter.on_assignment({}, {}, {})
    assert [report.active for report in reports] == [{"a:80": partitions(0)}]


@pytest.mark.parametrize("server", ["", "host-1:80"])
def test_a_stream_thread_reports_the_stores_with_its_first_assignment(
    cluster: DirectKafka, application: Callable[..., Application], server: str
) -> None:
    cluster.create_topic(IN, 4)
    cluster.create_topic(OUT, 1)
    thread = application(counting(), application_server=server).thread()
    for _ in range(30):
        thread.step()
    found = state(last_hosts(thread), server)
    assert len(found.metadata_for_store("counts")) == len(found.all_metadata()) == (1 if server else 0)
    with pytest.raises(UnknownStateStoreError, match="no state store 'nope'; it has: counts"):
        found.metadata_for_store("nope")


def last_hosts(thread: Thread) -> HostsChanged:
    return [report for report in thread.control.reports if isinstance(report, HostsChanged)][-1]


def test_stream_threads_report_the_hosts_of_the_whole_group(
    cluster: DirectKafka, application: Callable[..., Application]
) -> None:
    cluster.create_topic(IN, 4)
    cluster.create_topic(OUT, 1)
    hosts = [application(counting(), application_server=f"host-{n}:80") for n in (1, 2)]
    threads = [host.thread(slot, process_id=str(UUID(int=slot))) for slot, host in enumerate(hosts, start=1)]
    for _ in range(30):
        for thread in threads:
            thread.step()
    assert last_hosts(threads[0]) == last_hosts(threads[1])
    told = state(last_hosts(threads[1]), "host-2:80")
    assert [found.host_info for found in told.metadata_for_store("counts")] == [("host-1", 80), ("host-2", 80)]
    for thread, metadata in zip(threads, told.all_metadata(), strict=True):
        running = {p for task in thread.task_manager.active.running.values() for p in task.input_partitions}
        assert metadata.topic_partitions == running
