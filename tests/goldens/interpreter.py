"""Builds the topology of a case through the public API alone: one DSL call for each entry (FORMAT.md section 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock import (
    BufferConfig,
    EmitStrategy,
    JoinWindows,
    KStream,
    Materialized,
    Serde,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StoreBuilder,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    UnlimitedWindows,
)

from . import functions, processors

Op = Mapping[str, Any]

#: Keys of a case's config that only the driver reads, not Kafka Streams.
DRIVER_KEYS = (
    "emit.interval.ms",
    "deserialization.exception.handler",
    "processing.exception.handler",
)

_STORE_FIELDS = ("store", "store_kind", "logging", "caching", "retention_ms", "materialized")


def build(case: Mapping[str, Any]) -> Topology:
    """Return the topology of a case; raises TopologyError where Kafka Streams refuses it."""
    interpreter = Interpreter()
    for op in case["topology"]:
        interpreter.apply(op)
    return interpreter.builder.build({k: v for k, v in case["config"].items() if k not in DRIVER_KEYS})


def serde(name: str | None) -> Serde[Any] | None:
    """Return the serde that a case names, None for none."""
    if name is None:
        return None
    kind, inner = functions.split(name)
    if kind == "time_windowed":
        return Serdes.time_windowed(serde(inner))
    if kind == "session_windowed":
        return Serdes.session_windowed(serde(inner))
    return Serdes.of(kind)


def serdes(op: Op) -> dict[str, Any]:
    """Return the options key_serde and value_serde of an entry."""
    return {"key_serde": serde(op.get("key")), "value_serde": serde(op.get("value"))}


def named(op: Op) -> dict[str, Any]:
    """Return the option name of an entry."""
    return {"name": op.get("name")}


def materialized(op: Op) -> Materialized | None:
    """Return the Materialized of an entry, None where it has none of the store fields."""
    return materialized_or_serdes(op) if any(op.get(field) is not None for field in _STORE_FIELDS) else None


def materialized_or_serdes(op: Op) -> Materialized:
    """Return the Materialized of an entry, or one with the serdes only if it has no store fields."""
    store, kind = op.get("store"), op.get("store_kind", "persistent")
    options = {
        "caching": op.get("caching", True),
        "logging": op.get("logging", True),
        "retention": op.get("retention_ms"),
        **serdes(op),
    }
    if kind == "versioned":
        return Materialized(
            Stores.persistent_versioned_key_value_store(str(store), op["history_retention_ms"]), **options
        )
    if kind == "lru":
        return Materialized(Stores.lru_map(str(store), op["max_entries"]), **options)
    if kind == "plain":
        return Materialized(Stores.persistent_key_value_store(str(store)), **options)
    return Materialized(store, store_type="in_memory" if kind == "in_memory" else None, **options)


def store_builder(op: Op) -> StoreBuilder:
    """Return the builder of an add_store entry."""
    name, kind, types = op["store"], op.get("store_kind", "persistent"), (serde(op["key"]), serde(op["value"]))
    builder: StoreBuilder
    if kind == "window":
        supplier = Stores.persistent_window_store(name, op["retention_ms"], op["size_ms"])
        builder = Stores.window_store_builder(supplier, *types)
    elif kind == "in_memory":
        builder = Stores.key_value_store_builder(Stores.in_memory_key_value_store(name), *types)
    else:
        builder = Stores.key_value_store_builder(Stores.persistent_key_value_store(name), *types)
    if op.get("logging") is False:
        builder = builder.with_logging_disabled()
    return builder.with_caching_enabled() if op.get("caching") else builder


def windows(window: Op) -> Any:
    """Return the windows that an entry describes."""
    grace = window.get("grace_ms", 0)
    if window["type"] in ("tumbling", "hopping"):
        return TimeWindows(window["size_ms"], grace, window.get("advance_ms"))
    if window["type"] == "sliding":
        return SlidingWindows(window["diff_ms"], grace)
    if window["type"] == "session":
        return SessionWindows(window["gap_ms"], grace)
    return UnlimitedWindows()


def suppressed(op: Op) -> Suppressed:
    """Return the Suppressed of an entry."""
    strict = op["until"] == "window_closes" or op.get("full", "emit_early") == "shut_down"
    buffer = BufferConfig.unbounded()
    if op.get("max_records") is not None:
        limit = op["max_records"]
        buffer = buffer.with_max_records(limit).shut_down_when_full() if strict else BufferConfig.max_records(limit)
    if op.get("logging") is False:
        buffer = buffer.with_logging_disabled()
    if op["until"] == "window_closes":
        return Suppressed.until_window_closes(buffer, name=op.get("name"))
    return Suppressed.until_time_limit(op["ms"], buffer, name=op.get("name"))


class Interpreter:
    """Applies entries one by one; results are kept by their ids. A method per op, called like it."""

    def __init__(self) -> None:
        self.builder = StreamsBuilder()
        self.results: dict[str, Any] = {}

    def apply(self, op: Op) -> None:
        """Make the DSL call of an entry."""
        call: Callable[[Op], Any] = getattr(self, op["op"])
        result = call(op)
        if "id" in op:
            self.results[op["id"]] = result

    def source(self, op: Op) -> Any:
        """Return the node on which an entry is called."""
        return self.results[op["from"]]

    def stream(self, op: Op) -> Any:
        options = {**serdes(op), **named(op)}
        if "timestamp_extractor" in op:
            options["timestamp_extractor"] = lambda message, key, value, partition_time: functions.as_long(value)
        return self.builder.stream(op["topic"], **options)

    def table(self, op: Op) -> Any:
        return self.builder.table(op["topic"], store=materialized(op), **serdes(op), **named(op))

    def global_table(self, op: Op) -> Any:
        return self.builder.global_table(op["topic"], store=materialized(op), **serdes(op), **named(op))

    def add_store(self, op: Op) -> Any:
        return self.builder.add_state_store(store_builder(op))

    def filter(self, op: Op) -> Any:
        return self._filter(op, self.source(op).filter)

    def filter_not(self, op: Op) -> Any:
        return self._filter(op, self.source(op).filter_not)

    def _filter(self, op: Op, call: Callable[..., Any]) -> Any:
        return call(functions.predicate(op["predicate"]), **named(op), **self._table_store(op))

    def _table_store(self, op: Op) -> dict[str, Any]:
        """Return the option store for an entry that is called on a table."""
        return {} if isinstance(self.source(op), KStream) else {"store": materialized(op)}

    def map_values(self, op: Op) -> Any:
        function = functions.value(op["fn"])
        return self.source(op).map_values(function, with_key=True, **named(op), **self._table_store(op))

    def map(self, op: Op) -> Any:
        key, value = functions.key(op["key_fn"]), functions.value(op["value_fn"])
        return self.source(op).map(lambda k, v: (key(k, v), value(k, v)), **named(op))

    def flat_map(self, op: Op) -> Any:
        return self.source(op).flat_map(functions.flat_map(op["fn"]), **named(op))

    def flat_map_values(self, op: Op) -> Any:
        return self.source(op).flat_map_values(functions.flat_values(op["fn"]), with_key=True, **named(op))

    def select_key(self, op: Op) -> Any:
        return self.source(op).select_key(functions.key(op["key_fn"]), **named(op))

    def peek(self, op: Op) -> Any:
        return self.source(op).peek(lambda key, value: None, **named(op))

    def foreach(self, op: Op) -> None:
        self.source(op).foreach(lambda key, value: None, **named(op))

    def split(self, op: Op) -> None:
        branches = self.source(op).split(**named(op))
        for number, branch in enumerate(op["branches"], start=1):
            branches.branch(functions.predicate(branch["predicate"]), branch.get("name"))
            self.results[branch["id"]] = branches[branch.get("name", str(number))]
        if "default" in op:
            default = op["default"]
            self.results[default["id"]] = branches.default_branch(default.get("name"))[default.get("name", "0")]

    def merge(self, op: Op) -> Any:
        return self.source(op).merge(self.results[op["with"]], **named(op))

    def repartition(self, op: Op) -> Any:
        return self.source(op).repartition(**serdes(op), **named(op))

    def to_table(self, op: Op) -> Any:
        return self.source(op).to_table(store=materialized_or_serdes(op), **named(op))

    def to_stream(self, op: Op) -> Any:
        selector = functions.key(op["key_fn"]) if "key_fn" in op else None
        return self.source(op).to_stream(selector, **named(op))

    def to(self, op: Op) -> None:
        topic = functions.topic(op["topic_fn"]) if "topic_fn" in op else op["topic"]
        self.source(op).to(topic, **serdes(op), **named(op))

    def group_by_key(self, op: Op) -> Any:
        return self.source(op).group_by_key(**serdes(op), **named(op))

    def group_by(self, op: Op) -> Any:
        key = functions.key(op["key_fn"])
        if isinstance(self.source(op), KStream):
            return self.source(op).group_by(key, **serdes(op), **named(op))
        value = functions.value(op.get("value_fn", "identity"))
        return self.source(op).group_by(lambda k, v: (key(k, v), value(k, v)), **serdes(op), **named(op))

    def count(self, op: Op) -> Any:
        return self.source(op).count(store=materialized(op), **named(op))

    def reduce(self, op: Op) -> Any:
        reducers = [functions.reducer(op[field]) for field in ("fn", "subtractor") if field in op]
        return self.source(op).reduce(*reducers, store=materialized_or_serdes(op), **named(op))

    def aggregate(self, op: Op) -> Any:
        aggregators = [functions.aggregator(op[field]) for field in ("agg", "subtractor") if field in op]
        mergers = [functions.merger(op["merger"])] if "merger" in op else []
        return self.source(op).aggregate(
            functions.initializer(op["init"]), *aggregators, *mergers, store=materialized_or_serdes(op), **named(op)
        )

    def cogroup(self, op: Op) -> Any:
        first, *others = ((self.source(entry), functions.aggregator(entry["agg"])) for entry in op["inputs"])
        cogrouped = first[0].cogroup(first[1])
        for grouped, aggregator in others:
            cogrouped = cogrouped.cogroup(grouped, aggregator)
        return cogrouped

    def windowed_by(self, op: Op) -> Any:
        windowed = self.source(op).windowed_by(windows(op["window"]))
        if "emit" not in op:
            return windowed
        close = op["emit"] == "window_close"
        return windowed.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE if close else EmitStrategy.ON_WINDOW_UPDATE)

    def suppress(self, op: Op) -> Any:
        return self.source(op).suppress(suppressed(op))

    def _join(self, op: Op, *arguments: Any, **options: Any) -> Any:
        """Call join, left_join or outer_join on an entry's source."""
        method = "join" if op["type"] == "inner" else f"{op['type']}_join"
        return getattr(self.source(op), method)(self.results[op["with"]], *arguments, **options)

    def stream_stream_join(self, op: Op) -> Any:
        in_memory = op.get("store_kind") == "in_memory"
        store = Materialized(
            op.get("join_store"), store_type="in_memory" if in_memory else None, logging=op.get("logging", True)
        )
        return self._join(
            op,
            functions.joiner(op["joiner"]),
            JoinWindows(0, grace=op["grace_ms"]).after(op["after_ms"]).before(op["before_ms"]),
            with_key=True,
            store=store,
            other_value_serde=serde(op.get("other_value")),
            **serdes(op),
            **named(op),
        )

    def stream_table_join(self, op: Op) -> Any:
        return self._join(
            op,
            functions.joiner(op["joiner"]),
            with_key=True,
            grace=op.get("grace_ms"),
            other_value_serde=serde(op.get("other_value")),
            **serdes(op),
            **named(op),
        )

    def stream_global_join(self, op: Op) -> Any:
        key = functions.key(op["key_fn"])
        return self._join(op, functions.joiner(op["joiner"]), key_selector=key, with_key=True, **named(op))

    def table_table_join(self, op: Op) -> Any:
        joiner = functions.joiner(op["joiner"])
        return self._join(op, lambda left, right: joiner(None, left, right), store=materialized(op), **named(op))

    def table_fk_join(self, op: Op) -> Any:
        joiner = functions.joiner(op["joiner"])
        return self._join(
            op,
            lambda left, right: joiner(None, left, right),
            foreign_key=functions.foreign_key(op["fk"]),
            with_key=True,
            store=materialized(op),
            **named(op),
        )

    def process(self, op: Op) -> Any:
        store = op.get("uses")
        supplier = processors.processor(op["processor"], store)
        return self.source(op).process(supplier, *([store] if store else []), **named(op))

    def process_values(self, op: Op) -> Any:
        supplier = processors.fixed_key_processor(op["processor"], op["uses"])
        return self.source(op).process_values(supplier, op["uses"], **named(op))
