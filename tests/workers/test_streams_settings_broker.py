"""The broker has the settings of streams groups that this application names, and takes them as it writes them."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from penstock.topology.config.streams_config import StreamsConfig
from penstock.workers.group.assignment.streams_settings import GROUP_SETTINGS, group_settings
from tests.waiting import PATIENCE_SECONDS, eventually

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
    entries = [
        ConfigEntry(name, value.strip("[]"), incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, application_id, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)
    asked = ConfigResource(ResourceType.GROUP, application_id)
    wanted = {name: value.strip("[]") for name, value in settings.items()}

    def found() -> dict[str, str]:
        entries = admin.describe_configs([asked])[asked].result(PATIENCE_SECONDS)
        return {name: entries[name].value for name in wanted if name in entries}

    eventually(lambda: found() == wanted, lambda: f"{found()}, wanted {wanted}")
