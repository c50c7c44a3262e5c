"""map_batches in the driver."""

from __future__ import annotations

import json
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from itertools import permutations
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    Processor,
    Punctuation,
    Record,
    Serdes,
    SerializationError,
    StreamsBuilder,
    StreamsError,
    TopologyError,
)
from penstock.testing import TopologyTestDriver
from penstock.topology.context.arrow_batches import arrow_columns
from penstock.topology.errors import SchemaRegistryUnavailableError
from tests.operators.conftest import Start

INTS: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.int64()}
DOCUMENTS: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.json()}


def declare(operation: Callable[[Any], Any]) -> Callable[[StreamsBuilder], None]:
    def build(builder: StreamsBuilder) -> None:
        fanned = builder.stream("in", **INTS).flat_map(lambda key, value: [(key, number) for number in range(value)])
        operation(fanned).to("out", **INTS)

    return build


def test_a_function_gets_batches_of_its_size(start: Start) -> None:
    sizes: list[int] = []

    def squared(values: list[int]) -> list[int]:
        sizes.append(len(values))
        return [value**2 for value in values]

    flow = start(declare(lambda stream: stream.map_batches(squared, max_records=4)))
    assert [value for _, value, _ in flow.read_after("in", "k", 10)] == [number**2 for number in range(10)]
    assert sizes == [4, 4, 2]


def test_its_exception_fails_each_record(start: Start) -> None:
    def picky(values: list[int]) -> list[int]:
        if 5 in values:
            raise ValueError("five")
        return values

    flow = start(
        declare(lambda stream: stream.map_batches(picky, max_records=4)),
        {"processing.exception.handler": "log_and_continue"},
    )
    assert [value for _, value, _ in flow.read_after("in", "k", 10)] == [0, 1, 2, 3, 8, 9]
    assert flow.driver.dropped_records() == {("KSTREAM-MAPVALUES-0000000002", "processing error"): 4}


def rows(count: int) -> list[dict[str, int]]:
    return [{"n": number} for number in range(count)]


WRONG: list[tuple[str, Callable[[], Any]]] = [
    ("too few", lambda: [1]),
    ("too many", lambda: [1] * 5),
    ("text", lambda: "text"),
    ("bytes", lambda: b"text"),
    ("bytearray", lambda: bytearray(b"text")),
    ("memoryview", lambda: memoryview(b"text")),
    ("number", lambda: 7),
    ("None", lambda: None),
    ("dict", lambda: dict.fromkeys(range(4))),
    ("keys", lambda: dict.fromkeys(range(4)).keys()),
    ("set", lambda: set(range(4))),
    ("frozenset", lambda: frozenset(range(4))),
    ("generator", lambda: (number for number in range(4))),
    ("class", lambda: list),
    ("pandas DataFrame", lambda: pandas().DataFrame({name: [0] * 4 for name in "abcd"})),
    ("NumPy scalar", lambda: numpy().float32(1)),
    ("NumPy array without dimensions", lambda: numpy().array(1)),
    ("Arrow scalar", lambda: arrow().scalar(1)),
    ("short NumPy array", lambda: numpy().zeros(3)),
    ("short Series", lambda: pandas().Series([1, 2, 3])),
    ("short RecordBatch", lambda: arrow().RecordBatch.from_pylist(rows(3))),
]

EPOCH = datetime(1970, 1, 1)
LATER = datetime(2026, 11, 30, 1, 2, 3, 4, tzinfo=UTC)
TIMES = [datetime(2026, 11, 30, 1, 2, 3, 4), None, EPOCH, None]
MICROSECOND = timedelta(microseconds=1)

RIGHT: list[tuple[str, Callable[[], Any], list[Any]]] = [
    ("list", lambda: [0, 1, 2, 3], [0, 1, 2, 3]),
    ("tuple", lambda: (0, 1, 2, 3), [0, 1, 2, 3]),
    ("range", lambda: range(4), [0, 1, 2, 3]),
    ("deque", lambda: deque(range(4)), [0, 1, 2, 3]),
    ("array", lambda: array("i", range(4)), [0, 1, 2, 3]),
    ("NumPy integers", lambda: numpy().arange(4, dtype="int16"), [0, 1, 2, 3]),
    ("NumPy floats", lambda: numpy().arange(4, dtype="float32"), [0.0, 1.0, 2.0, 3.0]),
    ("NumPy booleans", lambda: numpy().arange(4) > 1, [False, False, True, True]),
    ("NumPy rows", lambda: numpy().arange(8).reshape(4, 2), [[0, 1], [2, 3], [4, 5], [6, 7]]),
    ("NumPy times", lambda: numpy().zeros(4, "datetime64[ns]"), [datetime(1970, 1, 1)] * 4),
    ("NumPy scalars", lambda: list(numpy().arange(4, dtype="float32")), [0.0, 1.0, 2.0, 3.0]),
    ("Series", lambda: pandas().Series([0, 1, 2, 3]), [0, 1, 2, 3]),
    ("Series of objects", lambda: pandas().Series([numpy().int8(0), "a", None, 1], dtype=object), [0, "a", None, 1]),
    ("array of pandas", lambda: pandas().array([0, 1, 2, 3]), [0, 1, 2, 3]),
    ("Index", lambda: pandas().Index([0, 1, 2, 3]), [0, 1, 2, 3]),
    ("Arrow array", lambda: arrow().array([0, 1, None, 3]), [0, 1, None, 3]),
    ("Arrow scalars", lambda: list(arrow().array([0, 1, None, 3])), [0, 1, None, 3]),
    ("Arrow list", lambda: arrow().scalar([0, 1, None, 3]), [0, 1, None, 3]),
    ("chunked array", lambda: arrow().chunked_array([[0, 1], [2, 3]]), [0, 1, 2, 3]),
    ("RecordBatch", lambda: arrow().RecordBatch.from_pylist(rows(4)), rows(4)),
    ("Table", lambda: arrow().Table.from_pylist(rows(4)), rows(4)),
    (
        "NumPy objects",
        lambda: numpy().array([numpy().int8(0), "a", None, pandas().NA], dtype=object),
        [0, "a", None, None],
    ),
    ("vectors", lambda: list(numpy().zeros((4, 2))), [[0.0, 0.0]] * 4),
    ("vectors of times", lambda: list(numpy().zeros((4, 1), "datetime64[ns]")), [[EPOCH]] * 4),
    ("vectors of pandas", lambda: [pandas().Series([1, None], dtype="Int64")] * 4, [[1, None]] * 4),
    ("empty vectors", lambda: [numpy().zeros(0), pandas().Series([]), arrow().array([]), []], [[], [], [], []]),
    ("vectors of Arrow", lambda: [arrow().array([1, None])] * 4, [[1, None]] * 4),
    ("arrays without dimensions", lambda: [numpy().array(number) for number in range(4)], [0, 1, 2, 3]),
    ("masked array", lambda: numpy().ma.array([0, 1, 2, 3], mask=[0, 1, 0, 0]), [0, None, 2, 3]),
    ("NumPy times, missing", lambda: numpy().array([0, "NaT", 1, 2], "datetime64[ns]"), [EPOCH, None, EPOCH, EPOCH]),
    *(
        (f"Series of {kind}, missing", lambda kind=kind, given=given: pandas().Series(given, dtype=kind), given)
        for kind, given in (
            ("Int64", [0, None, 2, 3]),
            ("Float64", [0.5, None, 2.5, 3.5]),
            ("boolean", [True, None, False, True]),
            ("string", ["a", None, "b", "c"]),
            ("int64[pyarrow]", [0, None, 2, 3]),
            ("string[pyarrow]", ["a", None, "b", "c"]),
        )
    ),
    ("array of pandas, missing", lambda: pandas().array([0, None, 2, 3], dtype="Int64"), [0, None, 2, 3]),
    ("times of pandas", lambda: pandas().Series(TIMES, dtype="datetime64[ns]"), TIMES),
    ("times with a zone", lambda: pandas().Series([LATER] * 4), [LATER] * 4),
    (
        "times in a list",
        lambda: [pandas().Timestamp(TIMES[0]), pandas().NaT, pandas().NA, None],
        [TIMES[0], None, None, None],
    ),
    ("nanoseconds", lambda: [pandas().Timestamp(1), pandas().Timedelta(1999, "ns"), 0, 1], [EPOCH, MICROSECOND, 0, 1]),
    ("Index of times", lambda: pandas().DatetimeIndex(TIMES), TIMES),
    ("durations", lambda: pandas().Series([MICROSECOND, None] * 2), [MICROSECOND, None] * 2),
    ("Arrow times", lambda: arrow().array(TIMES, arrow().timestamp("ns")), TIMES),
    (
        "Arrow durations",
        lambda: arrow().array([MICROSECOND, None] * 2, arrow().duration("ns")),
        [MICROSECOND, None] * 2,
    ),
    ("Arrow time", lambda: list(arrow().array(TIMES, arrow().timestamp("ns"))), TIMES),
    ("times in Series of Arrow", lambda: pandas().Series(TIMES, dtype="timestamp[ns][pyarrow]"), TIMES),
    (
        "times in rows",
        lambda: arrow().table({"t": arrow().array(TIMES, arrow().timestamp("ns"))}),
        [{"t": t} for t in TIMES],
    ),
    (
        "DataFrame as a table",
        lambda: arrow().Table.from_pandas(frame(), preserve_index=False),
        [{"t": t, "f": 1.5} for t in TIMES],
    ),
    ("times in lists in rows", lambda: arrow().table({"t": nested_times()}), [{"t": [{"u": t}]} for t in TIMES]),
    (
        "missing values in rows",
        lambda: arrow().table({"n": [0, None, 2, None]}),
        [{"n": n} for n in (0, None, 2, None)],
    ),
]


def frame() -> Any:
    return pandas().DataFrame({"t": pandas().Series(TIMES, dtype="datetime64[ns]"), "f": [1.5] * 4})


def nested_times() -> Any:
    nanoseconds = arrow().list_(arrow().struct([("u", arrow().timestamp("ns"))]))
    return arrow().array([[{"u": time}] for time in TIMES], nanoseconds)


def pandas() -> Any:
    return pytest.importorskip("pandas")


def numpy() -> Any:
    return pytest.importorskip("numpy")


def arrow() -> Any:
    return pytest.importorskip("pyarrow")


@pytest.fixture(params=["list", "arrow"])
def mapped(request: pytest.FixtureRequest, start: Start) -> Callable[[Callable[[Any], Any]], list[Any]]:
    """Return a function that returns the values forwarded from a batch of four, unchanged by serdes."""
    if request.param == "arrow":
        arrow()

    def run(function: Callable[[Any], Any]) -> list[Any]:
        seen: list[Any] = []

        def build(builder: StreamsBuilder) -> None:
            fanned = builder.stream("in", **INTS).flat_map_values(rows)
            fanned.map_batches(function, as_=request.param, name="model").peek(lambda key, value: seen.append(value))

        start(build).pipe("in", "k", 4)
        return seen

    return run


@pytest.mark.parametrize("wrong", [make for _, make in WRONG], ids=[name for name, _ in WRONG])
def test_any_result_but_one_per_record_is_refused(mapped: Callable[..., list[Any]], wrong: Any) -> None:
    with pytest.raises(StreamsError, match="The function of operator model must return"):
        mapped(lambda values: wrong())


@pytest.mark.parametrize(("right", "values"), [case[1:] for case in RIGHT], ids=[case[0] for case in RIGHT])
def test_lists_arrays_and_series_are_results(mapped: Callable[..., list[Any]], right: Any, values: list[Any]) -> None:
    found = mapped(lambda _: right())
    assert found == values
    assert types(found) == types(values)


def types(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: types(part) for name, part in value.items()}
    return [types(part) for part in value] if isinstance(value, list) else type(value)


class Point(msgspec.Struct, omit_defaults=True):
    n: int
    extra: int | None = None


@pytest.mark.parametrize("given", [*permutations([{"n": 0}, {"n": 1, "extra": 10}, {"other": "x"}])])
def test_a_batch_has_the_columns_of_all_its_records(given: tuple[dict[str, Any], ...]) -> None:
    arrow()
    full: dict[str, Any] = {"n": None, "extra": None, "other": None}
    assert piped(lambda batch: batch, list(given)) == [{**full, **row} for row in given]


def test_columns_are_built_from_any_mix_of_records() -> None:
    arrow()
    to_batch, to_values = arrow_columns()
    batch = to_batch([{"n": 1}, Order(2.5, 4), Point(3)])
    assert (to_values(batch) or [])[2] == {"n": 3, "price": None, "pieces": None, "extra": None}
    assert to_batch([{}, {}]).num_rows == 2


@dataclass
class Position:
    x: float
    y: float | None = None


class Named(NamedTuple):
    x: float
    y: float | None = None


class Packed(msgspec.Struct, omit_defaults=True, rename="upper", tag=True):
    x: float
    y: float | None = None


class Shade(Enum):
    RED = "red"


FLAT = {"x": 1.5, "y": None}


@pytest.mark.parametrize("outer", ["dict", "dataclass", "NamedTuple", "Struct"])
@pytest.mark.parametrize(
    ("inner", "columns"),
    [
        (Position(1.5), FLAT),
        (Named(1.5), FLAT),
        (Packed(1.5), FLAT),
        ([Packed(1.5), None], [FLAT, None]),
        ((Named(1.5),), [FLAT]),
        (frozenset([Named(1.5)]), [FLAT]),
        ({"one": Position(1.5)}, {"one": FLAT}),
        ({"one": {"two": [Position(1.5)]}}, {"one": {"two": [FLAT]}}),
        ([[[Position(1.5)]]], [[[FLAT]]]),
        (Shade.RED, "red"),
        ([Shade.RED], ["red"]),
        (msgspec.UNSET, None),
        (datetime(2026, 11, 30, tzinfo=UTC), datetime(2026, 11, 30, tzinfo=UTC)),
        (Decimal("1.50"), Decimal("1.50")),
        (UUID(int=7), UUID(int=7)),
    ],
    ids=str,
)
@pytest.mark.parametrize("has_schema", [False, True], ids=["", "schema"])
def test_values_of_any_type_inside_of_each_other_are_columns(
    outer: str, inner: Any, columns: Any, has_schema: bool
) -> None:
    pyarrow = arrow()
    rows: list[Any] = [{"x": inner, "y": 2.5}, Position(inner, 2.5), Named(inner, 2.5), Packed(inner, 2.5)]
    value = rows[["dict", "dataclass", "NamedTuple", "Struct"].index(outer)]
    schema = None
    if has_schema:
        schema = pyarrow.schema([("x", pyarrow.array([columns]).type), ("y", pyarrow.float64())])
    to_batch, to_values = arrow_columns(schema)
    assert to_values(to_batch([value, value])) == [{"x": columns, "y": 2.5}] * 2


def test_typed_values_with_a_nested_type_reach_the_function() -> None:
    arrow()

    class Outer(msgspec.Struct):
        at: Packed
        shade: Shade

    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.json(Outer))
    stream.map_batches(lambda batch: batch, as_="arrow").to("out", **DOCUMENTS)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_value_list([Outer(Packed(1.5), Shade.RED)] * 2)
        found = driver.create_output_topic("out").read_values_to_list()
    assert found == [{"at": FLAT, "shade": "red"}] * 2


@pytest.mark.parametrize("on_error", ["fail", "split"])
def test_a_value_that_does_not_fit_its_column_fails_its_batch_unless_that_is_split(on_error: Any) -> None:
    arrow()
    builder = StreamsBuilder()
    stream = builder.stream("in", **DOCUMENTS)
    stream.map_batches(lambda batch: batch, as_="arrow", on_error=on_error).to("out", **DOCUMENTS)
    with TopologyTestDriver(builder.build(), {"processing.exception.handler": "log_and_continue"}) as driver:
        driver.create_input_topic("in").pipe_value_list([{"n": 1}, 7, {"n": 3}, {"n": 4}])
        found = driver.create_output_topic("out").read_values_to_list()
        (dropped,) = driver.dropped_records().values()
    assert (found, dropped) == (([], 4) if on_error == "fail" else ([{"n": 1}, {"n": 3}, {"n": 4}], 1))


def piped(function: Callable[[Any], Any], values: list[Any], batch_records: int = 512, **options: Any) -> list[Any]:
    """Return the results of a topology for a list of JSON values that are piped together."""
    builder = StreamsBuilder()
    stream = builder.stream("in", **DOCUMENTS).map_batches(function, as_=options.pop("as_", "arrow"), **options)
    stream.to("out", **DOCUMENTS)
    config = {"processing.exception.handler": "log_and_continue"}
    with TopologyTestDriver(builder.build(), config, batch_records=batch_records) as driver:
        driver.create_input_topic("in").pipe_value_list(values)
        found = driver.create_output_topic("out").read_values_to_list()
        assert not driver.dropped_records()
    return found


@pytest.mark.parametrize("batch_records", [1, 2, 3, 512])
def test_with_a_schema_results_do_not_depend_on_batch_boundaries(batch_records: int) -> None:
    pyarrow = arrow()
    schema = pyarrow.schema([("n", pyarrow.int64()), ("extra", pyarrow.float64())])
    values = [{"n": 0}, {"n": 1, "extra": 10}, None, {"extra": 0.5, "ignored": True}, None]
    assert piped(lambda batch: batch, values, batch_records, schema=schema) == [
        {"n": 0, "extra": None},
        {"n": 1, "extra": 10.0},
        None,
        {"n": None, "extra": 0.5},
        None,
    ]


@pytest.mark.parametrize("batch_records", [1, 2, 512])
def test_a_tombstone_is_no_row_and_stays_a_tombstone(batch_records: int) -> None:
    arrow()
    sizes: list[int] = []

    def numbers(batch: Any) -> Any:
        sizes.append(batch.num_rows)
        return batch["n"]

    assert piped(numbers, [None, {"n": 0}, None, {"n": 2}, None, None], batch_records) == [None, 0, None, 2, None, None]
    assert 0 not in sizes


@pytest.mark.parametrize(("batch_records", "sizes"), [(1, [1] * 5), (2, [2, 2, 1]), (4, [4, 1]), (512, [5])])
def test_the_driver_forms_batches_from_a_list(batch_records: int, sizes: list[int]) -> None:
    seen: list[int] = []

    def counted(values: list[Any]) -> list[Any]:
        seen.append(len(values))
        return values

    assert piped(counted, list(range(5)), batch_records, as_="list") == list(range(5))
    assert seen == sizes


def test_by_default_the_driver_forms_batches_from_lists_but_not_from_single_records() -> None:
    seen: list[int] = []

    def counted(values: list[Any]) -> list[Any]:
        seen.append(len(values))
        return values

    builder = StreamsBuilder()
    builder.stream("in", **DOCUMENTS).repartition().map_batches(counted).to("out", **DOCUMENTS)
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_key_value_list([("a", 0), ("b", 1), ("a", 2)])
        topic.pipe_key_value_list({"a": 3, "b": 4})
        topic.pipe_record_list([Record("c", 5, 0), Record("d", 6, 0)])
        topic.pipe_input("e", 7)
        topic.pipe_input("f", 8)
        assert driver.create_output_topic("out").read_values_to_list() == list(range(9))
    assert seen == [3, 2, 2, 1, 1]


def test_a_list_that_fails_half_way_leaves_nothing_behind() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **DOCUMENTS).map_batches(lambda values: values).to("out", **DOCUMENTS)
    with TopologyTestDriver(builder.build()) as driver:
        with pytest.raises(SerializationError):
            driver.create_input_topic("in").pipe_value_list([1, float("nan")])
        assert driver.create_output_topic("out").read_values_to_list() == [1]


def test_a_stream_time_punctuation_does_not_overtake_a_batch() -> None:
    seen: list[Any] = []

    class Ticking(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            context.schedule(10, Punctuation.STREAM_TIME, lambda time: seen.append(f"tick {time}"))

        def process(self, record: Record[Any, Any]) -> None:
            seen.append(record.value)

    def run(batch_records: int) -> list[Any]:
        seen.clear()
        builder = StreamsBuilder()
        builder.stream("in", **DOCUMENTS).map_batches(lambda values: values).process(Ticking)
        with TopologyTestDriver(builder.build(), batch_records=batch_records) as driver:
            driver.create_input_topic("in").pipe_value_list([1, 2], 0, 100)
        return list(seen)

    assert run(1) == [1, "tick 0", 2, "tick 100"]
    assert run(512) == [1, 2, "tick 100"]


def test_results_do_not_wait_for_other_operators() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", **DOCUMENTS)
    stream.map_batches(lambda values: values).to("out", **DOCUMENTS)
    stream.group_by_key(key_serde=Serdes.string()).count().to_stream().to("counts", **INTS)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("a", 1), ("a", 2)])
        assert driver.create_output_topic("counts").read_values_to_list() == [1, 2]


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 40), st.booleans())
def test_a_split_batch_rejects_only_records_that_fail_alone(good: list[bool], max_records: int, as_arrow: bool) -> None:
    seen: list[int] = []

    def picky(values: Any) -> Any:
        numbers = values["n"].to_pylist() if as_arrow else [value["n"] for value in values]
        seen.append(len(numbers))
        if any(not good[number] for number in numbers):
            raise ValueError("bad")
        return numbers

    builder = StreamsBuilder()
    stream = builder.stream("in", **DOCUMENTS)
    as_: Any = "arrow" if as_arrow else "list"
    stream.map_batches(picky, max_records=max_records, as_=as_, on_error="split").to("out", **DOCUMENTS)
    config = {"processing.exception.handler": "log_and_continue", "errors.dead.letter.queue.topic.name": "dead"}
    with TopologyTestDriver(builder.build(), config) as driver:
        driver.create_input_topic("in").pipe_value_list(rows(len(good)))
        out = driver.create_output_topic("out").read_values_to_list()
        letters = driver.create_output_topic("dead").read_values_to_list()
    assert out == [number for number, is_good in enumerate(good) if is_good]
    assert letters == [json.dumps({"n": n}, separators=(",", ":")).encode() for n, ok in enumerate(good) if not ok]
    assert len(seen) < 2 * len(good)


def test_an_error_independent_of_records_is_not_retried_by_splitting(start: Start) -> None:
    sizes: list[int] = []

    def without_registry(values: list[Any]) -> list[Any]:
        sizes.append(len(values))
        raise SchemaRegistryUnavailableError("try again")

    flow = start(
        declare(lambda stream: stream.map_batches(without_registry, on_error="split")),
        {"processing.exception.handler": "log_and_continue"},
    )
    with pytest.raises(SchemaRegistryUnavailableError):
        flow.pipe("in", "k", 8)
    assert sizes == [8]


@dataclass
class Order:
    price: float
    pieces: int


def test_arrow_columns_as_input_and_an_array_as_result(start: Start) -> None:
    compute = pytest.importorskip("pyarrow.compute")

    def total(batch: Any) -> Any:
        return compute.multiply(batch["price"], batch["pieces"])

    def build(builder: StreamsBuilder) -> None:
        orders = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.json(Order))
        orders.map_batches(total, as_="arrow").to("out", key_serde=Serdes.string(), value_serde=Serdes.float64())

    flow = start(build)
    assert flow.read_after("in", "k", Order(2.5, 4)) == [("k", 10.0, 0)]


def test_arrow_columns_as_input_and_result(start: Start) -> None:
    pytest.importorskip("pyarrow")

    def build(builder: StreamsBuilder) -> None:
        orders = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.json())
        orders.map_batches(lambda batch: batch.select(["n"]), as_="arrow").to(
            "out", key_serde=Serdes.string(), value_serde=Serdes.json()
        )

    assert start(build).read_after("in", "k", {"n": 1, "m": 2}) == [("k", {"n": 1}, 0)]


@pytest.mark.parametrize(
    "options",
    [
        {"max_records": 0},
        {"max_wait": -1},
        {"as_": "pandas"},
        {"on_error": "continue"},
        {"schema": "a text"},
        {"as_": "arrow", "schema": {"n": int}},
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TopologyError):
        StreamsBuilder().stream("in", **INTS).map_batches(lambda values: values, **options)
