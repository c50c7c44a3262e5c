"""The aggregates of penstock.agg: results, states in stores, errors; compared with plain Python over all values."""

from __future__ import annotations

import json
import math
import pickle
import sys
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    ConfigError,
    EmitStrategy,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    Serdes,
    SerializationError,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    StreamsError,
    TimeWindows,
    TopologyError,
    agg,
)
from penstock.testing import TopologyTestDriver
from penstock.topology.context.exception_handlers import FailedProcessingError
from penstock.topology.context.store_facades import for_readers
from penstock.topology.declare.aggregated import functions_of
from penstock.topology.records import RawRecord
from penstock.topology.serdes.shape_changes import shape_changes
from penstock.topology.stores.materialized import MaterializedInternal
from penstock.workers.queries.store_reads import row_json
from tests.examples import examples
from tests.statestore.support import OpenStore

#: Without a cache; with one of a row or two; with one of all rows.
CACHES = (0, 300, 10_485_760)
CHANGELOG = "topology-test-driver-store-changelog"


#: There is no wheel for Python 3.14 yet.
HAS_SKETCHES = find_spec("datasketches") is not None
needs_sketches = pytest.mark.skipif(not HAS_SKETCHES, reason="datasketches is not installed")


class Order:
    def __init__(self, amount: Any) -> None:
        self.amount = amount


def declared(aggregates: Any, of_table: bool = False) -> Any:
    """Return the functions of an aggregation, and the serde of its states."""
    kept = MaterializedInternal(None)
    return functions_of(kept, aggregates, retracts=of_table), kept.value_serde


def result_of(aggregate: Any, values: list[Any]) -> tuple[Any, Any]:
    """Return the result of values, and the state in JSON."""
    functions, serde = declared(aggregate)
    states = functions.initializer()
    for value in values:
        states = functions.aggregator("key", value, states)
        assert functions.results(serde.deserialize("t", serde.serialize("t", states))) == functions.results(states)
    return functions.results(states), json.loads(serde.serialize("t", states))


@pytest.mark.parametrize(
    ("aggregate", "values", "result", "state"),
    [
        (agg.count(), [1, None, "x"], 3, 3),
        (agg.count("a"), [{"a": 1}, {"a": None}, {}, None], 1, 1),
        (agg.sum(), [1, None, 2], 3, 3),
        (agg.sum(), [], 0, 0),
        (agg.sum(), [2**63, 2**63], 2**64, 2**64),
        (agg.sum(), [1, 0.5], 1.5, 1.5),
        (agg.sum(), [True, True], 2, 2),
        (agg.sum(), [Decimal("0.10"), Decimal("0.20")], Decimal("0.30"), "0.30"),
        (agg.sum("a.b"), [{"a": {"b": 1}}, {"a": {}}, {"a": None}, {"a": {"b": 2}}], 3, 3),
        (agg.sum("amount"), [Order(1), Order(None), Order(2)], 3, 3),
        (agg.sum(lambda value: len(value)), ["ab", "c"], 3, 3),  # noqa: PLW0108  a function of Python
        (agg.mean(), [1, 2, None], 1.5, [3, 2]),
        (agg.mean(), [None], None, [0, 0]),
        (agg.mean(), [Decimal(1), Decimal(2)], Decimal("1.5"), ["3", 2]),
        (agg.min(), [3, None, 1.5, 2], 1.5, 1.5),
        (agg.max(), [3, None, 1.5, 2], 3, 3),
        (agg.min(), ["b", "a", "é"], "a", "a"),
        (agg.max(), [[1, 2], (1, 3)], [1, 3], [1, 3]),
        (agg.max(), [None], None, None),
        (agg.first(), [None, {"n": 1}, 2], {"n": 1}, {"n": 1}),
        (agg.last(), [1, {"n": 2}, None], {"n": 2}, {"n": 2}),
        (agg.collect(2), [None, [1], 2, 3], [[1], 2], [[1], 2]),
        ({"n": agg.count(), "mean": agg.mean()}, [4, 5], {"n": 2, "mean": 4.5}, {"n": 2, "mean": [9, 2]}),
    ],
)
def test_an_aggregate_has_its_result_and_its_state_in_json(
    aggregate: Any, values: list[Any], result: Any, state: Any
) -> None:
    found = result_of(aggregate, values)
    assert found == (result, state)
    assert type(found[0]) is type(result)


@pytest.mark.parametrize(
    ("aggregate", "values", "said"),
    [
        (agg.sum("amount"), [{"amount": "12"}], r"""sum\("amount"\): a number is needed, not '12' \(str\)"""),
        ({"total": agg.sum()}, [float("nan")], r"total: sum\(\): nan is not a finite number"),
        (agg.sum(), [1e308, 1e308], r"sum\(\): inf is not a finite number"),
        (agg.sum(), [1.5, Decimal(1)], r"sum\(\): unsupported operand"),
        (agg.sum("price"), [Order(1)], r"""sum\("price"\): 'Order' object has no attribute 'price'"""),
        (agg.min(), [1, "x"], r"min\(\): '<' not supported"),
        (agg.last(), [float("inf")], r"last\(\): inf is not a finite number"),
        (agg.last(), [{"n": float("inf")}], r"last\(\): JSON has no inf"),
        (agg.last(), [object()], r"last\(\): Type is not JSON serializable"),
    ],
)
def test_an_error_names_the_aggregate_and_the_field(aggregate: Any, values: list[Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        result_of(aggregate, values)


def test_an_error_of_a_record_names_its_topic_and_leaves_the_row() -> None:
    builder = StreamsBuilder()
    table = builder.stream("in").group_by_key().aggregate({"n": agg.count(), "total": agg.sum("amount")}, store="store")
    table.to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("k", {"amount": 1})
        said = r"""KSTREAM-AGGREGATE-0000000001, topic=in, partition=0, offset=1.* total: sum\("amount"\): a number"""
        with pytest.raises(FailedProcessingError, match=said):
            topic.pipe_input("k", {"amount": []})
        assert driver.get_key_value_store("store").get("k") == {"n": 1, "total": 1}


def test_a_result_is_the_callers_own() -> None:
    functions, _ = declared({"first": agg.first(), "list": agg.collect(3)})
    states = functions.aggregator("key", {"n": [1]}, functions.initializer())
    found = functions.results(states)
    found["first"]["n"].append(2)
    found["list"].append(2)
    assert functions.results(states) == {"first": {"n": [1]}, "list": [{"n": [1]}]}


def test_a_state_does_not_follow_later_changes_of_a_value() -> None:
    functions, _ = declared(agg.last())
    value = {"n": [1]}
    states = functions.aggregator("key", value, functions.initializer())
    value["n"].append(2)
    assert functions.results(states) == {"n": [1]}


@needs_sketches
def test_sketches_estimate() -> None:
    numbers = [number * 7919 % 10_000 for number in range(10_000)]
    (distinct, quantiles), state = result_of_both(numbers)
    assert distinct == pytest.approx(10_000, rel=0.05)
    assert quantiles == pytest.approx([5_000, 9_900], rel=0.02)
    assert all(type(part) is str for part in state.values())
    assert len(state["ids"]) < 3_000


def result_of_both(numbers: list[int]) -> tuple[Any, Any]:
    functions, serde = declared({"ids": agg.distinct(), "sizes": agg.quantiles(ranks=(0.5, 0.99))})
    states = functions.initializer()
    for number in numbers:
        states = functions.aggregator("key", number, states)
    found = functions.results(states)
    return (found["ids"], found["sizes"]), json.loads(serde.serialize("t", states))


@needs_sketches
@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: agg.distinct(precision=30), "precision from 7 to 21, got 30"),
        (lambda: agg.distinct(precision="12"), "precision from 7 to 21, got '12'"),  # type: ignore[arg-type]
        (lambda: agg.quantiles(ranks=(95,)), r"ranks from 0 to 1, such as \[0.5\], got \(95,\)"),
        (lambda: agg.quantiles(ranks=0.5), "a list of ranks from 0 to 1"),  # type: ignore[arg-type]
        (lambda: agg.quantiles(ranks="0.5"), "a list of ranks from 0 to 1"),  # type: ignore[arg-type]
        (lambda: declared(agg.distinct(), of_table=True), "Group the table by the value first"),
        (lambda: declared(agg.quantiles(), of_table=True), "cannot remove the old rows of a grouped table"),
    ],
)
def test_a_sketch_that_cannot_be_kept_is_refused(declare: Callable[[], Any], said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        declare()


@needs_sketches
def test_a_quantile_is_of_numbers() -> None:
    with pytest.raises(TypeError, match=r"quantiles\(ranks=\(0.5, 0.95, 0.99\)\): a number is needed, not 'x'"):
        result_of(agg.quantiles(), ["x"])


def test_sketches_need_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(ConfigError, match=r"pip install 'penstock-streams\[sketches\]'"):
        agg.distinct()


@needs_sketches
def test_different_values_are_those_that_python_compares_as_different() -> None:
    values = [1, 1.0, True, "1", 1.5, [1], {"a": 1}, {"a": 1}, 2**70, None]
    assert result_of(agg.distinct(), values)[0] == 7  # True is JSON's true


def test_a_row_gains_and_loses_aggregates() -> None:
    _, old = declared({"n": agg.count(), "old": agg.sum()})
    functions, new = declared({"n": agg.count(), "list": agg.collect(2)})
    states = new.deserialize("t", old.serialize("t", (3, 1.5)))
    assert functions.results(functions.aggregator("key", "x", states)) == {"n": 4, "list": ["x"]}


def test_a_changed_declaration_is_compared_with_the_rows() -> None:
    def changes(old: Any, new: Any) -> list[tuple[str, str, str]]:
        shapes = declared(old)[1].shape(), declared(new)[1].shape()
        return [(change.effect.name, change.path, change.text) for change in shape_changes(*shapes, "value")]

    old = {"n": agg.count(), "total": agg.sum("price")}
    assert changes(old, {**old, "total": agg.sum("price")}) == []
    assert changes(old, {**old, "high": agg.max()})[0][:2] == ("COMPATIBLE", "value.high")
    assert changes(old, {"n": agg.count()})[0][:2] == ("LOSSY", "value.total")
    text = 'was sum("price") and is max("price"), which cannot read it'
    assert changes(old, {**old, "total": agg.max("price")}) == [("BREAKING", "value.total", text)]
    assert changes(agg.sum(), agg.mean()) == [("BREAKING", "value", "was sum() and is mean(), which cannot read it")]


@pytest.mark.parametrize("other", [agg.mean(), agg.collect(3), agg.count()])
def test_the_state_of_another_aggregate_is_an_error(other: Any) -> None:
    _, old = declared({"total": agg.sum()})
    _, new = declared({"total": other})
    said = r"total: .* cannot continue from 1.5, which another aggregate has written"
    with pytest.raises(SerializationError, match=said):
        new.deserialize("t", old.serialize("t", (1.5,)))


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: agg.collect(0), "collect needs a limit of at least 1"),
        (lambda: agg.sum("a..b"), "agg.sum: a field is a name"),
        (lambda: agg.sum(7), "agg.sum: a field is a name"),  # type: ignore[arg-type]
        (lambda: declared({}), "at least one aggregate"),
        (lambda: declared({"n": int}), "takes aggregates of penstock.agg by name"),
        (lambda: StreamsBuilder().stream("in").group_by_key().aggregate({}, max), "initializer must be a function"),  # type: ignore
        (lambda: StreamsBuilder().stream("in").group_by_key().aggregate(int), "aggregator must be a function"),  # type: ignore
        (lambda: StreamsBuilder().stream("in").group_by_key().aggregate(agg.sum(), max), "takes no functions"),  # type: ignore
    ],
)
def test_a_wrong_declaration_is_refused(declare: Callable[[], Any], said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        declare()


# -- compared with a list of all values

ALL: dict[str, Any] = {
    "records": agg.count(),
    "values": agg.count("n"),
    "total": agg.sum("n"),
    "weight": agg.sum("x"),
    "mean": agg.mean("n"),
    "low": agg.min("n"),
    "high": agg.max("x"),
    "first": agg.first("n"),
    "last": agg.last("n"),
    "list": agg.collect(3, "n"),
}
SKETCHES: dict[str, Any] = (
    {"kinds": agg.distinct("n"), "middle": agg.quantiles("n", ranks=(0, 1))} if HAS_SKETCHES else {}
)


def model(values: list[Any], parts: list[Any] | None = None) -> dict[str, Any]:
    """Return the results of ALL. parts: the values of "n" in their order, if not that of the records."""
    fields = [value or {} for value in values]
    n = [field["n"] for field in fields if field.get("n") is not None] if parts is None else parts
    x = [field["x"] for field in fields if field.get("x") is not None]
    return {
        "records": len(values),
        "values": len(n),
        "total": sum(n),
        "weight": pytest.approx(math.fsum(x), rel=1e-9, abs=1e-6),
        "mean": sum(n) / len(n) if n else None,
        "low": min(n, default=None),
        "high": max(x, default=None),
        "first": n[0] if n else None,
        "last": n[-1] if n else None,
        "list": n[:3],
    }


def sketched(values: list[Any]) -> dict[str, Any]:
    n = [value["n"] for value in values if value and value.get("n") is not None]
    return {"kinds": len(set(n)), "middle": [min(n), max(n)] if n else None} if HAS_SKETCHES else {}


VALUES = st.fixed_dictionaries(
    {}, optional={"n": st.none() | st.integers(-3, 9), "x": st.none() | st.floats(-1e3, 1e3, width=32)}
)
RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | VALUES, st.integers(0, 60)), max_size=30)

#: How values are grouped, and the arguments of aggregate() that make lists of them.
WINDOWS: dict[str, Any] = {
    "by key": None,
    "tumbling": TimeWindows(10, grace=100),
    "hopping": TimeWindows(10, grace=100, advance=4),
    "sliding": SlidingWindows(10, grace=100),
    "sessions": SessionWindows(3, grace=100),
}


def appended(_key: Any, value: Any, values: list[Any]) -> list[Any]:
    return [*values, value]


def grouped(builder: StreamsBuilder, windows: Any, on_close: bool = False) -> Any:
    found: Any = builder.stream("in").group_by_key()
    if windows is not None:
        found = found.windowed_by(windows)
    return found.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE) if on_close else found


def rows(driver: TopologyTestDriver, name: str) -> dict[Any, Any]:
    store = driver.get_state_store(name)
    return {key: row if store.builder.kind.value == "session" else row[0] for key, row in store.all()}


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("cache", CACHES)
@settings(max_examples=examples(40), deadline=None)
@given(records=RECORDS)
def test_results_are_those_of_a_list_of_the_values(kind: str, cache: int, records: list[Any]) -> None:
    builder, windows = StreamsBuilder(), WINDOWS[kind]
    merger = (lambda _key, one, other: one + other,) if kind == "sessions" else ()
    grouped(builder, windows).aggregate(list, appended, *merger, store="lists")
    table = grouped(builder, windows).aggregate({**ALL, **SKETCHES}, store="store")
    table.to_stream().to("out")
    with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": cache}) as driver:
        for key, value, at in records:
            driver.create_input_topic("in").pipe_input(key, value, at)
        expected = {key: {**model(values), **sketched(values)} for key, values in rows(driver, "lists").items()}
        assert rows(driver, "store") == expected
        sent = dict(driver.create_output_topic("out").read_key_values_to_list())
        assert {key: row for key, row in sent.items() if row is not None} == expected
        assert restored(driver) == expected


def restored(driver: TopologyTestDriver) -> dict[Any, Any]:
    """Return the rows of a store that is restored from the changelog."""
    built = OpenStore(driver.task.topology.stores["store"])
    log = driver.create_output_topic(CHANGELOG, Serdes.bytes(), Serdes.bytes()).read_records_to_list()
    for at, record in enumerate(log):
        built.task.changelog.append(RawRecord(CHANGELOG, 0, at, record.timestamp, record.key, record.value))
    built.restore_missing()
    session = built.builder.kind.value == "session"
    return {key: row if session else row[0] for key, row in for_readers(built.store).all()}


@pytest.mark.parametrize("cache", CACHES)
def test_final_results_of_windows_are_results(cache: int) -> None:
    builder = StreamsBuilder()
    windows = grouped(builder, TimeWindows(10), on_close=True)
    windows.aggregate({"mean": agg.mean()}).to_stream().to("out")
    sessions = grouped(builder, SessionWindows(3), on_close=True)
    sessions.aggregate({"mean": agg.mean()}).to_stream().to("sessions")
    with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": cache}) as driver:
        for value, at in ((1, 1), (2, 3), (9, 14)):
            driver.create_input_topic("in").pipe_input("k", value, at)
        assert driver.create_output_topic("out").read_values_to_list() == [{"mean": 1.5}]
        assert driver.create_output_topic("sessions").read_values_to_list() == [{"mean": 1.5}]


ROWS = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.none() | st.tuples(st.sampled_from("xy"), VALUES),
    ),
    max_size=30,
)


@pytest.mark.parametrize("cache", CACHES)
@settings(max_examples=examples(80), deadline=None)
@given(updates=ROWS)
def test_a_grouped_table_has_the_results_of_its_current_rows(cache: int, updates: list[Any]) -> None:
    builder = StreamsBuilder()
    table = builder.table("in").group_by(lambda _key, row: (row[0], row[1])).aggregate(ALL, store="store")
    table.to_stream().to("out")
    current: dict[str, Any] = {}
    parts: dict[str, list[Any]] = defaultdict(list)
    with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": cache}) as driver:
        for key, row in updates:
            driver.create_input_topic("in").pipe_input(key, row)
            old = current.pop(key, None)
            for group, value, change in ((old, old and old[1], list.remove), (row, row and row[1], list.append)):
                if group is not None:
                    kept = parts[group[0]]
                    if value.get("n") is not None:
                        change(kept, value["n"])
            if row is not None:
                current[key] = row
        values = {group: [row[1] for row in current.values() if row[0] == group] for group in parts}
        expected = {group: model(values[group], parts[group]) for group in parts}
        assert rows(driver, "store") == expected
        assert dict(driver.create_output_topic("out").read_key_values_to_list()) == expected
        assert restored(driver) == expected


@settings(max_examples=examples(200), deadline=None)
@given(numbers=st.lists(st.floats(-1e300, 1e300) | st.integers(-(2**60), 2**60), max_size=12), data=st.data())
def test_numbers_of_a_table_are_subtracted_without_rounding(numbers: list[float], data: Any) -> None:
    functions, serde = declared({"sum": agg.sum(), "mean": agg.mean()}, of_table=True)
    states = functions.initializer()
    for number in numbers:
        states = functions.aggregator("key", number, states)
    left = list(numbers)
    for number in data.draw(st.permutations(numbers)):
        states = serde.deserialize("t", serde.serialize("t", functions.subtractor("key", number, states)))
        left.remove(number)
        floats, integers = [n for n in left if type(n) is float], sum(n for n in left if type(n) is int)
        assert functions.results(states)["sum"] == (math.fsum([integers, *floats]) if any(floats) else integers)
    assert functions.results(states) == {"sum": 0, "mean": None}


# -- readers


class Reader(Processor[str, Any, str, Any]):
    """Forwards what the store has of a key."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.rows: Any = context.get_state_store("store")

    def process(self, record: Record[str, Any]) -> None:
        if record.value == "write":
            self.rows.put(record.key, record.value)
        row = self.rows.get(record.key)
        all_rows = [(key, value.value) for key, value in self.rows.all()]
        self.context.forward(Record(record.key, [row.value, all_rows], record.timestamp))


@pytest.mark.parametrize("cache", CACHES)
def test_processors_tests_and_queries_read_results(cache: int) -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().aggregate({"mean": agg.mean("n")}, store="store")
    builder.stream("read").process(Reader, "store").to("out")
    with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": cache}) as driver:
        for n in (1, 2):
            driver.create_input_topic("in").pipe_input("k", {"n": n})
        driver.create_input_topic("read").pipe_input("k", "?")
        assert driver.create_output_topic("out").read_value() == [{"mean": 1.5}, [["k", {"mean": 1.5}]]]
        assert driver.get_timestamped_key_value_store("store").get("k") == ({"mean": 1.5}, 0)
        assert list(driver.get_key_value_store("store").range("a", "z")) == [("k", {"mean": 1.5})]
        ((key, row),) = driver.task.stores["store"].all()
        read = json.loads(row_json(key, row, driver.task.topology.stores["store"]))
        assert read["value"] == {"mean": 1.5}
        with pytest.raises(StreamsError, match="which only their aggregation writes"):
            driver.create_input_topic("read").pipe_input("k", "write")


@pytest.mark.parametrize("cache", CACHES)
def test_a_join_and_another_grouping_read_results(cache: int) -> None:
    builder = StreamsBuilder()
    means = builder.stream("in").group_by_key().aggregate(agg.mean(), store="store", name="means")
    builder.stream("other").join(means, lambda value, mean: [value, mean]).to("joined")
    means.group_by(lambda _key, mean: ("all", mean)).aggregate({"highest": agg.max()}).to_stream().to("highest")
    with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": cache}) as driver:
        for key, value in (("a", 1), ("a", 2), ("b", 5), ("b", -6)):
            driver.create_input_topic("in").pipe_input(key, value)
        driver.create_input_topic("other").pipe_input("a", "x")
        assert driver.create_output_topic("joined").read_value() == ["x", 1.5]
        assert driver.create_output_topic("highest").read_values_to_list()[-1] == {"highest": 1.5}
    assert "means-results" in str(builder.build().describe())


def test_the_value_serde_is_that_of_the_results() -> None:
    builder = StreamsBuilder()
    table = builder.stream("in").group_by_key().aggregate(agg.mean(), value_serde=Serdes.float64(), store="store")
    table.to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("k", 3)
        assert driver.create_output_topic("out", value_serde=Serdes.float64()).read_value() == 3.0
        log = driver.create_output_topic(CHANGELOG, value_serde=Serdes.string())
        assert log.read_value() == "[3,1]"


@pytest.mark.parametrize("of_table", [False, True])
def test_an_aggregation_can_be_sent_to_another_process(of_table: bool) -> None:
    functions, serde = declared(ALL if of_table else {**ALL, **SKETCHES}, of_table)
    sent = pickle.loads(pickle.dumps(serde))
    states = functions.aggregator("key", {"n": 1, "x": 0.5}, functions.initializer())
    assert sent.results(sent.deserialize("t", serde.serialize("t", states))) == functions.results(states)
    assert repr(sent) == repr(serde)


@pytest.mark.parametrize("store_type", ["rocksDB", "in_memory"])
@pytest.mark.parametrize("store_format", ["DEFAULT", "HEADERS"])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("kind", WINDOWS)
def test_all_kinds_of_stores_show_results(kind: str, cache: int, store_format: str, store_type: str) -> None:
    builder = StreamsBuilder()
    store = Materialized("store", store_type=store_type)
    table = grouped(builder, WINDOWS[kind]).aggregate({"n": agg.count(), "mean": agg.mean()}, store=store)
    table.to_stream().to("out")
    config = {"statestore.cache.max.bytes": cache, "dsl.store.format": store_format}
    with TopologyTestDriver(builder.build(), config) as driver:
        for value in (1, 2):
            driver.create_input_topic("in").pipe_input("k", value, 1)
        assert {"n": 2, "mean": 1.5} in driver.create_output_topic("out").read_values_to_list()
        assert {"n": 2, "mean": 1.5} in rows(driver, "store").values()


def test_rows_of_a_versioned_store_are_results() -> None:
    builder = StreamsBuilder()
    store = Stores.persistent_versioned_key_value_store("store", 1_000)
    builder.stream("in").group_by_key().aggregate({"n": agg.count(), "mean": agg.mean()}, store=store)
    with TopologyTestDriver(builder.build()) as driver:
        for value in (1, 2):
            driver.create_input_topic("in").pipe_input("k", value, value)
        versions: Any = driver.get_versioned_key_value_store("store")
        assert versions.get("k").value == {"n": 2, "mean": 1.5}
        assert versions.get("k", 1).value == {"n": 1, "mean": 1.0}
