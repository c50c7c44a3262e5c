"""Settings that the broker owns if it assigns the tasks (``group.protocol=streams``, KIP-1071)."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.clients.log_context import PrefixedLogger
from penstock.topology.config.streams_config import StreamsConfig

#: Group settings of the broker, by the name of the setting in members of a classic group.
GROUP_SETTINGS: Mapping[str, str] = {
    "num.standby.replicas": "streams.num.standby.replicas",
    "session.timeout.ms": "streams.session.timeout.ms",
    "heartbeat.interval.ms": "streams.heartbeat.interval.ms",
    "max.warmup.replicas": "streams.num.warmup.replicas",  # these three since Kafka 4.4
    "acceptable.recovery.lag": "streams.acceptable.recovery.lag",
    "rack.aware.assignment.tags": "streams.rack.aware.assignment.tags",
}
#: Used only by the leader of a classic group; the broker has its own assignor.
WITHOUT_EFFECT = ("probing.rebalance.interval.ms", "rack.aware.assignment.strategy", "task.assignor.class")


def tell_broker_settings(config: StreamsConfig, log: PrefixedLogger) -> None:
    """Warn about configured settings without effect, with the command that sets them on the broker."""
    given = [name for name in GROUP_SETTINGS if config.origin(name) != "default"]
    if given:
        settings = ",".join(f"{name}={value}" for name, value in group_settings(config).items())
        log.warning(
            "With group.protocol=streams these settings of the application have no effect: %s. They belong to the "
            "broker, for the whole group. Set them with: kafka-configs --bootstrap-server %s --alter --entity-type "
            "groups --entity-name %s --add-config %s",
            ", ".join(given),
            config["bootstrap.servers"],
            config["application.id"],
            settings,
        )
    unused = [name for name in WITHOUT_EFFECT if config.origin(name) != "default"]
    if unused:
        log.warning(
            "With group.protocol=streams the broker assigns the tasks: %s have no effect. The group's setting "
            "streams.assignor.name selects one of the broker's assignors, since Kafka 4.4 (KIP-1357).",
            ", ".join(unused),
        )


def group_settings(config: StreamsConfig) -> dict[str, str]:
    """Return the configured settings that the broker has, by its names, as kafka-configs takes them."""
    given = {
        group_name: config[name] for name, group_name in GROUP_SETTINGS.items() if config.origin(name) != "default"
    }
    return {
        name: f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
        for name, value in given.items()
    }
