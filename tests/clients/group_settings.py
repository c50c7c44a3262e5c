"""Settings of a streams group (KIP-1071), which are the broker's."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, ResourceType

from tests.waiting import change_settings

#: By default a member sends a heartbeat every 5 s.
QUICK = {"heartbeat_interval_ms": 200, "assignment_interval_ms": 0}


def configure_streams_group(bootstrap_servers: str, group_id: str, **settings: int) -> None:
    """Configure the group on the broker: ``num_standby_replicas=1`` is streams.num.standby.replicas."""
    given = {f"streams.{name.replace('_', '.')}": str(value) for name, value in {**QUICK, **settings}.items()}
    change_settings(AdminClient({"bootstrap.servers": bootstrap_servers}), ResourceType.GROUP, group_id, given)
