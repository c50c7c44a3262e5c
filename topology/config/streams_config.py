"""The configuration: Kafka Streams' keys with its defaults (4.4), and Penstock's own under ``penstock.``.

config_keys.KEYS is the only table of keys. A key that is not in it belongs to a client, and has that client's prefix
unless it is one of Kafka's own (client_keys.py); it is passed to the client unchanged.
"""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ConfigError
from .client_keys import UNPREFIXED, WITHOUT_EFFECT
from .config_def import ConfigKey, ConfigType, DerivedDefault
from .config_keys import EXACTLY_ONCE_V2, KEYS, OPTIMIZATIONS

logger = logging.getLogger(__name__)

#: Settings with these prefixes belong to one client (``topic.``: to internal topics) and are passed on unchanged.
CLIENT_PREFIXES = ("main.consumer.", "restore.consumer.", "global.consumer.", "consumer.", "producer.", "admin.")
#: Settings with this prefix belong to the Spark session that Penstock makes.
SPARK_PREFIX = "spark."
PREFIXES = (*CLIENT_PREFIXES, "topic.", "client.tag.", SPARK_PREFIX)
#: Settings that all clients share, so that they need no prefix.
COMMON_CLIENT_PREFIXES = ("ssl.", "sasl.")

_REPLACED_BY = {key.name: key.deprecated_for for key in KEYS.values() if key.deprecated_for}
_DEPRECATED_FORM = {new: old for old, new in _REPLACED_BY.items()}
#: The prefixes under which a client's key is looked up; the first match wins (Kafka: MAIN_CONSUMER_PREFIX).
_PLACES = {"consumer": ("main.consumer.", "consumer.", ""), "producer": ("producer.", ""), None: ("",)}


class StreamsConfig(Mapping[str, Any]):
    """Effective configuration by Kafka Streams' dotted names, typed (Kafka: ``StreamsConfig``). Immutable, picklable.

    values: the given settings, as text or typed; names as in KEYS or with one of PREFIXES. origins: the source of each
    value, for messages and ``penstock config``. Raises ConfigError for an unknown key or an invalid value. Durations in
    ms.

    The effective value of a CLASS key is its word ("fail", "rocksDB" …), or the user's object: ``module:attribute`` is
    imported when the value is read.
    """

    def __init__(self, values: Mapping[str, object] | None = None, origins: Mapping[str, str] | None = None) -> None:
        self._given = dict(values or {})
        self._origins = {name: (origins or {}).get(name, "") for name in self._given}
        for name in self._given:
            check_key(name, self._origins[name])
        self._sources = {name: self._source(key) for name, key in KEYS.items()}
        self._effective = self._defaults() | {
            name: KEYS[name].parse(self._given[source], source, self._origins[source])
            for name, source in self._sources.items()
            if source
        }
        for name, key in KEYS.items():
            if isinstance(key.default, DerivedDefault) and self._sources[name] is None:
                self._effective[name] = key.default.value(self._effective)
        self._validate_together()
        for name, source in self._sources.items():
            if source and KEYS[name].no_effect and self._effective[name] != KEYS[name].default:
                logger.warning("%s has no effect: %s", source, KEYS[name].documentation)
        for name in self._given:
            reason = WITHOUT_EFFECT.get(_without_prefix(name))
            if reason is not None and name not in KEYS:
                logger.warning("%s has no effect: %s.", name, reason)

    @classmethod
    def of(cls, config: StreamsConfig | Mapping[str, object] | None) -> StreamsConfig:
        """Return config itself if it is a StreamsConfig, else a StreamsConfig of its values."""
        return config if isinstance(config, cls) else cls(config)

    def _defaults(self) -> dict[str, object]:
        """Return the plain defaults; for a key without one, or with a derived one, None."""
        return {n: None if isinstance(key.default, DerivedDefault) else key.default for n, key in KEYS.items()}

    def _source(self, key: ConfigKey) -> str | None:
        """Return the name under which a key was set, None if it was not."""
        names = [prefix + key.name for prefix in _PLACES[key.client]]
        if key.name in _DEPRECATED_FORM:
            names.append(_DEPRECATED_FORM[key.name])
        source = next((name for name in names if name in self._given), None)
        if source in _REPLACED_BY and key.name != source:
            logger.warning("%s is deprecated; use %s.", source, key.name)
        return source

    def _validate_together(self) -> None:
        stall, poll = self["penstock.worker.stall.timeout.ms"], self["max.poll.interval.ms"]
        if stall <= poll:
            raise ConfigError(
                f"penstock.worker.stall.timeout.ms={stall} must be above max.poll.interval.ms={poll}: a stream thread "
                "may work that long on one batch. Raise the first or lower the second."
            )
        if self["processing.guarantee"] == EXACTLY_ONCE_V2:
            commit, transaction = self["commit.interval.ms"], self["transaction.timeout.ms"]
            if commit > transaction:
                raise ConfigError(
                    f"commit.interval.ms={commit} is above transaction.timeout.ms={transaction}: the broker aborts "
                    "each transaction before its commit. Lower the first or raise producer.transaction.timeout.ms."
                )
        self._validate_metrics_push()
        tags = self.with_prefix("client.tag.")
        missing = [tag for tag in self["rack.aware.assignment.tags"] if tag not in tags]
        if missing:
            raise ConfigError(
                f"rack.aware.assignment.tags names {missing[0]!r}: give its value as client.tag.{missing[0]}."
            )

    def _validate_metrics_push(self) -> None:
        """Check that the clients that push an application's metrics may do so (KIP-1076)."""
        name = "enable.metrics.push"
        for prefixes in (("consumer.", "main.consumer."), ("admin.",)):
            if self[name] and not self.of_client(name, *prefixes):
                raise ConfigError(
                    f"{name} is true, but {prefixes[-1]}{name} is false: this client pushes the application's metrics. "
                    f"Set both, or {name}=false to push none."
                )

    def __getitem__(self, name: str) -> Any:
        if name in self._effective:
            value = self._effective[name]
            if KEYS[name].type is ConfigType.CLASS and isinstance(value, str) and ":" in value:
                return import_reference(value, name)
            return value
        if name in self._given:
            return self._given[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield from self._effective
        yield from (name for name in self._given if name not in self._effective)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"StreamsConfig({', '.join(sorted(self._given))})"

    def shown(self, name: str) -> Any:
        """Return the value for display: as configured, references not imported."""
        return self._effective.get(name, self._given.get(name))

    def origin(self, name: str) -> str:
        """Return the source of a key's value: "default", "default for …", or its given origin."""
        source = self._sources.get(name, name if name in self._given else None)
        if source is not None:
            origin = self._origins[source] or "given"
            return origin if source == name else f"{origin} ({source})"
        default = KEYS[name].default
        return f"default by {default.why}" if isinstance(default, DerivedDefault) else "default"

    def is_default(self, name: str) -> bool:
        """Return whether a key has its default, which may depend on other keys."""
        return self._sources.get(name, name if name in self._given else None) is None

    def originals(self) -> dict[str, Any]:
        """Return the given settings unchanged."""
        return dict(self._given)

    def with_overrides(self, values: Mapping[str, object], origin: str = "") -> StreamsConfig:
        """Return a copy in which these values override the given ones."""
        return StreamsConfig(self._given | dict(values), self._origins | dict.fromkeys(values, origin))

    def with_prefix(self, prefix: str) -> dict[str, Any]:
        """Return the given settings with a prefix, without the prefix and otherwise unchanged.

        Those of a client include Kafka's settings of this client that were given without a prefix.
        """
        names = UNPREFIXED.get(prefix, frozenset())
        unprefixed = {name: value for name, value in self._given.items() if name in names}
        return unprefixed | {
            name.removeprefix(prefix): value for name, value in self._given.items() if name.startswith(prefix)
        }

    def of_client(self, name: str, *prefixes: str) -> Any:
        """Return the value of a key that all clients share, for the client of these prefixes; the last one wins.

        Raises ConfigError for a prefixed value that is not valid.
        """
        source = next((p + name for p in reversed(prefixes) if p + name in self._given), None)
        return self[name] if source is None else KEYS[name].parse(self._given[source], source, self._origins[source])

    def common_client_settings(self) -> dict[str, Any]:
        """Return bootstrap.servers and the settings common to all clients (ssl.*, sasl.* …), typed."""
        names = [name for name in self._given if name.startswith(COMMON_CLIENT_PREFIXES) or name in _COMMON_CLIENT_KEYS]
        return {name: self[name] for name in names}

    def require(self, *names: str) -> None:
        """Check that these keys have a value; raises ConfigError that names all missing ones."""
        missing = [name for name in names if self[name] in (None, "")]
        if missing:
            raise ConfigError(
                f"Required configuration is missing: {', '.join(missing)}. Set it in the configuration file, as "
                f"{environment_name(missing[0])} or with -c {missing[0]}=…"
            )


_COMMON_CLIENT_KEYS = frozenset(
    ("bootstrap.servers", "security.protocol", "request.timeout.ms", "retry.backoff.ms", "reconnect.backoff.ms",
     "reconnect.backoff.max.ms", "connections.max.idle.ms", "metadata.max.age.ms", "metadata.recovery.strategy",
     "metadata.recovery.rebootstrap.trigger.ms", "metadata.cluster.check.enable", "receive.buffer.bytes",
     "send.buffer.bytes", "enable.metrics.push")
)  # fmt: skip


def check_key(name: str, origin: str = "") -> None:
    """Raise ConfigError, naming the nearest known key, unless name is a known key or has a known prefix."""
    if name in KEYS or any(name.startswith(p) and name != p for p in (*PREFIXES, *COMMON_CLIENT_PREFIXES)):
        return
    if any(name in names for names in UNPREFIXED.values()):
        return
    where = f" ({origin})" if origin else ""
    nearest = difflib.get_close_matches(name, [*KEYS, *PREFIXES], n=1, cutoff=0.6)
    if nearest:
        raise ConfigError(f"Unknown configuration key {name!r}{where}. Did you mean {nearest[0]}?")
    raise ConfigError(
        f"Unknown configuration key {name!r}{where}. `penstock config --all` lists all keys; a setting of a client "
        f"needs a prefix: consumer.{name}, producer.{name} or admin.{name}."
    )


def _without_prefix(name: str) -> str:
    """Return a client's setting without the client's prefix."""
    return next((name.removeprefix(prefix) for prefix in CLIENT_PREFIXES if name.startswith(prefix)), name)


def settings_with_prefix(config: Mapping[str, object], prefix: str) -> dict[str, Any]:
    """Return the settings whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): config[name] for name in config if name.startswith(prefix)}


def environment_name(name: str) -> str:
    """Return the environment variable that sets a key: commit.interval.ms -> PENSTOCK_COMMIT_INTERVAL_MS."""
    return "PENSTOCK_" + name.removeprefix("penstock.").replace(".", "_").upper()


def import_reference(reference: str, key: str) -> Any:
    """Import the object ``module:attribute``; raises ConfigError."""
    module, _, attribute = reference.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{key}={reference}: cannot be imported ({error}). Check the name and the working directory."
        ) from error
    return found


def verify_topology_optimization_configs(value: str) -> frozenset[str]:
    """Return the optimizations that a value of topology.optimization enables (Kafka's method of this name)."""
    if value == "all":
        return frozenset(OPTIMIZATIONS)
    return frozenset(item.strip() for item in value.split(",")) & frozenset(OPTIMIZATIONS)
