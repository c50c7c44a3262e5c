"""Settings of a streams group (KIP-1071), which are the broker's."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.waiting import PATIENCE_SECONDS

#: By default a member sends a heartbeat every 5 s, and its session times out after 45 s.
QUICK = {"heartbeat_interval_ms": 200, "session_timeout_ms": 3_000, "assignment_interval_ms": 0}


def configure_streams_group(bootstrap_servers: str, group_id: str, **settings: int) -> None:
    """Configure the group on the broker: ``num_standby_replicas=1`` is streams.num.standby.replicas."""
    entries = [
        ConfigEntry(f"streams.{name.replace('_', '.')}", str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in {**QUICK, **settings}.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group_id, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)
