"""The broker has the settings of streams groups that this application names, and takes them as it writes them."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, ResourceType

from penstock.topology.config.streams_config import StreamsConfig
from penstock.workers.group.assignment.streams_settings import GROUP_SETTINGS, group_settings
from tests.waiting import change_settings

pytestmark = pytest.mark.broker


def test_the_broker_takes_the_settings_of_the_command(admin: AdminClient, application_id: str) -> None:
    given = {
        "num.standby.replicas": 1,
        "session.timeout.ms": 46_000,
        "heartbeat.interval.ms": 6_000,
        "max.warmup.replicas": 3,
        "acceptable.recovery.lag": 7,
        "rack.aware.assignment.tags": "zone,cluster",
    }
    assert given.keys() == GROUP_SETTINGS.keys()
    settings = group_settings(StreamsConfig({**given, "client.tag.zone": "a", "client.tag.cluster": "b"}))
    settings["streams.assignor.name"] = "sticky"
    change_settings(
        admin, ResourceType.GROUP, application_id, {name: value.strip("[]") for name, value in settings.items()}
    )
