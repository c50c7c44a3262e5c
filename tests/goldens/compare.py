"""Runs a golden case in TopologyTestDriver and compares everything that Kafka Streams' driver recorded.

The format is penstock-golden/1; section numbers refer to its description.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.testing import TopologyTestDriver
from penstock.topology.context.store_interfaces import StoreKind
from penstock.topology.errors import PenstockError, ProcessorStateError, StreamsError, TopologyError
from penstock.topology.records import Record
from penstock.topology.serdes.serdes import Serdes, as_serde

from . import interpreter

Case = dict[str, Any]
Json = Any

#: Section 2: the wall clock at the start, in ms.
WALL_CLOCK_START_MS = 1_000_000

#: Penstock's exceptions for Java's, section 6.
ERRORS: Mapping[str, tuple[type[BaseException], ...]] = {
    "StreamsException": (StreamsError, TopologyError),  # the optimizer's, at build time, is a TopologyError here
    "ProcessorStateException": (ProcessorStateError,),
    "TopologyException": (TopologyError,),
    # Java's checks of arguments have no separate class.
    "IllegalArgumentException": (PenstockError, ValueError, TypeError),
}
CAUSES: Mapping[str, tuple[type[BaseException], ...]] = {
    **ERRORS,
    "SerializationException": (Exception,),
    "ClassCastException": (Exception,),
}

_EMIT_INTERVALS = (
    "__emit.interval.ms.kstreams.outer.join.spurious.results.fix__",
    "__emit.interval.ms.kstreams.windowed.aggregation__",
)


def case_config(case: Case) -> dict[str, Any]:
    """Return the configuration of a case under the names that Penstock knows."""
    config: dict[str, Any] = {"default.key.serde": None, "default.value.serde": None} | case["config"]  # as in Java
    emit = config.pop("emit.interval.ms", None)
    if emit is not None:
        config.update(dict.fromkeys(_EMIT_INTERVALS, emit))
    return config


def compare_run(case: Case) -> str | None:
    """Return the first difference between a run of the case and its recording, None if there is none."""
    run = Run(case)
    run.run()
    return run.first_difference()


#: The comparisons of ``python -m tests.goldens`` beside the description.
COMPARISONS: dict[str, Callable[[Case], str | None]] = {"run": compare_run}


class Run:
    """One run of a case: the recorded fields as Penstock produces them, or the error that ended it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.prefix = case["config"]["application.id"] + "-"
        self.topics: dict[str, list[Json]] = {}
        self.stores: dict[str, list[Json]] = {}
        self.buffer_changelogs: set[str] = set()
        self.stage = "build"
        self.error: Exception | None = None

    def run(self) -> None:
        """Build the topology and feed the inputs; a failure ends the run and is kept."""
        try:
            topology = interpreter.build(self.case)
            self.stage = "start"
            with TopologyTestDriver(topology, case_config(self.case), WALL_CLOCK_START_MS) as driver:
                self._feed(driver)
        except Exception as error:  # noqa: BLE001 - any failure is a result of the run
            self.error = error

    def _feed(self, driver: TopologyTestDriver) -> None:
        self.buffer_changelogs = {
            f"{self.prefix}{name}-changelog"
            for name, store in driver.get_all_state_stores().items()
            if store.builder.kind is StoreKind.SUPPRESS_BUFFER
        }
        for index, step in enumerate(self.case["inputs"]):
            self.stage = f"input {index}"
            if "advance_wall_clock_ms" in step:
                driver.advance_wall_clock_time(step["advance_wall_clock_ms"])
            else:
                record = Record(_bytes(step["key"]), _bytes(step["value"]), step["timestamp"], _headers(step))
                driver.create_input_topic(step["topic"], Serdes.bytes(), Serdes.bytes()).pipe_input(record)
            self._drain(driver, index)
        self.stage = "stores"
        for name in self.case["stores"]:
            self.stores[name] = list(self._rows(driver, name))

    def _drain(self, driver: TopologyTestDriver, index: int) -> None:
        for topic in driver.produced_topic_names():
            records = driver.create_output_topic(topic, Serdes.bytes(), Serdes.bytes()).read_records_to_list()
            self.topics.setdefault(topic, []).extend(_produced(record, index) for record in records)

    def _rows(self, driver: TopologyTestDriver, name: str) -> Iterator[Json]:
        """Yield the rows of a store in the form of section 5."""
        store = driver.get_state_store(name)
        kind = store.builder.kind
        if kind is StoreKind.VERSIONED_KEY_VALUE:
            rows = list(self._versions(store))
        elif kind is StoreKind.SESSION:
            rows = [(key, start, end, value, None) for (key, start, end), value in _sessions(store)]
        elif kind is StoreKind.TIMESTAMPED_WINDOW:
            rows = [(key, start, row.value, row.timestamp) for (key, start, _), row in store.all()]
        elif kind is StoreKind.WINDOW:
            rows = [(key, start, value, None) for (key, start, _), value in store.all()]
        elif kind is StoreKind.TIMESTAMPED_KEY_VALUE:
            rows = [(key, row.value, row.timestamp) for key, row in store.all()]
        else:
            rows = [(key, value, None) for key, value in store.all()]
        value_at = {StoreKind.SESSION: 3, StoreKind.VERSIONED_KEY_VALUE: 2}.get(kind, len(rows[0]) - 2 if rows else 1)
        yield from sorted((_encoded(store, row, value_at) for row in rows), key=_row_order(value_at))

    def _versions(self, store: Any) -> Iterator[tuple[Any, ...]]:
        steps = [step for step in self.case["inputs"] if "topic" in step]
        times = sorted({step["timestamp"] for step in steps})
        keys = {step["key"]["b64"] for step in steps if step["key"] is not None}
        keys |= {record["key_b64"] for record in self.topics.get(f"{self.prefix}{store.name}-changelog", ())}
        serde = as_serde(store.builder.key_serde)
        assert serde is not None
        for key in (serde.deserialize("", b64decode(text)) for text in keys):
            for as_of in (None, *times):
                found = store.get(key) if as_of is None else store.get(key, as_of)
                if found is not None:
                    yield key, as_of, found.value, found.timestamp, found.valid_to

    def first_difference(self) -> str | None:
        """Return the first difference between this run and the case."""
        case, found = self.case, self._error_difference()
        for field in ("outputs", "stores", "repartitions", "changelogs"):
            actual = self.stores if field == "stores" else self._topics_of(field)
            found = found or _difference_of_lists(field, case[field], actual, self.buffer_changelogs)
        return found

    def _error_difference(self) -> str | None:
        expected = self.case["error"]
        if expected is None and self.error is None:
            return None
        shown = "no error" if self.error is None else f"{self.stage}: {self.error!r}"
        if expected is None or self.error is None or expected["stage"] != self.stage:
            return f"error: expected {expected}, got {shown}"
        root = _root_cause(self.error)
        kind, cause = ERRORS[expected["class"]], CAUSES.get(expected["cause"], (Exception,))
        if not isinstance(self.error, kind) or not isinstance(root, cause):
            return f"error: expected {expected['class']} caused by {expected['cause']}, got {shown} caused by {root!r}"
        return None

    def _topics_of(self, field: str) -> dict[str, list[Json]]:
        return {topic: records for topic, records in self.topics.items() if self._field_of(topic) == field}

    def _field_of(self, topic: str) -> str:
        if not topic.startswith(self.prefix):
            return "outputs"
        return "changelogs" if topic.endswith("-changelog") else "repartitions"


def _bytes(encoded: Json) -> bytes | None:
    return None if encoded is None else b64decode(encoded["b64"])


def _b64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _headers(step: Json) -> list[tuple[str, bytes | None]] | None:
    return [(name, None if value is None else b64decode(value)) for name, value in step.get("headers", ())] or None


def _produced(record: Record[Any, Any], index: int) -> Json:
    """Return a produced record in the form of section 1; the driver shows -1 where the producer would set the
    timestamp.
    """
    shown: dict[str, Any] = {
        "input": index,
        "timestamp": None if record.timestamp == -1 else record.timestamp,
        "key_b64": _b64(record.key),
        "value_b64": _b64(record.value),
    }
    if record.headers:
        shown["headers"] = [[name, _b64(value)] for name, value in record.headers]
    return shown


def _sessions(store: Any) -> Iterator[tuple[Any, Any]]:
    yield from store.fetch_keys(None, None)


def _encoded(store: Any, row: tuple[Any, ...], value_at: int) -> list[Any]:
    key_serde, value_serde = as_serde(store.builder.key_serde), as_serde(store.builder.value_serde)
    assert key_serde is not None
    assert value_serde is not None
    cells = list(row)
    cells[0] = _b64(key_serde.serialize("", row[0]))
    cells[value_at] = _b64(value_serde.serialize("", row[value_at]))
    return cells


def _row_order(value_at: int) -> Callable[[list[Any]], Any]:
    def order(row: list[Any]) -> Any:
        return b64decode(row[0]), [(number is not None, number or 0) for number in row[1:value_at]]

    return order


def _root_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _difference_of_lists(
    field: str, expected: Mapping[str, Json], actual: Mapping[str, Json], without_order: set[str]
) -> str | None:
    for name in sorted({*expected, *actual}):
        wanted, got = expected.get(name, []), actual.get(name, [])
        if name in without_order:
            wanted, got = _as_sets(wanted), _as_sets(got)
        for index, (one, other) in enumerate(zip(wanted, got, strict=False)):
            if one != other:
                return f"{field} of {name}, number {index}: expected {_shown(one)}, got {_shown(other)}"
        if len(wanted) != len(got):
            more = _shown((wanted if len(wanted) > len(got) else got)[min(len(wanted), len(got))])
            return f"{field} of {name}: expected {len(wanted)}, got {len(got)}; the first in only one of them: {more}"
    return None


def _as_sets(records: list[Json]) -> list[Json]:
    """Sort the records of each input that a suppress changelog has in the order of a Java HashSet (section 7)."""
    return sorted(records, key=lambda record: (record["input"], record["key_b64"], record["value_b64"] or ""))


def _shown(value: Json) -> str:
    if isinstance(value, dict) and "key_b64" in value:
        parts = {name: part for name, part in value.items() if not name.endswith("_b64")}
        return f"{parts} key={_bytes_of(value['key_b64'])!r} value={_bytes_of(value['value_b64'])!r}"
    if isinstance(value, list):
        return f"[{', '.join(_shown(cell) for cell in value)}]"
    return repr(value)


def _bytes_of(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
