"""Settings that belong to the broker where the broker assigns the tasks (``group.protocol=streams``, KIP-1071)."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.clients.log_context import PrefixedLogger
from penstock.topology.config.streams_config import StreamsConfig

#: The group's setting at the broker, by the name that it has in a classic group's members.
GROUP_SETTINGS: Mapping[str, str] = {
    "num.standby.replicas": "streams.num.standby.replicas",
    "session.timeout.ms": "streams.session.timeout.ms",
    "heartbeat.interval.ms": "streams.heartbeat.interval.ms",
}
#: Used only by the leader of a classic group; the broker has its own assignor.
WITHOUT_EFFECT = (
    "acceptable.recovery.lag",
    "max.warmup.replicas",
    "probing.rebalance.interval.ms",
    "rack.aware.assignment.strategy",
    "rack.aware.assignment.tags",
    "task.assignor.class",
)


def tell_broker_settings(config: StreamsConfig, log: PrefixedLogger) -> None:
    """Warn of settings that were given but go unused, with the command that sets them at the broker."""
    given = {name: group_name for name, group_name in GROUP_SETTINGS.items() if config.origin(name) != "default"}
    if given:
        settings = ",".join(f"{group_name}={config[name]}" for name, group_name in given.items())
        log.warning(
            "With group.protocol=streams what is configured here has no effect for %s: the broker has it, for the "
            "whole group. Set it with: kafka-configs --bootstrap-server %s --alter --entity-type groups --entity-name "
            "%s --add-config %s",
            ", ".join(given),
            config["bootstrap.servers"],
            config["application.id"],
            settings,
        )
    unused = [name for name in WITHOUT_EFFECT if config.origin(name) != "default"]
    if unused:
        log.warning("With group.protocol=streams the broker assigns the tasks: %s have no effect.", ", ".join(unused))
