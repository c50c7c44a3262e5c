"""Broker-side assignment: settings that belong to the group on the broker, and not to the member."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import UUID

import pytest

from penstock.clients.group.streams_values import NO_LAG
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.group.assignment.streams_settings import tell_broker_settings
from penstock.workers.group.task_offset_reporter import INTERVAL_MS, TaskOffsetReporter
from tests.direct_kafka import DirectKafka
from tests.workers.counting import CHANGELOG, IN, OUT, counting, feed
from tests.workers.thread_stage import Application

LOG = PrefixedLogger("test", "")
REQUIRED = {"application.id": "app", "bootstrap.servers": "broker:9092"}


def test_settings_of_the_group_are_logged_with_the_command_that_sets_them(caplog: pytest.LogCaptureFixture) -> None:
    given = {
        "num.standby.replicas": 1,
        "main.consumer.session.timeout.ms": 6000,
        "max.warmup.replicas": 3,
        "acceptable.recovery.lag": 7,
        "rack.aware.assignment.tags": "zone,cluster",
        "client.tag.zone": "a",
        "client.tag.cluster": "b",
        "task.assignor.class": "StickyTaskAssignor",
    }
    with caplog.at_level(logging.WARNING):
        tell_broker_settings(StreamsConfig({**REQUIRED, **given}), LOG)
    (group, unused) = (record.getMessage() for record in caplog.records)
    names = "num.standby.replicas, session.timeout.ms, max.warmup.replicas, acceptable.recovery.lag"
    assert f"have no effect: {names}, rack.aware.assignment.tags." in group
    assert (
        "kafka-configs --bootstrap-server broker:9092 --alter --entity-type groups --entity-name app "
        "--add-config streams.num.standby.replicas=1,streams.session.timeout.ms=6000,streams.num.warmup.replicas=3,"
        "streams.acceptable.recovery.lag=7,streams.rack.aware.assignment.tags=[zone,cluster]" in group
    )
    assert "task.assignor.class have no effect. The group's setting streams.assignor.name" in unused


def test_defaults_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    tell_broker_settings(StreamsConfig(REQUIRED), LOG)
    assert not caplog.records


def test_task_offsets_are_reported_at_intervals(
    cluster: DirectKafka, application: Callable[..., Application], tmp_path: Path
) -> None:
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 1)
    hosts = [application(counting(), num_standby_replicas=1, state_dir=str(tmp_path / host)) for host in ("a", "b")]
    first = hosts[0].thread(1, process_id=str(UUID(int=1)))
    second = hosts[1].thread(2, process_id=str(UUID(int=2)))
    for _ in range(30):
        first.step()
        second.step()
    feed(cluster, "aab", 0)
    feed(cluster, "ab", 1)
    for _ in range(10):
        first.step().commit()
        second.step().commit()
    told: list[tuple[Mapping[TaskId, int], Mapping[TaskId, int]]] = []
    reporter = TaskOffsetReporter(
        lambda offsets, ends: told.append((offsets, ends)),
        second.task_manager,
        second.changelog_reader,
        hosts[0].stage.clock,
    )
    reporter.maybe_report()
    assert not told
    hosts[0].stage.clock.advance(INTERVAL_MS)
    reporter.maybe_report()
    reporter.maybe_report()
    ((offsets, ends),) = told
    (active,), (standby,) = second.task_manager.active.running, second.task_manager.standby.running
    assert offsets[active] == NO_LAG
    assert active not in ends
    changelog = TopicPartition(CHANGELOG, standby.partition)
    assert offsets[standby] == ends[standby] == cluster.log(changelog).end
